"""`foredraft chat` with piped lines: turns, commands, Ctrl-C, a full context."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from foredraft.cli import chat as chat_command
from foredraft.execution import ReferenceRunner


def _chat(run: Callable, model: str, *lines: str, options: tuple[str, ...] = ()):
    common = ("--target", model, "--max-new-tokens", "6")
    return run("chat", *common, *options, stdin="".join(f"{line}\n" for line in lines).encode())


def test_turns(run: Callable, models):
    """The second reply would not know of the first turn, or the end of the input would be an error."""
    two = _chat(run, models.target, "hello", "and again")
    alone = _chat(run, models.target, "and again")
    assert (two.code, two.err) == (0, "")
    assert two.out.count("\n") >= 2
    assert not two.out.endswith(alone.out)
    reset = _chat(run, models.target, "hello", "/reset", "and again")
    assert reset.out.endswith(alone.out)


def test_earlier_turns_are_not_computed_again(run: Callable, models, monkeypatch: pytest.MonkeyPatch):
    """Every turn would cost as much as the whole conversation."""
    step, fed = ReferenceRunner.step, []

    def counting(self, inputs):
        fed.append(sum(len(row_input.tokens) for row_input in inputs))
        return step(self, inputs)

    monkeypatch.setattr(ReferenceRunner, "step", counting)
    long = "the quick brown fox jumps over the lazy dog " * 12
    _chat(run, models.target, long, "more", options=("--drafter", "none"))
    whole = max(fed)
    assert whole > 100
    assert sum(1 for tokens in fed if tokens > whole / 2) == 1, fed


def test_set(run: Callable, models):
    """A parameter would be set to text, or a wrong one would end the conversation."""
    outcome = _chat(
        run, models.target,
        "/set max_new_tokens 1", "/set stop [\"x\"]", "/set top-k 3", "/set temperature -1", "/set colour 3",
        "/set seed", "hello", "/stats", "/set",
    )  # fmt: skip
    assert outcome.code == 0
    assert "1 tokens" in outcome.err
    assert "temperature: " in outcome.err
    assert "unknown parameter 'colour'" in outcome.err
    assert "'top_k': 3" in outcome.err
    assert "Traceback" not in outcome.err


def test_commands(run: Callable, models):
    """A command would be sent to the model, or leave the conversation."""
    outcome = _chat(
        run, models.target, "/help", "/nonsense", "/stats", "/system Be brief.", "", "/exit", "hello"
    )
    assert (outcome.code, outcome.out) == (0, "")
    assert "/set NAME VALUE" in outcome.err
    assert "/nonsense" in outcome.err


def test_system_message(run: Callable, models):
    """/system and --system would say different things to the model, or nothing."""
    option = _chat(run, models.target, "hello", options=("--system", "Be brief."))
    command = _chat(run, models.target, "/system Be brief.", "hello")
    assert option.out == command.out != _chat(run, models.target, "hello").out


def test_full_context(run: Callable, models):
    """A conversation that has grown too long would crash, or go on without its beginning."""
    long = "the quick brown fox " * 20
    outcome = _chat(run, models.small, long, "/reset", "hi")
    assert outcome.code == 0
    assert "context" in outcome.err
    assert "/reset" in outcome.err
    assert outcome.out == _chat(run, models.small, "hi").out


def test_ctrl_c_stops_a_reply_and_keeps_it(run: Callable, models, monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C would leave the chat, or the model would not know what it had said."""
    seen: list[list[dict[str, str]]] = []
    written: list[str] = []

    def pressing(text: str) -> None:
        written.append(text)
        if len(written) == 1:
            signal.raise_signal(signal.SIGINT)

    say = chat_command.Conversation.say

    def watched(self, text: str) -> None:
        say(self, text)
        seen.append(list(self.messages))

    monkeypatch.setattr(chat_command, "write", pressing)
    monkeypatch.setattr(chat_command.Conversation, "say", watched)
    outcome = _chat(run, models.target, "/set max_new_tokens 200", "/set ignore_eos true", "hello", "/exit")
    assert outcome.code == 0
    (messages,) = seen
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert messages[1]["content"] == "".join(written).removesuffix("\n")
    assert len(written) < 20


def test_line_that_is_no_text(run: Callable, models):
    """Bytes of another encoding would end the conversation with a bug's message."""
    outcome = run("chat", "--target", models.target, "--max-new-tokens", "2", stdin=b"caf\xe9\nhello\n")
    assert outcome.code == 0
    assert len(outcome.err.splitlines()) == 1
    assert "UTF-8" in outcome.err
    assert outcome.out == _chat(run, models.target, "hello", options=("--max-new-tokens", "2")).out
