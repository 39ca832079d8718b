"""`Inferencer` and `SpeculativeInferencer`: the Python API.

Both run the same engine. `Inferencer` drafts nothing; `SpeculativeInferencer` drafts with a smaller model
or by n-gram lookup and gives text of the same distribution, sooner.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from foredraft.drafters import (
    Drafter,
    ModelDrafter,
    NgramDrafter,
    SuffixAutomatonDrafter,
    SuffixIndex,
    SuffixIndexDrafter,
)
from foredraft.engine import (
    DEFAULT_MAX_BATCH_SIZE,
    DEFAULT_VERIFY_BATCH_SIZE,
    AdaptiveDraftLength,
    DraftLengthController,
    Engine,
    FinishReason,
    FixedDraftLength,
    Request,
    SpeculationStats,
    StepCosts,
    TokenLogprobs,
    measure_step_costs,
)
from foredraft.engine import Sequence as EngineSequence
from foredraft.errors import IncompatibleDraftError, ParameterError, PromptError
from foredraft.execution import ModelRunner, ReferenceRunner, check_rollback
from foredraft.laws import REJECTION_RULES, LogitsProcessor
from foredraft.models import LoadedModel, load_model
from foredraft.models.in_memory import loaded_from
from foredraft.params import DrafterName, RuleName, SamplingParams, SpeculationConfig
from foredraft.text import TextStream, TextTokenizer

logger = logging.getLogger(__name__)

RunnerName: TypeAlias = Literal["reference", "fast"]
Messages: TypeAlias = Sequence[Mapping[str, str]]
Prompt: TypeAlias = "str | Sequence[int] | Messages"
"""A text, token ids, or the messages of a chat."""
ModelSource: TypeAlias = "str | Path | LoadedModel | PreTrainedModel"
"""A built-in name, a hub id, a local folder, a .gguf file, or a model already in memory."""


@dataclass(frozen=True)
class Generation:
    """One finished sample."""

    text: str
    """The new text, without the prompt, special tokens and stop strings."""
    token_ids: tuple[int, ...]
    """The new tokens, the one that ended the text included."""
    prompt_token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: SpeculationStats
    prompt_index: int = 0
    sample_index: int = 0
    logprobs: tuple[TokenLogprobs, ...] | None = None
    error: str | None = None
    """What went wrong where finish_reason is "error"; text and token_ids hold what came before."""


@dataclass(frozen=True)
class GenerationChunk:
    """A piece of one sample, as it becomes certain."""

    text: str
    token_ids: tuple[int, ...]
    prompt_index: int
    sample_index: int
    generation: Generation | None = None
    """The whole sample, in its last chunk only."""


class Inferencer:
    """Generates text with a target model alone.

    Safe to call from several threads: their requests share one batch.

    Args:
        target: the model; see `ModelSource`.
        tokenizer: for a model given in memory; others bring their own.
        dtype: "auto", "float32", "bfloat16" or "float16".
        device: "auto", "cpu", "cuda", "cuda:1" and so on.
        attention: "auto", "eager" or "sdpa".
        trust_remote_code: allow code that comes with a model to run.
        runner: "reference" runs the model's own PyTorch code; "fast" compiles llama-like models and GPT-2
            with OpenVINO for the CPU (extra `fast`).
        max_batch_size: samples generated at the same time; more wait their turn.
        verify_batch_size: rows in one target forward; a larger batch is verified in slices.

    Raises:
        ModelError: if the model cannot be found, read or run.
    """

    def __init__(
        self,
        target: ModelSource = "smollm2",
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        dtype: str = "auto",
        device: str = "auto",
        attention: str = "auto",
        trust_remote_code: bool = False,
        runner: RunnerName = "reference",
        max_batch_size: int = DEFAULT_MAX_BATCH_SIZE,
        verify_batch_size: int = DEFAULT_VERIFY_BATCH_SIZE,
    ) -> None:
        if runner not in ("reference", "fast"):
            raise ParameterError(f"runner: must be reference or fast (got {runner!r})")
        self._runner_name = runner
        self._load_options: dict[str, Any] = {
            "dtype": dtype,
            "device": device,
            "attention": attention,
            "trust_remote_code": trust_remote_code,
        }
        self.target = self._load(target, tokenizer)
        self.tokenizer = TextTokenizer(self.target.tokenizer) if self.target.tokenizer is not None else None
        self._runner = self._build_runner(self.target)
        self._engine = self._build_engine(max_batch_size, verify_batch_size)
        self._step_lock = threading.Lock()
        self._was_used = False

    @property
    def context_length(self) -> int:
        """Tokens, prompt included, that the target can hold."""
        return self._runner.context_length

    @property
    def vocab_size(self) -> int:
        """Width of the target's logits."""
        return self._runner.vocab_size

    def measure_step_costs(self) -> StepCosts:
        """Time the target's steps, with nothing drafted; before the first request only.

        Raises:
            ParameterError: if there have been requests: their cached tokens would be overwritten.
        """
        with self._step_lock:
            if self._was_used:
                raise ParameterError("step costs can be measured before the first request only")
            return measure_step_costs(self._runner)

    def inference(
        self,
        prompts: Sequence[Prompt] | Prompt,
        sampling: SamplingParams | None = None,
        *,
        logits_processors: Sequence[LogitsProcessor] = (),
        **changes: Any,
    ) -> list[Generation]:
        """Generate to the end.

        Args:
            prompts: one prompt or a list of them.
            sampling: how to sample; the defaults are greedy.
            logits_processors: Hugging Face logits processors, applied at every verified position.
            **changes: fields of `SamplingParams` that differ from `sampling`, e.g. `temperature=0.7`.

        Returns:
            The n samples of each prompt, in order; one prompt gives a list as well.

        Raises:
            ParameterError, PromptError: before anything is generated.
        """
        finished = [
            chunk.generation
            for chunk in self.stream(prompts, sampling, logits_processors=logits_processors, **changes)
            if chunk.generation is not None
        ]
        finished.sort(key=lambda generation: (generation.prompt_index, generation.sample_index))
        return finished

    def stream(
        self,
        prompts: Sequence[Prompt] | Prompt,
        sampling: SamplingParams | None = None,
        *,
        logits_processors: Sequence[LogitsProcessor] = (),
        cancel: threading.Event | None = None,
        **changes: Any,
    ) -> Generator[GenerationChunk, None, None]:
        """As `inference`, but text comes in chunks as it becomes certain.

        The concatenated chunks of a sample are exactly its text. Errors in the request are raised here,
        before the first chunk is asked for. Setting `cancel` ends every sample after the running round and
        still delivers it, with finish_reason "cancelled"; closing the iterator ends them silently.
        """
        params = sampling or SamplingParams()
        if changes:
            params = params.replace(**changes)
        samples = self._samples(_as_list(prompts), params, logits_processors)
        return self._chunks(samples, cancel or threading.Event())

    async def astream(
        self,
        prompts: Sequence[Prompt] | Prompt,
        sampling: SamplingParams | None = None,
        *,
        logits_processors: Sequence[LogitsProcessor] = (),
        **changes: Any,
    ) -> AsyncIterator[GenerationChunk]:
        """`stream` for asyncio: rounds run in a worker thread, the event loop stays free."""
        chunks = self.stream(prompts, sampling, logits_processors=logits_processors, **changes)
        # A cancelled task leaves its worker inside the round; closing has to wait for it.
        busy = threading.Lock()

        def advance() -> GenerationChunk | None:
            with busy:
                return next(chunks, None)

        def close() -> None:
            with busy:
                chunks.close()

        try:
            while (chunk := await asyncio.to_thread(advance)) is not None:
                yield chunk
        finally:
            await asyncio.shield(asyncio.to_thread(close))

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt."""
        if not isinstance(prompt, str):
            items = list(prompt)
            if items and all(isinstance(item, int) and not isinstance(item, bool) for item in items):
                return items  # pyright: ignore[reportReturnType]
            if not items:
                raise PromptError("the prompt is empty; give a text, token ids or chat messages")
            if not all(isinstance(item, Mapping) for item in items):
                raise PromptError("a prompt must be a text, a list of token ids or a list of chat messages")
        if self.tokenizer is None:
            raise PromptError("this model has no tokenizer; give the prompt as token ids")
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        return self.tokenizer.encode_chat(prompt)  # pyright: ignore[reportArgumentType]

    def _load(self, source: ModelSource, tokenizer: PreTrainedTokenizerBase | None = None) -> LoadedModel:
        if isinstance(source, LoadedModel):
            return source
        if isinstance(source, PreTrainedModel):
            return loaded_from(source, tokenizer)
        return load_model(source, **self._load_options)

    def _build_runner(self, loaded: LoadedModel) -> ModelRunner:
        runner: ModelRunner
        if self._runner_name == "fast":
            # OpenVINO is an optional extra; the import says so where it is missing.
            from foredraft.execution.openvino import OpenVinoRunner

            runner = OpenVinoRunner.from_model(loaded.model, context_length=loaded.context_length)
        else:
            runner = ReferenceRunner(loaded.model, context_length=loaded.context_length)
        check_rollback(runner, loaded.model)
        return runner

    def _build_engine(self, max_batch_size: int, verify_batch_size: int) -> Engine:
        return Engine(
            self._runner,
            controller=FixedDraftLength(0),
            max_batch_size=max_batch_size,
            verify_batch_size=verify_batch_size,
        )

    def _samples(
        self, prompts: list[Prompt], params: SamplingParams, processors: Sequence[LogitsProcessor]
    ) -> list[_Sample]:
        """The samples asked for, checked but not yet queued."""
        if params.stop and self.tokenizer is None:
            raise ParameterError("stop strings need a tokenizer; use stop_token_ids for this model")
        samples: list[_Sample] = []
        for prompt_index, prompt in enumerate(prompts):
            try:
                tokens = self.encode(prompt)
                self._engine.check_prompt(tokens)
            except PromptError as error:
                if len(prompts) == 1:
                    raise
                raise PromptError(f"prompt {prompt_index + 1} of {len(prompts)}: {error}") from None
            for sample_index in range(params.n):
                text = TextStream(self.tokenizer, params.stop) if self.tokenizer is not None else None
                request = Request(
                    tokens, params, self.target.eos_token_ids, sample_index, tuple(processors), text
                )
                samples.append(_Sample(request, text, prompt_index, sample_index))
        return samples

    def _chunks(
        self, samples: list[_Sample], cancel: threading.Event
    ) -> Generator[GenerationChunk, None, None]:
        with self._step_lock:
            self._was_used = True
            for sample in samples:
                sample.sequence = self._engine.add(sample.request)
        unfinished = samples
        try:
            while unfinished:
                with self._step_lock:
                    if cancel.is_set():
                        for sample in unfinished:
                            self._engine.cancel(sample.sequence)
                    # Another thread's step may have moved our samples on; then there is news already.
                    if not any(sample.has_news for sample in unfinished):
                        self._engine.step()
                for sample in unfinished:
                    chunk = sample.take()
                    if chunk is not None:
                        yield chunk
                unfinished = [sample for sample in unfinished if not sample.is_done]
        finally:
            with self._step_lock:
                for sample in unfinished:
                    self._engine.cancel(sample.sequence)


class SpeculativeInferencer(Inferencer):
    """Generates the target's text faster by drafting tokens and verifying them in one forward.

    Args:
        target: the model whose distribution the text has.
        draft: a smaller model with the same tokenizer; without one, n-gram lookup drafts.
        drafter: a `DrafterName`; "auto" is the draft if given, else n-gram lookup.
        num_draft_tokens: tokens drafted a round (gamma), or "auto" to decide from measured costs.
        rule: verification rule for sampled drafts: "token", "block" or "seed-exact".
        **options: as for `Inferencer`.

    Raises:
        IncompatibleDraftError: if the draft's tokens are not the target's.
    """

    def __init__(
        self,
        target: ModelSource = "smollm2",
        draft: ModelSource | None = None,
        *,
        drafter: DrafterName = "auto",
        num_draft_tokens: int | Literal["auto"] = "auto",
        rule: RuleName = "token",
        **options: Any,
    ) -> None:
        self.speculation = SpeculationConfig(drafter=drafter, num_draft_tokens=num_draft_tokens, rule=rule)
        if drafter == "model" and draft is None:
            raise ParameterError('drafter="model" needs a draft model; name one with draft (--draft)')
        if draft is not None and drafter not in ("auto", "model"):
            raise ParameterError(f'a draft model was given, but drafter="{drafter}" does not use it')
        self._draft_source = draft
        self.draft: LoadedModel | None = None
        super().__init__(target, **options)

    @property
    def drafter_name(self) -> str:
        """The drafter in use, "none" for plain decoding."""
        if self.speculation.drafter != "auto":
            return self.speculation.drafter
        return "model" if self.draft is not None else "ngram"

    def _build_engine(self, max_batch_size: int, verify_batch_size: int) -> Engine:
        drafter = self._build_drafter()
        return Engine(
            self._runner,
            drafter=drafter,
            controller=self._build_controller(),
            rule=REJECTION_RULES.get(self.speculation.rule),
            max_batch_size=max_batch_size,
            verify_batch_size=verify_batch_size,
        )

    def _build_controller(self) -> DraftLengthController:
        length = self.speculation.num_draft_tokens
        if length != "auto" or self.drafter_name == "none":
            return FixedDraftLength(0 if length == "auto" else length)
        return AdaptiveDraftLength(measure_step_costs(self._runner))

    def _build_drafter(self) -> Drafter | None:
        if self._draft_source is not None:
            self.draft = self._load_draft(self._draft_source)
        vocab_size = self._runner.vocab_size
        lookup: dict[str, Any] = {"end_token_ids": self.target.eos_token_ids, "vocab_size": vocab_size}
        match self.drafter_name:
            case "model" if self.draft is not None:
                coupled = self.speculation.rule == "seed-exact"
                return ModelDrafter(self._build_runner(self.draft), vocab_size=vocab_size, coupled=coupled)
            case "ngram":
                return NgramDrafter(**lookup)
            case "suffix":
                return SuffixAutomatonDrafter(**lookup)
            case "suffix-index":
                return SuffixIndexDrafter(SuffixIndex(), **lookup)
            case _:
                return None

    def _load_draft(self, source: ModelSource) -> LoadedModel:
        draft = self._load(source)
        if draft.tokenizer is not None and self.tokenizer is not None:
            own = TextTokenizer(draft.tokenizer)
            if not self.tokenizer.same_vocabulary(own):
                raise IncompatibleDraftError(
                    f"draft {draft.name!r} and target {self.target.name!r} have different tokenizers "
                    f"({self.tokenizer.describe_difference(own)}); choose a draft of the target's family"
                )
        ours, theirs = self.target.model.num_parameters(), draft.model.num_parameters()
        if theirs >= ours:
            logger.warning(
                "the draft has %d parameters, the target %d: drafting will cost more than it saves",
                theirs,
                ours,
            )
        return draft


class _Sample:
    """One sequence as its caller sees it: what was handed out and what is new."""

    sequence: EngineSequence

    def __init__(
        self, request: Request, text: TextStream | None, prompt_index: int, sample_index: int
    ) -> None:
        self.request = request
        self._text = text
        self._prompt_index = prompt_index
        self._sample_index = sample_index
        self._tokens_taken = 0
        self.is_done = False

    @property
    def has_news(self) -> bool:
        new = len(self.sequence.tokens) - self.sequence.prompt_length
        return self.sequence.is_finished or new > self._tokens_taken

    def take(self) -> GenerationChunk | None:
        """What became certain since the last call; None if nothing did."""
        finished = self.sequence.is_finished
        token_ids = tuple(self.sequence.new_tokens[self._tokens_taken :])
        if not token_ids and not finished:
            return None
        self._tokens_taken += len(token_ids)
        text = ""
        if self._text is not None:
            text = self._text.finish() if finished else self._text.take()
        self.is_done = finished
        generation = self._generation() if finished else None
        return GenerationChunk(text, token_ids, self._prompt_index, self._sample_index, generation)

    def _generation(self) -> Generation:
        sequence = self.sequence
        reason = sequence.finish_reason
        assert reason is not None, "only finished samples become generations"
        if reason == "length" and self._text is not None and self._text.stopped:
            # Text held back for an incomplete character can complete a stop string at the very end.
            reason = "stop"
        wants_logprobs = sequence.params.logprobs is not None
        return Generation(
            text=self._text.text if self._text is not None else "",
            token_ids=tuple(sequence.new_tokens),
            prompt_token_ids=tuple(sequence.request.prompt),
            finish_reason=reason,
            stats=sequence.stats,
            prompt_index=self._prompt_index,
            sample_index=self._sample_index,
            logprobs=tuple(sequence.logprobs) if wants_logprobs else None,
            error=str(sequence.error) if sequence.error is not None else None,
        )


def _as_list(prompts: Sequence[Prompt] | Prompt) -> list[Prompt]:
    """A list of prompts, from one prompt or several."""
    if isinstance(prompts, str):
        return [prompts]
    items: list[Any] = list(prompts)
    if not items:
        raise PromptError("no prompt was given; give at least one")
    if isinstance(items[0], (int, Mapping)):
        return [items]
    return items
