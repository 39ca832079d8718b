"""`foredraft chat`: a conversation in the terminal.

Earlier turns are not computed again: the engine keeps the rows of finished requests and takes over the
longest common prefix.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from foredraft.cli import options
from foredraft.cli.generate import load
from foredraft.cli.interrupt import cancel_on_interrupt
from foredraft.cli.output import note, stats_line, write
from foredraft.errors import ForedraftError, ParameterError, PromptError
from foredraft.params import SamplingParams

if TYPE_CHECKING:
    from foredraft.engine import SpeculationStats
    from foredraft.inferencer import SpeculativeInferencer

_HELP = """\
/set NAME VALUE   change a sampling parameter, e.g. /set temperature 0.7
/set              show what differs from the defaults
/stats            speed and acceptance of this conversation
/system TEXT      set the system message and start again
/reset            forget the conversation
/exit             leave (as Ctrl-D does); Ctrl-C stops a reply and keeps it"""


def chat(
    target: options.Target = options.DEFAULT_TARGET,
    draft: options.Draft = None,
    drafter: options.Drafter = options.DRAFTER,
    num_draft_tokens: options.NumDraftTokens = options.NUM_DRAFT_TOKENS,
    rule: options.Rule = options.RULE,
    temperature: options.Temperature = options.TEMPERATURE,
    top_k: options.TopK = options.TOP_K,
    top_p: options.TopP = options.TOP_P,
    min_p: options.MinP = options.MIN_P,
    repetition_penalty: options.RepetitionPenalty = options.REPETITION_PENALTY,
    seed: options.Seed = None,
    max_new_tokens: options.MaxNewTokens = 512,
    system: options.System = None,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    attention: options.Attention = "auto",
    runner: options.Runner = "reference",
    trust_remote_code: options.TrustRemoteCode = False,
) -> None:
    """Talk with a model; /help shows the commands."""
    sampling = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        max_new_tokens=max_new_tokens,
    )
    config = options.speculation_config(drafter, num_draft_tokens, rule)
    inferencer = load(
        target,
        draft,
        config,
        dtype=dtype,
        device=device,
        attention=attention,
        runner=runner,
        trust_remote_code=trust_remote_code,
        max_batch_size=1,
    )
    if inferencer.tokenizer is None or not inferencer.tokenizer.has_chat_template:
        raise PromptError(
            f"{inferencer.target.name} has no chat template; use foredraft generate, or an instruct model"
        )
    _talk(Conversation(inferencer, sampling, system))


@dataclass
class Conversation:
    """Messages so far and what they cost."""

    inferencer: SpeculativeInferencer
    sampling: SamplingParams
    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    total: SpeculationStats | None = None
    seconds: float = 0.0

    def reset(self) -> None:
        """Forget the messages, not the statistics."""
        self.messages = []

    def say(self, text: str) -> None:
        """One turn: print the reply as it comes and keep it, cut short or not."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        self.messages.append({"role": "user", "content": text})
        started = time.perf_counter()
        reply = ""
        try:
            with cancel_on_interrupt() as cancel:
                prompt = [*system, *self.messages]
                for chunk in self.inferencer.stream([prompt], self.sampling, cancel=cancel):
                    write(chunk.text)
                    reply += chunk.text
                    if chunk.generation is not None:
                        self._count(chunk.generation.stats, time.perf_counter() - started)
                        if chunk.generation.error is not None:
                            note(f"\nforedraft: {chunk.generation.error}")
        except ForedraftError:
            self.messages.pop()
            raise
        write("\n")
        self.messages.append({"role": "assistant", "content": reply})

    def _count(self, stats: SpeculationStats, seconds: float) -> None:
        if self.total is None:
            self.total = stats
        else:
            self.total.add(stats)
        self.seconds += seconds


def _talk(conversation: Conversation) -> None:
    interactive = sys.stdin.isatty()
    if interactive:
        _enable_line_editing()
        note(f"{conversation.inferencer.target.name}: /help shows the commands, Ctrl-D leaves")
    while True:
        try:
            line = _read_line(interactive)
        except EOFError:
            return
        except UnicodeDecodeError:
            note("foredraft: a line is not UTF-8 text; it was left out")
            continue
        except KeyboardInterrupt:
            note("\n(Ctrl-D or /exit leaves)")
            continue
        if line in {"/exit", "/quit"}:
            return
        if not line:
            continue
        try:
            if line.startswith("/"):
                _command(conversation, line)
            else:
                conversation.say(line)
        except PromptError as error:
            note(f"foredraft: {error} (/reset starts a new conversation)")
        except ForedraftError as error:
            note(f"foredraft: {error}")


def _read_line(interactive: bool) -> str:
    """The next line; raises EOFError at the end, UnicodeDecodeError where it is not text."""
    if interactive:
        return input("> ").strip()
    # Read as bytes: after a decoding error a text stream has lost the lines that follow.
    line = sys.stdin.buffer.readline()
    if not line:
        raise EOFError
    return line.decode("utf-8").strip()


def _enable_line_editing() -> None:
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")


def _command(conversation: Conversation, line: str) -> None:
    name, _, rest = line.partition(" ")
    rest = rest.strip()
    if name == "/set":
        _set(conversation, rest)
    elif name == "/stats":
        note(_stats(conversation))
    elif name == "/system":
        conversation.system = rest or None
        conversation.reset()
    elif name == "/reset":
        conversation.reset()
    elif name == "/help":
        note(_HELP)
    else:
        note(f"foredraft: no command {name}; /help shows them")


def _set(conversation: Conversation, rest: str) -> None:
    name, _, text = rest.partition(" ")
    if not name:
        note(str(conversation.sampling.model_dump(exclude_defaults=True)))
        return
    if not text.strip():
        raise ParameterError(f"/set {name}: give a value, e.g. /set temperature 0.7")
    try:
        value: Any = json.loads(text)
    except ValueError:
        value = text.strip()
    conversation.sampling = conversation.sampling.replace(**{name.replace("-", "_"): value})


def _stats(conversation: Conversation) -> str:
    if conversation.total is None:
        return "nothing generated yet"
    return stats_line(conversation.total, conversation.seconds, conversation.inferencer.drafter_name)
