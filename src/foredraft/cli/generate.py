"""`foredraft generate`."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foredraft.cli import options
from foredraft.cli.interrupt import INTERRUPTED, cancel_on_interrupt
from foredraft.cli.output import generation_record, note, stats_line, write, write_json
from foredraft.cli.prompts import read_prompts
from foredraft.errors import ParameterError, PromptError
from foredraft.params import SamplingParams, SpeculationConfig

if TYPE_CHECKING:
    from foredraft.inferencer import (
        Generation,
        GenerationChunk,
        Inferencer,
        Prompt,
        SpeculativeInferencer,
    )

logger = logging.getLogger(__name__)


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads standard input.")] = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="One prompt a line, or .jsonl with a prompt each.")
    ] = None,
    target: options.Target = options.DEFAULT_TARGET,
    draft: options.Draft = None,
    drafter: options.Drafter = options.DRAFTER,
    num_draft_tokens: options.NumDraftTokens = options.NUM_DRAFT_TOKENS,
    rule: options.Rule = options.RULE,
    verify_batch_size: options.VerifyBatchSize = None,
    max_batch_size: options.MaxBatchSize = None,
    temperature: options.Temperature = options.TEMPERATURE,
    top_k: options.TopK = options.TOP_K,
    top_p: options.TopP = options.TOP_P,
    min_p: options.MinP = options.MIN_P,
    repetition_penalty: options.RepetitionPenalty = options.REPETITION_PENALTY,
    presence_penalty: options.PresencePenalty = options.PRESENCE_PENALTY,
    frequency_penalty: options.FrequencyPenalty = options.FREQUENCY_PENALTY,
    no_repeat_ngram_size: options.NoRepeatNgramSize = options.NO_REPEAT_NGRAM_SIZE,
    seed: options.Seed = None,
    max_new_tokens: options.MaxNewTokens = options.MAX_NEW_TOKENS,
    min_new_tokens: options.MinNewTokens = options.MIN_NEW_TOKENS,
    stop: options.Stop = None,
    stop_token_id: options.StopTokenId = None,
    ignore_eos: options.IgnoreEos = False,
    n: Annotated[int, typer.Option("--n", help="Samples for each prompt.")] = 1,
    logprobs: Annotated[
        int | None, typer.Option("--logprobs", help="With --json: log-probabilities of this many best.")
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--no-chat", help="Use the chat template; by default where there is one."),
    ] = None,
    system: options.System = None,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    attention: options.Attention = "auto",
    runner: options.Runner = "reference",
    trust_remote_code: options.TrustRemoteCode = False,
    json_output: options.Json = False,
) -> None:
    """Generate text with speculation on."""
    sampling = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        no_repeat_ngram_size=no_repeat_ngram_size,
        seed=seed,
        n=n,
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        stop=tuple(stop or ()),
        stop_token_ids=tuple(stop_token_id or ()),
        ignore_eos=ignore_eos,
        logprobs=logprobs,
    )
    if logprobs is not None and not json_output:
        raise ParameterError("--logprobs is shown with --json only; add --json")
    config = options.speculation_config(drafter, num_draft_tokens, rule)
    batch = options.batch_options(verify_batch_size, max_batch_size)
    texts = read_prompts(prompt, prompts)
    inferencer = load(
        target,
        draft,
        config,
        dtype=dtype,
        device=device,
        attention=attention,
        runner=runner,
        trust_remote_code=trust_remote_code,
        **batch,
    )
    requests = [as_prompt(inferencer, text, chat, system) for text in texts]
    code = _run(inferencer, requests, texts, sampling, json_output)
    if code:
        raise typer.Exit(code)


def load(
    target: str, draft: str | None, config: SpeculationConfig, **load_options: Any
) -> SpeculativeInferencer:
    """The inferencer of a command; says at info level what will run."""
    make_available(target, draft)
    from foredraft.inferencer import SpeculativeInferencer

    inferencer = SpeculativeInferencer(
        target,
        draft,
        drafter=config.drafter,
        num_draft_tokens=config.num_draft_tokens,
        rule=config.rule,
        **load_options,
    )
    logger.info(
        "target %s, drafter %s%s, %s draft tokens, rule %s, %s on %s",
        inferencer.target.name,
        inferencer.drafter_name,
        f" ({inferencer.draft.name})" if inferencer.draft is not None else "",
        config.num_draft_tokens,
        config.rule,
        str(inferencer.target.dtype).removeprefix("torch."),
        inferencer.target.device,
    )
    return inferencer


def make_available(*names: str | None) -> None:
    """Fetch built-in models where it is seen, and refuse paths to nowhere before PyTorch is imported."""
    from foredraft.models import pull, resolve

    for name in names:
        if name is not None and resolve(name).kind == "catalogue":
            pull(name, progress=True)


def as_prompt(inferencer: Inferencer, text: str, chat: bool | None, system: str | None) -> Prompt:
    """The text itself, or a chat of one user message."""
    tokenizer = inferencer.tokenizer
    has_template = tokenizer is not None and tokenizer.has_chat_template
    use_template = has_template if chat is None else chat
    if not use_template:
        if system is not None:
            raise PromptError("--system needs a chat template; this run does not use one")
        return text
    if not text.strip():
        raise PromptError("the prompt is empty; give at least one word (or --no-chat to start from nothing)")
    messages = [{"role": "system", "content": system}] if system is not None else []
    return [*messages, {"role": "user", "content": text}]


def _run(
    inferencer: SpeculativeInferencer,
    requests: list[Prompt],
    texts: list[str],
    sampling: SamplingParams,
    json_output: bool,
) -> int:
    """Print as it comes; returns the exit code."""
    from foredraft.engine import SpeculationStats

    live = len(requests) * sampling.n == 1 and not json_output
    total = SpeculationStats()
    code = 0
    started = time.perf_counter()
    with cancel_on_interrupt() as cancel:
        for chunk in inferencer.stream(requests, sampling, cancel=cancel):
            if live:
                write(chunk.text)
            if (generation := chunk.generation) is None:
                continue
            total.add(generation.stats)
            _show(chunk, generation, texts, live, json_output)
            if generation.error is not None:
                note(f"foredraft: {generation.error}")
                code = code or 1
        if cancel.is_set():
            code = INTERRUPTED
    if not json_output:
        note(stats_line(total, time.perf_counter() - started, inferencer.drafter_name))
    return code


def _show(
    chunk: GenerationChunk, generation: Generation, texts: list[str], live: bool, json_output: bool
) -> None:
    if json_output:
        write_json(generation_record(generation, texts[chunk.prompt_index]))
    elif live:
        write("\n")
    else:
        write(f"[prompt {chunk.prompt_index + 1}, sample {chunk.sample_index + 1}]\n{generation.text}\n\n")
