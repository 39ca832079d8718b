"""The step-cost table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny import FakeClock

from foredraft.bench import step as step_module
from foredraft.bench.host import LocalHost
from foredraft.bench.limits import MachineLimits
from foredraft.bench.step import StepOptions, StepResult, bench_step
from foredraft.bench.step_engines import StepSettings, TorchStepEngines
from foredraft.bench.tables import step_markdown
from foredraft.errors import ForedraftError, ParameterError

LIMITS = MachineLimits(10e9, 100e9, 200e9, 1)


class _Unavailable:
    def __init__(self, settings: StepSettings) -> None:
        raise ForedraftError("OpenVINO is not installed")


@pytest.fixture(autouse=True)
def _no_long_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.bench.step_engines.measure_limits", lambda device: LIMITS)
    monkeypatch.setattr(step_module, "OpenVinoStepEngine", _named(_Unavailable))


def _named(factory: Any) -> Any:
    factory.NAME = "foredraft-openvino"
    return factory


def test_rows_have_the_documented_fields(target_folder: Path):
    """Whoever reads the JSON reads these names, one row for each engine and shape."""
    options = StepOptions(tokens=(1, 8), batches=(1, 2), contexts=(20,), dtypes=("float32", "int8"), rounds=2)
    result = bench_step(str(target_folder), options, open_host=LocalHost)
    wanted = {"engine", "dtype", "batch", "context", "tokens", "ms_median", "ms_min", "rounds"}
    assert all(set(row) == wanted for row in result.rows)
    assert {(row["engine"], row["batch"], row["tokens"]) for row in result.rows} == {
        (engine, batch, tokens)
        for engine in ("foredraft-reference", "transformers")
        for batch in (1, 2)
        for tokens in (1, 8)
    }
    assert len(result.rows) == 8
    assert all(0 < row["ms_min"] <= row["ms_median"] for row in result.rows)
    assert result.absent == {"foredraft-openvino int8": "OpenVINO is not installed"}
    text = step_markdown(result)
    assert "OpenVINO is not installed" in text and "10.0 GB/s" in text and "| T=8" in text


def test_timing_leaves_the_cache_as_it_was(target_folder: Path):
    """A cache that grows with every round would make later rounds dearer."""
    engines = TorchStepEngines(StepSettings(str(target_folder), "float32"))
    for engine in engines.engines():
        engines.prepare(engine, 2, 30)
        for tokens in (1, 8, 8):
            engines.time(engine, tokens)
    assert [engines._timers["foredraft-reference"]._runner.length(row) for row in (0, 1)] == [30, 30]
    assert engines._timers["transformers"]._cache.get_seq_length() == 30


def test_weights_read_leave_out_an_untied_embedding(target_folder: Path):
    """The floor would be too high: a lookup reads one row of the table."""
    engines = TorchStepEngines(StepSettings(str(target_folder), "float32"))
    model = engines._loaded.model
    assert engines.parameters() == model.num_parameters() - model.get_input_embeddings().weight.numel()


def test_contexts_beyond_the_model_are_left_out_visibly(target_folder: Path):
    """A forward beyond the context would crash the whole table."""
    options = StepOptions(tokens=(1,), batches=(1,), contexts=(8, 5000), dtypes=("float32",), rounds=1)
    result = bench_step(str(target_folder), options, open_host=LocalHost)
    assert {row["context"] for row in result.rows} == {8}
    assert "1024" in result.absent["context 5000"]


def test_the_budget_ends_the_table(target_folder: Path):
    """--quick would time every shape however long that takes."""
    clock = FakeClock()

    def progress(text: str) -> None:
        clock.now += 10.0

    options = StepOptions(
        tokens=(1,), batches=(1, 2, 4), contexts=(8,), dtypes=("float32",), rounds=1, budget_seconds=25.0
    )
    result = bench_step(str(target_folder), options, open_host=LocalHost, clock=clock, on_progress=progress)
    assert not result.complete
    assert {row["batch"] for row in result.rows} == {1}


def test_floors_are_for_the_dtypes_timed():
    """A floor of the wrong width is half or twice the truth."""
    rows = [{"dtype": "bfloat16"}, {"dtype": "int8"}]
    assert StepResult("x", LIMITS, 10_000_000, rows).floors_ms() == {"bfloat16": 2.0, "int8": 1.0}


@pytest.mark.parametrize("wrong", [{"tokens": ()}, {"batches": (0,)}, {"rounds": 0}, {"dtypes": ("int3",)}])
def test_wrong_shapes_are_refused_at_once(wrong):
    """Models would be loaded for minutes before the mistake is noticed."""
    with pytest.raises(ParameterError):
        bench_step("nothing", StepOptions(**wrong), open_host=LocalHost)
