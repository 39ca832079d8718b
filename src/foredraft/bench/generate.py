"""`bench_generate`: engines side by side, one prompt after another, interleaved in one run.

Between two runs of one engine all the others run, so that a machine that slows down slows everybody. A
budget of time ends the measurement early, never in the middle of a generation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from foredraft.bench.engines import (
    ENGINES,
    PLAIN,
    EngineSettings,
    Request,
    Run,
    open_engine,
)
from foredraft.bench.host import Host, ProcessHost
from foredraft.bench.tasks import Task
from foredraft.errors import ExecutionError, ForedraftError, ParameterError

OWN = "foredraft"
WARM_UP_TOKENS = 8
OPENING_SHARE = 0.4
OpenHost = Callable[..., Host]


@dataclass(frozen=True)
class GenerateOptions:
    """What is generated."""

    tasks: Sequence[Task]
    engines: Sequence[str] = ENGINES
    repeats: int = 3
    max_new_tokens: int = 128
    seed: int = 0
    budget_seconds: float | None = None
    """No generation starts that would not, by what was seen so far, end within this time; None is no end."""


@dataclass(frozen=True)
class Contestant:
    """One engine with one drafter."""

    engine: str
    drafter: str

    def __str__(self) -> str:
        return self.engine if self.drafter == PLAIN else f"{self.engine} {self.drafter}"


@dataclass(frozen=True)
class Measurement:
    """One run of one contestant."""

    contestant: Contestant
    task: Task
    repeat: int
    run: Run


@dataclass
class GenerateResult:
    """Everything that `bench_generate` saw."""

    contestants: list[Contestant]
    dtypes: dict[str, str]
    absent: dict[str, str]
    """Why an engine, or an engine with a drafter, is not among the contestants."""
    measurements: list[Measurement] = field(default_factory=list[Measurement])
    complete: bool = True
    """False if the time was up before everything had run."""
    temperature: float = 0.0


class Deadline:
    """Says when to stop."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = seconds
        self._end = None if seconds is None else clock() + seconds
        self._longest: dict[Contestant, float] = {}

    @property
    def left(self) -> float | None:
        """Seconds until the end; None where there is none."""
        return None if self._end is None else max(0.0, self._end - self._clock())

    @property
    def is_early(self) -> bool:
        """Whether more than half of the time is left."""
        return self.left is None or self._seconds is None or self.left > self._seconds / 2

    def allows(self, contestant: Contestant) -> bool:
        """Whether one more run of it is likely to end in time."""
        expected = self._longest.get(contestant, max(self._longest.values(), default=0.0))
        return self.left is None or self.left > expected

    @contextmanager
    def watch(self, contestant: Contestant) -> Generator[None]:
        """Remember how long its longest run took, the way to its process and back included."""
        started = self._clock()
        yield
        seconds = self._clock() - started
        self._longest[contestant] = max(seconds, self._longest.get(contestant, 0.0))


class _Field:
    """The engines that were opened, and those that dropped out."""

    def __init__(self, open_host: OpenHost, deadline: Deadline) -> None:
        self._open_host = open_host
        self._deadline = deadline
        self.hosts: dict[str, Host] = {}
        self.contestants: list[Contestant] = []
        self.dtypes: dict[str, str] = {}
        self.absent: dict[str, str] = {}

    def open(self, name: str, settings: EngineSettings) -> None:
        left = self._deadline.left
        # What others need to open must leave time to measure something.
        limit = left if left is None or name == OWN else left * OPENING_SHARE
        try:
            host = self._open_host(open_engine, name, settings, timeout=limit)
        except ForedraftError as error:
            if name == OWN:
                raise
            self.absent[name] = str(error)
            return
        self.hosts[name] = host
        self.contestants += [Contestant(name, drafter) for drafter in host.call("drafters")]
        self.absent |= {str(Contestant(name, drafter)): why for drafter, why in host.call("absent").items()}
        self.dtypes[name] = host.call("dtype")

    def run(self, contestant: Contestant, request: Request) -> Run | None:
        """None if the engine failed; it is then left out of the rest."""
        host = self.hosts[contestant.engine]
        try:
            return host.call("run", contestant.drafter, request, timeout=self._deadline.left)
        except ForedraftError as error:
            self.contestants.remove(contestant)
            self.absent[str(contestant)] = f"dropped out: {error}"
            return None

    def close(self) -> None:
        for host in self.hosts.values():
            host.close()


def bench_generate(
    settings: EngineSettings,
    options: GenerateOptions,
    *,
    open_host: OpenHost = ProcessHost,
    clock: Callable[[], float] = time.monotonic,
    on_progress: Callable[[str], None] = lambda text: None,
) -> GenerateResult:
    """Generate every task with every engine, `repeats` times.

    Args:
        settings: models and how to load them.
        options: what to generate, and for how long.
        open_host: where engines live; `LocalHost` keeps them in this process.
        clock: seconds, for the budget; another one in tests.
        on_progress: told in one line what comes next.

    Raises:
        ForedraftError: if foredraft itself cannot run the models. Others that cannot are listed as absent.
        ExecutionError: if the time was up before anything was measured.
        ParameterError: for an unknown engine or a number out of range.
    """
    _check(options)
    deadline = Deadline(options.budget_seconds, clock)
    lineup = _Field(open_host, deadline)
    try:
        for name in dict.fromkeys([OWN, *options.engines]):
            on_progress(f"opening {name}")
            lineup.open(name, settings)
        requests = _requests(lineup.hosts[OWN], settings, options)
        result = GenerateResult(
            lineup.contestants, lineup.dtypes, lineup.absent, temperature=settings.temperature
        )
        _warm_up(lineup, requests[0], deadline, on_progress)
        _measure(lineup, requests, options, deadline, result, on_progress)
    finally:
        lineup.close()
    if not result.measurements:
        raise ExecutionError(
            f"nothing could be measured in {options.budget_seconds:g} s; allow more with --time-limit"
            if options.budget_seconds is not None
            else f"nothing could be measured: {'; '.join(result.absent.values())}"
        )
    return result


def _warm_up(
    lineup: _Field, request: Request, deadline: Deadline, on_progress: Callable[[str], None]
) -> None:
    on_progress("warming up")
    short = Request(
        request.prompt, min(WARM_UP_TOKENS, request.max_new_tokens), request.temperature, request.seed,
        request.end_token_ids,
    )  # fmt: skip
    for contestant in list(lineup.contestants):
        if deadline.is_early:
            lineup.run(contestant, short)


def _measure(
    lineup: _Field,
    requests: Sequence[Request],
    options: GenerateOptions,
    deadline: Deadline,
    result: GenerateResult,
    on_progress: Callable[[str], None],
) -> None:
    total = options.repeats * len(requests)
    for number in range(total):
        repeat, index = divmod(number, len(requests))
        task = options.tasks[index]
        on_progress(f"{number + 1}/{total} {task.kind}")
        # Whoever always ran behind the same neighbour would always find its caches.
        turn = number % max(1, len(lineup.contestants))
        for contestant in [*lineup.contestants[turn:], *lineup.contestants[:turn]]:
            if contestant not in lineup.contestants:
                continue
            if not deadline.allows(contestant):
                result.complete = False
                return
            with deadline.watch(contestant):
                run = lineup.run(contestant, requests[index])
            if run is not None:
                result.measurements.append(Measurement(contestant, task, repeat, run))


def _requests(own: Host, settings: EngineSettings, options: GenerateOptions) -> list[Request]:
    """The prompts in the target's tokens, the same for every engine and repeat."""
    end_token_ids: tuple[int, ...] = own.call("end_token_ids")
    context: int = own.call("context_length")
    requests: list[Request] = []
    for index, task in enumerate(options.tasks):
        prompt: tuple[int, ...] = own.call("encode", task.prompt)
        # A target with a short context gets the end of a long prompt rather than none.
        room = max(1, context - options.max_new_tokens)
        requests.append(
            Request(
                prompt[-room:], options.max_new_tokens, settings.temperature, options.seed + index,
                end_token_ids,
            )
        )  # fmt: skip
    return requests


def _check(options: GenerateOptions) -> None:
    numbers: dict[str, Any] = {"repeats": options.repeats, "max_new_tokens": options.max_new_tokens}
    for name, value in numbers.items():
        if value < 1:
            raise ParameterError(f"{name} must be at least 1 (got {value})")
    for name in options.engines:
        if name not in ENGINES:
            raise ParameterError(f"engines: must be among {', '.join(ENGINES)} (got {name!r})")
    if not options.tasks:
        raise ParameterError("no prompt was given; give at least one")
