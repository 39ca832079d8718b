"""Comparing two results."""

from __future__ import annotations

import json

import pytest

from foredraft.bench.compare import compare, read_rows
from foredraft.errors import ParameterError


def _row(speed: float, *, equal: bool | None = True, drafter: str = "ngram", **fields):
    return {
        "engine": "foredraft", "drafter": drafter, "task": "chat", "temperature": 0.0, "dtype": "float32",
        "tokens_per_second": speed,
        "tokens_per_second_p10": 0.9 * speed, "tokens_per_second_p90": 1.1 * speed,
        "equal_to_plain": equal, "tokens": int(100 * speed), **fields,
    }  # fmt: skip


def _step(ms: float, tokens: int = 8):
    return {
        "engine": "transformers", "dtype": "bfloat16", "batch": 1, "context": 128, "tokens": tokens,
        "ms_median": ms, "ms_min": 0.9 * ms,
    }  # fmt: skip


@pytest.mark.parametrize(("after", "regression"), [(9.5, False), (8.5, True), (20.0, False)])
def test_slower_generation_beyond_the_tolerance_is_a_regression(after: float, regression: bool):
    """The command exists to notice exactly this."""
    (found,) = compare([_row(10.0)], [_row(after)], tolerance=0.1)
    assert found.ratio == pytest.approx(after / 10)
    assert bool(found.reason) is regression
    assert found.low < found.ratio < found.high


@pytest.mark.parametrize(("after", "regression"), [(10.5, False), (12.0, True), (5.0, False)])
def test_longer_steps_are_slower(after: float, regression: bool):
    """Milliseconds rise where tokens per second fall."""
    (found,) = compare([_step(10.0)], [_step(after)], tolerance=0.1)
    assert found.ratio == pytest.approx(10 / after)
    assert bool(found.reason) is regression
    assert found.low <= found.ratio <= found.high


def test_lost_equality_is_a_regression_at_any_speed():
    """Faster and wrong is no progress."""
    (found,) = compare([_row(10.0)], [_row(99.0, equal=False)], tolerance=0.5)
    assert "plain" in found.reason


def test_rows_are_matched_by_what_was_run():
    """A row compared with another engine's or shape's row would give a meaningless ratio."""
    before = [_row(10.0), _row(30.0, drafter="model"), _step(10.0, 1), _step(20.0, 8)]
    after = [
        _step(20.0, 8),
        _step(10.0, 1),
        _row(30.0, drafter="model"),
        _row(1.0, drafter="new"),
        _row(10.0),
    ]
    assert [entry.ratio for entry in compare(before, after, tolerance=0)] == [1.0] * 4


def test_nothing_in_common_is_refused():
    """An empty comparison would pass."""
    with pytest.raises(ParameterError, match="in common"):
        compare([_row(1.0)], [_step(1.0)], tolerance=0.1)
    with pytest.raises(ParameterError, match="tolerance"):
        compare([_row(1.0)], [_row(1.0)], tolerance=1.5)


@pytest.mark.parametrize("form", ["document", "list", "lines"])
def test_results_are_read_in_every_form(tmp_path, form: str):
    """Rows may come from --output, from --json, or filtered by another tool."""
    rows = [_row(1.0), _row(2.0, drafter="model")]
    text = {
        "document": json.dumps({"rows": rows}, indent=1),
        "list": json.dumps(rows),
        "lines": "\n".join(json.dumps(row) for row in rows),
    }[form]
    path = tmp_path / "result.json"
    path.write_text(text)
    assert list(read_rows(path)) == rows


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"rows": 3}', '{"a": 1}'])
def test_other_files_are_refused(tmp_path, text: str):
    """A wrong file must be one line, not a traceback or an empty comparison."""
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(ParameterError):
        read_rows(path)
    with pytest.raises(ParameterError):
        read_rows(tmp_path / "absent.json")
