"""`bench_step`: what one forward over T tokens costs, in interleaved rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from foredraft.bench.host import Host, ProcessHost
from foredraft.bench.limits import MachineLimits
from foredraft.bench.step_engines import OpenVinoStepEngine, StepSettings, TorchStepEngines
from foredraft.errors import ForedraftError, ParameterError

TOKENS = (1, 2, 4, 8, 16, 32)
BATCHES = (1, 4, 8)
CONTEXTS = (128,)
TORCH_DTYPES = ("float32", "bfloat16")
FAST_DTYPES = ("bfloat16", "int8")
BYTES_PER_WEIGHT = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0}
WARM_UP_ROUNDS = 1


@dataclass(frozen=True)
class StepOptions:
    """What is timed. Dtypes apply to the engines that know them."""

    tokens: Sequence[int] = TOKENS
    batches: Sequence[int] = BATCHES
    contexts: Sequence[int] = CONTEXTS
    dtypes: Sequence[str] = tuple(dict.fromkeys((*TORCH_DTYPES, *FAST_DTYPES)))
    rounds: int = 10
    budget_seconds: float | None = None
    """No shape is begun after this time."""


@dataclass
class StepResult:
    """Rows of the step-cost table, and what the machine could do at most."""

    target: str
    limits: MachineLimits
    parameters: int
    """Weights that a step reads."""
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    absent: dict[str, str] = field(default_factory=dict[str, str])
    complete: bool = True

    def floors_ms(self) -> dict[str, float]:
        """For each precision the milliseconds to read the weights once: no step can be faster."""
        wanted = dict.fromkeys(row["dtype"] for row in self.rows)
        return {
            dtype: self.limits.step_floor_ms(self.parameters * BYTES_PER_WEIGHT[dtype]) for dtype in wanted
        }


@dataclass(frozen=True)
class _Lane:
    """One engine at one precision."""

    engine: str
    dtype: str
    host: Host


def bench_step(
    target: str,
    options: StepOptions,
    *,
    load_options: dict[str, Any] | None = None,
    open_host: Callable[..., Host] = ProcessHost,
    clock: Callable[[], float] = time.monotonic,
    on_progress: Callable[[str], None] = lambda text: None,
) -> StepResult:
    """Time every shape with every engine, one round of all engines after another.

    Args:
        target: the model; see `load_model`.
        options: the shapes, precisions and rounds.
        load_options: device, attention, trust_remote_code of `load_model`.
        open_host: where engines live.
        clock: seconds, for the budget; another one in tests.
        on_progress: told in one line what comes next.

    Raises:
        ForedraftError: if the model cannot be loaded.
        ParameterError: for shapes out of range.
    """
    _check(options)
    started = clock()
    hosts: list[Host] = []
    lanes: list[_Lane] = []
    absent: dict[str, str] = {}
    try:
        for factory, dtype in _wanted(options.dtypes):
            on_progress(f"opening {factory.__name__} at {dtype}")
            settings = StepSettings(target, dtype, load_options or {})
            try:
                host = open_host(factory, settings)
            except ForedraftError as error:
                if factory is TorchStepEngines:
                    raise
                absent[f"{OpenVinoStepEngine.NAME} {dtype}"] = str(error)
                continue
            hosts.append(host)
            lanes += [_Lane(engine, dtype, host) for engine in host.call("engines")]
        own = hosts[0]
        on_progress("measuring the machine's limits")
        result = StepResult(target, own.call("limits"), own.call("parameters"), absent=absent)
        longest: int = own.call("context_length")
        for batch, context in [(batch, context) for context in options.contexts for batch in options.batches]:
            if context + max(options.tokens) > longest:
                absent[f"context {context}"] = f"the model's context holds {longest} tokens"
                continue
            if options.budget_seconds is not None and clock() - started > options.budget_seconds:
                result.complete = False
                break
            on_progress(f"batch {batch}, context {context}")
            result.rows += _time_shape(lanes, batch, context, options)
    finally:
        for host in hosts:
            host.close()
    return result


def _wanted(dtypes: Sequence[str]) -> list[tuple[Callable[[StepSettings], Any], str]]:
    """PyTorch's engines first: the machine's limits are measured in their process."""
    torch_dtypes = [dtype for dtype in dtypes if dtype in TORCH_DTYPES or dtype == "float16"]
    wanted: list[tuple[Callable[[StepSettings], Any], str]] = [
        (TorchStepEngines, dtype) for dtype in torch_dtypes or TORCH_DTYPES[:1]
    ]
    return wanted + [(OpenVinoStepEngine, dtype) for dtype in dtypes if dtype in FAST_DTYPES]


def _time_shape(
    lanes: Sequence[_Lane], batch: int, context: int, options: StepOptions
) -> list[dict[str, Any]]:
    for lane in lanes:
        lane.host.call("prepare", lane.engine, batch, context)
    seconds: dict[tuple[_Lane, int], list[float]] = {}
    for number in range(WARM_UP_ROUNDS + options.rounds):
        for tokens in options.tokens:
            for lane in lanes:
                taken: float = lane.host.call("time", lane.engine, tokens)
                if number >= WARM_UP_ROUNDS:
                    seconds.setdefault((lane, tokens), []).append(taken)
    return [
        {
            "engine": lane.engine,
            "dtype": lane.dtype,
            "batch": batch,
            "context": context,
            "tokens": tokens,
            "ms_median": 1000 * median(values),
            "ms_min": 1000 * min(values),
            "rounds": len(values),
        }
        for (lane, tokens), values in sorted(
            seconds.items(), key=lambda entry: (lanes.index(entry[0][0]), entry[0][1])
        )
    ]


def _check(options: StepOptions) -> None:
    shapes = {
        "tokens": options.tokens,
        "batch": options.batches,
        "context": options.contexts,
        "rounds": [options.rounds],
    }
    for name, values in shapes.items():
        if not values or min(values) < 1:
            raise ParameterError(f"{name}: must be whole numbers of at least 1 (got {list(values)})")
    for dtype in options.dtypes:
        if dtype not in BYTES_PER_WEIGHT:
            raise ParameterError(f"dtypes: must be among {', '.join(BYTES_PER_WEIGHT)} (got {dtype!r})")
