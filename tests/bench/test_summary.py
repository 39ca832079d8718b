"""From runs to rows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import a_result, a_run

from foredraft.bench.spread import spread
from foredraft.bench.summary import summarise

PLAIN, NGRAM, MODEL = ("foredraft", "none"), ("foredraft", "ngram"), ("foredraft", "model")
TRANSFORMERS = ("transformers", "none")

FIELDS = {
    "engine", "drafter", "task", "temperature", "tokens_per_second", "speedup_vs_plain",
    "speedup_vs_transformers", "mean_accepted_length", "equal_to_plain", "dtype", "prompts", "runs",
    "acceptance_rate", "acceptance_per_position", "draft_share", "target_share", "other_share",
    "time_to_first_token_ms", "peak_memory_bytes", "tokens", "tokens_per_second_p10",
    "tokens_per_second_p90", "speedup_vs_plain_p10", "speedup_vs_plain_p90",
    "speedup_vs_transformers_p10", "speedup_vs_transformers_p90", "time_to_first_token_ms_p10",
    "time_to_first_token_ms_p90",
}  # fmt: skip


def _rows(runs, **options):
    return {(row["engine"], row["drafter"]): row for row in summarise(a_result(runs, **options))}


def test_rows_have_the_documented_fields():
    """Whoever reads the JSON reads these names."""
    rows = summarise(a_result({PLAIN: [[a_run()]], TRANSFORMERS: [[a_run()]]}))
    assert all(set(row) == FIELDS for row in rows)
    assert [(row["engine"], row["drafter"], row["task"]) for row in rows] == [
        ("foredraft", "none", "chat"), ("transformers", "none", "chat"),
    ]  # fmt: skip


def test_speedups_are_taken_prompt_by_prompt():
    """A ratio of overall medians would mix fast prompts of one engine with slow ones of the other."""
    plain = [[a_run(seconds=1.0), a_run(seconds=3.0), a_run(seconds=2.0)], [a_run(seconds=10.0)]]
    fast = [[a_run(seconds=1.0), a_run(seconds=1.0), a_run(seconds=1.0)], [a_run(seconds=2.5)]]
    row = _rows({PLAIN: plain, NGRAM: fast, TRANSFORMERS: [[a_run(seconds=4.0)]]})[NGRAM]
    assert row["speedup_vs_plain"] == pytest.approx((2.0 + 4.0) / 2)
    assert row["speedup_vs_transformers"] == pytest.approx(4.0)
    assert row["prompts"] == 2 and row["runs"] == 4


def test_what_is_unknown_is_none():
    """A zero or a one in place of "unknown" would be read as a measurement."""
    row = _rows({NGRAM: [[a_run()]]})[NGRAM]
    unknown = (
        "speedup_vs_plain", "speedup_vs_transformers", "equal_to_plain", "mean_accepted_length",
        "acceptance_rate", "draft_share", "time_to_first_token_ms", "peak_memory_bytes",
    )  # fmt: skip
    assert [name for name in unknown if row[name] is not None] == []


def test_acceptance_adds_up_over_runs():
    """Averages of averages would weigh short runs as much as long ones."""
    first = a_run(
        target_steps=1, drafted=4, accepted=3, drafted_per_position=(2, 2), accepted_per_position=(2, 1)
    )
    second = a_run(
        target_steps=3, drafted=1, accepted=0, drafted_per_position=(1,), accepted_per_position=(0,)
    )
    row = _rows({NGRAM: [[first], [second]]})[NGRAM]
    assert row["mean_accepted_length"] == pytest.approx(8 / 4)
    assert row["acceptance_rate"] == pytest.approx(3 / 5)
    assert row["acceptance_per_position"] == pytest.approx([2 / 3, 1 / 2])


def test_shares_of_time_add_up():
    """Time that vanishes between the three shares would hide the overhead."""
    row = _rows({NGRAM: [[a_run(seconds=2.0, draft_seconds=0.5, target_seconds=1.0)]]})[NGRAM]
    assert (row["draft_share"], row["target_share"], row["other_share"]) == pytest.approx((0.25, 0.5, 0.25))


def test_equality_is_with_the_own_plain_decoding():
    """Equality is the claim of the whole project; it must be able to fail."""
    other = a_run((9, 9, 9, 9))
    rows = _rows({PLAIN: [[a_run()]], NGRAM: [[a_run(), other]], MODEL: [[a_run()]], TRANSFORMERS: [[other]]})
    assert rows[NGRAM]["equal_to_plain"] is False
    assert rows[MODEL]["equal_to_plain"] is True
    assert rows[TRANSFORMERS]["equal_to_plain"] is True


def test_sampled_rejection_may_differ_and_coupled_noise_may_not():
    """Rejection sampling keeps the distribution, not the tokens; n-gram and seed-exact keep both."""
    other = a_run((9, 9, 9, 9))
    coupled = ("foredraft", "model/seed-exact")
    rows = _rows(
        {PLAIN: [[a_run()]], NGRAM: [[other]], MODEL: [[other]], coupled: [[other]]}, temperature=0.8
    )
    assert rows[MODEL]["equal_to_plain"] is None
    assert rows[NGRAM]["equal_to_plain"] is False
    assert rows[coupled]["equal_to_plain"] is False


@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=30))
def test_spread_brackets_the_median(values):
    """Percentiles outside the data or beyond the median are wrong arithmetic."""
    found = spread(values)
    assert found is not None and found.count == len(values)
    tolerance = 1e-9 * max(values)
    assert min(values) - tolerance <= found.low <= found.median + tolerance
    assert found.median - tolerance <= found.high <= max(values) + tolerance
    assert math.isfinite(found.high)


def test_spread_of_nothing_is_none():
    """No measurement has no median."""
    assert spread([]) is None
