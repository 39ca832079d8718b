"""What `foredraft bench step` times: one forward over a few new tokens behind a cached context."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import DynamicCache

from foredraft.bench.limits import MachineLimits, measure_limits
from foredraft.errors import ForedraftError
from foredraft.execution import ModelRunner, ReferenceRunner, RowInput
from foredraft.models import LoadedModel, load_model

PREFILL_TOKENS = 512


@dataclass(frozen=True)
class StepSettings:
    """The model, at one precision of its weights."""

    target: str
    dtype: str
    load_options: Mapping[str, Any] = field(default_factory=dict[str, Any])


class StepTimer(Protocol):
    """One engine at one precision."""

    def prepare(self, batch: int, context: int) -> None:
        """Cache `context` tokens in each of `batch` rows."""
        ...

    def time(self, tokens: int) -> float:
        """Seconds of one forward over `tokens` new tokens of each row, with logits for all of them; the
        cache is then as before."""
        ...


class RunnerTimer:
    """Times a `ModelRunner`."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._batch = 0
        self._context = 0

    def prepare(self, batch: int, context: int) -> None:
        """See `StepTimer.prepare`."""
        self._batch, self._context = batch, context
        tokens = _tokens(context, self._runner.vocab_size)
        self._runner.reserve(batch, context + 64)
        for row in range(batch):
            self._runner.truncate(row, 0)
            for start in range(0, context, PREFILL_TOKENS):
                self._runner.step([RowInput(row, tokens[start : start + PREFILL_TOKENS], 0)])

    def time(self, tokens: int) -> float:
        """See `StepTimer.time`."""
        fed = _tokens(tokens, self._runner.vocab_size)
        inputs = [RowInput(row, fed, tokens) for row in range(self._batch)]
        started = time.perf_counter()
        self._runner.step(inputs)
        _synchronise(self._runner.device)
        seconds = time.perf_counter() - started
        for row in range(self._batch):
            self._runner.truncate(row, self._context)
        return seconds


class TransformersTimer:
    """Times the model's own forward with transformers' own cache, nothing compiled."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._model: Any = loaded.model
        self._device = loaded.device
        self._vocab_size = int(self._model.get_input_embeddings().weight.shape[0])
        self._cache: Any = None
        self._batch = 0
        self._context = 0

    @torch.inference_mode()
    def prepare(self, batch: int, context: int) -> None:
        """See `StepTimer.prepare`."""
        self._batch, self._context = batch, context
        self._cache = DynamicCache()
        tokens = _tokens(context, self._vocab_size)
        for start in range(0, context, PREFILL_TOKENS):
            self._forward(tokens[start : start + PREFILL_TOKENS])

    @torch.inference_mode()
    def time(self, tokens: int) -> float:
        """See `StepTimer.time`."""
        fed = _tokens(tokens, self._vocab_size)
        started = time.perf_counter()
        self._forward(fed)
        _synchronise(self._device)
        seconds = time.perf_counter() - started
        self._cache.crop(-tokens)
        return seconds

    def _forward(self, tokens: Sequence[int]) -> None:
        batch = torch.tensor([tokens], device=self._device).expand(self._batch, -1)
        # The name of the argument changed during the transformers 5 series; the position did not matter.
        self._model(input_ids=batch, use_cache=True, **{_cache_argument(self._model): self._cache})


class TorchStepEngines:
    """foredraft's reference runner and transformers, over the same weights in one process."""

    def __init__(self, settings: StepSettings) -> None:
        loaded = load_model(settings.target, dtype=settings.dtype, **settings.load_options)
        self._loaded = loaded
        runner = ReferenceRunner(loaded.model, context_length=loaded.context_length)
        self._timers: dict[str, StepTimer] = {
            "foredraft-reference": RunnerTimer(runner),
            "transformers": TransformersTimer(loaded),
        }

    def engines(self) -> Sequence[str]:
        """Names of what can be timed here."""
        return list(self._timers)

    def parameters(self) -> int:
        """Weights that a step reads: tied ones once, and an embedding that is only looked up not at all."""
        model: Any = self._loaded.model
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        tied = head is not None and head.weight is embedding.weight
        return model.num_parameters() - (0 if tied else embedding.weight.numel())

    def context_length(self) -> int:
        """Tokens that a row may hold."""
        return self._loaded.context_length

    def limits(self) -> MachineLimits:
        """What the device can do at most."""
        return measure_limits(str(self._loaded.device))

    def prepare(self, engine: str, batch: int, context: int) -> None:
        """See `StepTimer.prepare`."""
        self._timers[engine].prepare(batch, context)

    def time(self, engine: str, tokens: int) -> float:
        """See `StepTimer.time`."""
        return self._timers[engine].time(tokens)


class OpenVinoStepEngine:
    """foredraft's fast CPU runner at one precision; `StepSettings.dtype` is the runner's precision.

    Raises:
        ForedraftError: if OpenVINO is not installed, or cannot run the model.
    """

    NAME = "foredraft-openvino"

    def __init__(self, settings: StepSettings) -> None:
        try:
            from foredraft.execution.openvino import OpenVinoRunner
        except ImportError as error:
            raise ForedraftError(f"the fast CPU runner cannot be imported: {error}") from None
        loaded = load_model(settings.target, dtype="float32", **settings.load_options)
        precision: Any = _OPENVINO_PRECISION.get(settings.dtype, settings.dtype)
        self._runner = OpenVinoRunner.from_model(
            loaded.model, precision=precision, context_length=loaded.context_length
        )
        self._timer = RunnerTimer(self._runner)

    def engines(self) -> Sequence[str]:
        """Names of what can be timed here."""
        return [self.NAME]

    def prepare(self, engine: str, batch: int, context: int) -> None:
        """See `StepTimer.prepare`."""
        self._timer.prepare(batch, context)

    def time(self, engine: str, tokens: int) -> float:
        """See `StepTimer.time`."""
        return self._timer.time(tokens)


_OPENVINO_PRECISION = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def _tokens(count: int, vocab_size: int) -> list[int]:
    """Token ids that differ from each other, the same ones every time."""
    return [(7919 * index + 13) % vocab_size for index in range(count)]


def _cache_argument(model: Any) -> str:
    import inspect

    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
