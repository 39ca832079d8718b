"""foredraft itself, with every drafter that the models given allow."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from foredraft.bench.engines.base import PLAIN, EngineAbsentError, EngineSettings, Request, Run
from foredraft.bench.host import forget_peak_memory, peak_memory
from foredraft.errors import ForedraftError
from foredraft.inferencer import GenerationChunk, SpeculativeInferencer
from foredraft.models import load_model
from foredraft.params import DrafterName, RuleName, SamplingParams

SEED_EXACT = "seed-exact"


class ForedraftEngine:
    """One inferencer for each drafter, over the same loaded models.

    Drafters are those that `SpeculationConfig` knows; whichever cannot be built with the models given is
    listed as absent with the reason. Sampled runs have "model/seed-exact" besides.
    """

    def __init__(self, settings: EngineSettings) -> None:
        options = self._options(settings)
        loading = {name: options[name] for name in _LOADING if name in options}
        target = load_model(settings.target, **loading)
        draft = load_model(settings.draft, **loading) if settings.draft is not None else None
        self._inferencers: dict[str, SpeculativeInferencer] = {}
        self._absent: dict[str, str] = {}
        for name, drafter, rule in _variants(settings.temperature):
            try:
                self._inferencers[name] = SpeculativeInferencer(
                    target,
                    draft if drafter == "model" else None,
                    drafter=drafter,
                    num_draft_tokens=settings.num_draft_tokens,
                    rule=rule,
                    **options,
                )
            except ForedraftError as error:
                if drafter == PLAIN:
                    raise
                self._absent[name] = str(error)
        runner: Any = self._inferencers[PLAIN]._runner  # pyright: ignore[reportPrivateUsage]
        # A runner that quantises says so; others compute in the model's own dtype.
        self._dtype = str(getattr(runner, "precision", target.dtype)).removeprefix("torch.")
        self._end_token_ids = target.eos_token_ids

    def _options(self, settings: EngineSettings) -> dict[str, Any]:
        """Keyword arguments of the inferencers."""
        return dict(settings.load_options)

    def drafters(self) -> Sequence[str]:
        """See `BenchEngine.drafters`."""
        return list(self._inferencers)

    def absent(self) -> Mapping[str, str]:
        """See `BenchEngine.absent`."""
        return self._absent

    def dtype(self) -> str:
        """See `BenchEngine.dtype`."""
        return self._dtype

    def end_token_ids(self) -> tuple[int, ...]:
        """Ids that end a text."""
        return self._end_token_ids

    def context_length(self) -> int:
        """Tokens that the target holds."""
        return self._inferencers[PLAIN].context_length

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a user's message, in the chat template where the model has one."""
        inferencer = self._inferencers[PLAIN]
        tokenizer = inferencer.tokenizer
        if tokenizer is not None and tokenizer.has_chat_template:
            return tuple(inferencer.encode([{"role": "user", "content": text}]))
        return tuple(inferencer.encode(text))

    def run(self, drafter: str, request: Request) -> Run:
        """See `BenchEngine.run`."""
        inferencer = self._inferencers[drafter]
        _forget_prompts(inferencer, request.prompt)
        forget_peak_memory()
        sampling = SamplingParams(
            temperature=request.temperature,
            seed=request.seed,
            max_new_tokens=request.max_new_tokens,
            stop_token_ids=request.end_token_ids,
        )
        started = time.perf_counter()
        first: float | None = None
        last: GenerationChunk | None = None
        for chunk in inferencer.stream([list(request.prompt)], sampling):
            if first is None and chunk.token_ids:
                first = time.perf_counter() - started
            last = chunk
        seconds = time.perf_counter() - started
        assert last is not None and last.generation is not None, "a stream ends with the whole sample"
        generation = last.generation
        if generation.error is not None:
            raise EngineAbsentError(f"generation failed: {generation.error}")
        stats = generation.stats
        return Run(
            token_ids=generation.token_ids,
            seconds=seconds,
            first_token_seconds=first,
            draft_seconds=stats.draft_seconds,
            target_seconds=stats.prefill_seconds + stats.target_seconds,
            target_steps=stats.target_steps,
            drafted=stats.drafted,
            accepted=stats.accepted,
            drafted_per_position=tuple(stats.drafted_per_position),
            accepted_per_position=tuple(stats.accepted_per_position),
            peak_memory=peak_memory(),
        )


class FastForedraftEngine(ForedraftEngine):
    """The same on the fast CPU runner, where that is not what was asked for anyway."""

    def __init__(self, settings: EngineSettings) -> None:
        if settings.load_options.get("runner") == "fast":
            raise EngineAbsentError("the engine foredraft runs this runner already")
        try:
            super().__init__(settings)
        except ForedraftError as error:
            raise EngineAbsentError(str(error)) from None

    def _options(self, settings: EngineSettings) -> dict[str, Any]:
        return {**settings.load_options, "runner": "fast"}


_LOADING = ("dtype", "device", "attention", "trust_remote_code")


def _variants(temperature: float) -> list[tuple[str, DrafterName, RuleName]]:
    """Name, drafter and rule of everything to be tried, plain decoding first."""
    drafters: list[Any] = sorted(set(get_args(DrafterName)) - {"auto"}, key=lambda name: name != PLAIN)
    variants: list[tuple[str, DrafterName, RuleName]] = [(name, name, "token") for name in drafters]
    if temperature > 0:
        # Greedy, the rule makes no difference.
        variants.append((f"model/{SEED_EXACT}", "model", SEED_EXACT))
    return variants


def _forget_prompts(inferencer: SpeculativeInferencer, prompt: Sequence[int]) -> None:
    """Take the cache rows for something else: a prompt seen before would cost no prefill."""
    other = next(token for token in range(inferencer.vocab_size) if token != prompt[0])
    inferencer.inference([[other, other]], max_new_tokens=1, ignore_eos=True)
