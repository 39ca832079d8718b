"""The interleaved run: order, absent engines, the budget of time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tiny import FakeClock, ScriptedEngine

from foredraft.bench.engines import EngineAbsentError, EngineSettings
from foredraft.bench.generate import GenerateOptions, GenerateResult, bench_generate
from foredraft.bench.host import LocalHost
from foredraft.bench.tasks import Task, load_tasks
from foredraft.errors import ExecutionError, ParameterError

SETTINGS = EngineSettings("anything")
TASKS = [Task("chat", "one two three"), Task("math", "four five")]


class _Stage:
    """Opens scripted engines instead of real ones."""

    def __init__(self, **engines: ScriptedEngine | Exception) -> None:
        self.engines = engines
        self.closed: list[str] = []

    def __call__(self, factory: Any, name: str, settings: Any, timeout: float | None = None) -> Any:
        engine = self.engines[name.replace(".", "_")]
        if isinstance(engine, Exception):
            raise engine
        stage = self

        class Host(LocalHost):
            def call(self, method: str, *arguments: Any, timeout: float | None = None) -> Any:
                try:
                    return super().call(method, *arguments)
                except RuntimeError as error:
                    raise ExecutionError(str(error)) from None

            def close(self) -> None:
                stage.closed.append(name)

        return Host(lambda: engine)


def _bench(stage: _Stage, clock: FakeClock, **options: Any) -> GenerateResult:
    chosen = {"tasks": TASKS, "engines": ["foredraft", "transformers"], "repeats": 2, **options}
    return bench_generate(SETTINGS, GenerateOptions(**chosen), open_host=stage, clock=clock)


def test_engines_are_interleaved():
    """Engines that run one after another are compared across the drift of the machine."""
    clock = FakeClock()
    stage = _Stage(foredraft=ScriptedEngine(clock, 1.0), transformers=ScriptedEngine(clock, 2.0))
    result = _bench(stage, clock)
    assert len(result.measurements) == 2 * 2 * 4 and result.complete
    for start in range(0, 16, 4):
        block = result.measurements[start : start + 4]
        assert len({entry.contestant for entry in block}) == 4
        assert len({(entry.task, entry.repeat) for entry in block}) == 1
    firsts = {result.measurements[start].contestant for start in range(0, 16, 4)}
    assert len(firsts) == 4, "everybody begins once"
    assert stage.closed == ["foredraft", "transformers"]


def test_every_engine_gets_the_same_tokens():
    """Engines that read different prompts, seeds or ends cannot be compared."""
    clock = FakeClock()
    own, other = ScriptedEngine(clock, 1.0), ScriptedEngine(clock, 1.0)
    _bench(_Stage(foredraft=own, transformers=other), clock, max_new_tokens=5)
    assert Counter(own.requests) == Counter(other.requests)
    assert {request.prompt for request in own.requests} == {(1, 2, 3), (1, 2)}
    assert all(request.end_token_ids == (0,) for request in own.requests)


def test_long_prompts_are_cut_to_the_context():
    """A target with a short context would refuse the prompt and end the whole benchmark."""
    clock = FakeClock()
    own = ScriptedEngine(clock, 1.0)
    _bench(_Stage(foredraft=own), clock, tasks=[Task("chat", "word " * 300)], engines=[], max_new_tokens=40)
    assert own.requests[-1].prompt == tuple(range(241, 301))


def test_absent_engines_say_why():
    """A table without an engine and without a reason looks like a choice."""
    clock = FakeClock()
    absent = EngineAbsentError("it is not installed")
    result = _bench(_Stage(foredraft=ScriptedEngine(clock, 1.0), transformers=absent), clock)
    assert result.absent["transformers"] == "it is not installed"
    assert result.absent["foredraft model"] == "no draft model was given"
    assert {str(contestant) for contestant in result.contestants} == {"foredraft", "foredraft ngram"}


def test_a_failing_engine_drops_out_and_the_rest_goes_on():
    """One engine's crash must not cost the measurements of all others."""
    clock = FakeClock()
    stage = _Stage(foredraft=ScriptedEngine(clock, 1.0), transformers=ScriptedEngine(clock, 1.0, fails=True))
    result = _bench(stage, clock)
    counts = Counter(entry.contestant.engine for entry in result.measurements)
    assert counts == {"foredraft": 8}
    assert "out of luck" in result.absent["transformers"]
    assert "out of luck" in result.absent["transformers ngram"]


def test_foredraft_itself_must_run():
    """A benchmark without its subject would exit with success."""
    clock = FakeClock()
    with pytest.raises(EngineAbsentError, match="broken"):
        _bench(_Stage(foredraft=EngineAbsentError("broken")), clock)


@pytest.mark.parametrize("seconds", [0.1, 3.0, 11.0, 40.0])
def test_the_budget_is_kept(seconds: float):
    """--quick would not end in time on a slow machine."""
    clock = FakeClock()
    stage = _Stage(foredraft=ScriptedEngine(clock, seconds), transformers=ScriptedEngine(clock, seconds))
    result = _bench(stage, clock, tasks=load_tasks(per_kind=8), repeats=1, budget_seconds=100.0)
    # A first run of unknown length is all that may overshoot, and its own process is stopped then.
    assert clock.now <= 100.0 + (seconds if seconds > 25 else 0)
    assert result.complete == (seconds == 0.1)
    assert stage.closed == ["foredraft", "transformers"]


def test_a_budget_without_results_is_an_error():
    """An empty table with success as exit code looks like a result."""
    clock = FakeClock()
    with pytest.raises(ExecutionError, match="time-limit"):
        _bench(_Stage(foredraft=ScriptedEngine(clock, 30.0)), clock, engines=[], budget_seconds=20.0)


def test_what_was_measured_before_the_end_is_spread_over_kinds():
    """A quick look should see every kind it had time for, with all engines side by side."""
    clock = FakeClock()
    stage = _Stage(foredraft=ScriptedEngine(clock, 1.0), transformers=ScriptedEngine(clock, 1.0))
    result = _bench(stage, clock, tasks=load_tasks(), repeats=1, budget_seconds=40.0)
    assert len({entry.task.kind for entry in result.measurements}) == 7


@pytest.mark.parametrize(
    "wrong", [{"repeats": 0}, {"max_new_tokens": 0}, {"engines": ["gpt"]}, {"tasks": []}]
)
def test_wrong_options_are_refused_at_once(wrong):
    """Models would be loaded for minutes before the mistake is noticed."""
    clock = FakeClock()
    with pytest.raises(ParameterError):
        _bench(_Stage(), clock, **wrong)
