"""The worth of a draft: acceptance as counted by the engine, speedup by arithmetic done by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from foredraft.distill.card import licence_of, worth_table
from foredraft.distill.corpus import Sample
from foredraft.distill.evaluation import DraftWorth, _worth, measure_draft
from foredraft.engine import SpeculationStats, StepCosts
from foredraft.models.in_memory import loaded_from
from tiny_models import llama


def test_speedup_by_hand():
    """Ten rounds of two drafted tokens, 8 and 4 accepted; a step costs 1, with two more 1.5, a draft 0.1."""
    stats = SpeculationStats(
        target_steps=10, draft_rounds=10, drafted=20, accepted=12, committed=22,
        drafted_per_position=[10, 10], accepted_per_position=[8, 4], draft_seconds=2.0,
    )  # fmt: skip
    worth = _worth(0.0, stats, StepCosts({1: 1.0, 2: 1.25, 3: 1.5}))
    assert worth.acceptance_per_position == (0.8, 0.4)
    assert worth.mean_accepted_length == pytest.approx((1.8, 2.2))
    assert worth.speedup == pytest.approx((1.8 / 1.35, 2.2 / 1.7))
    assert worth.draft_cost == pytest.approx(0.1)
    assert worth.best_num_draft_tokens == 1
    assert "| 0 | 0.80 0.40 | 1 | 1.80 | 0.100 | 1.33x |" in worth_table([worth])


def test_nothing_drafted():
    """Prompts that end at once leave nothing to divide by."""
    worth = _worth(1.0, SpeculationStats(target_steps=3, committed=3), StepCosts({1: 1.0}))
    assert worth.speedup == ()
    assert len(worth_table([worth])) == 2
    assert worth.as_dict()["best_num_draft_tokens"] is None


def test_a_copy_is_accepted_always(tmp_path: Path):
    """The target as its own draft must have every token accepted, greedy and sampled."""
    target = llama(seed=0)
    target.save_pretrained(tmp_path)
    held_out = [Sample(index, 0.0, 3, (5 + index, 6, 7, 8)) for index in range(3)]
    worths = measure_draft(loaded_from(target), tmp_path, held_out, num_draft_tokens=3, max_new_tokens=20)
    assert [worth.temperature for worth in worths] == [0.0, 1.0]
    for worth in worths:
        assert min(worth.acceptance_per_position) > 0.9  # drafts beyond the end of a text are none
        assert worth.mean_accepted_length == pytest.approx((2.0, 3.0, 4.0), abs=0.2)
        assert worth.draft_cost > 0.1
        assert isinstance(worth, DraftWorth)


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlicense: mit\n---\ntext", "mit"),
        ("---\nlanguage: en\n---\nlicense: not here", None),
        ("license: not here either", None),
        (None, None),
    ],
)
def test_licence_of_a_folder(tmp_path: Path, card: str | None, licence: str | None):
    """A draft must not be given a licence that its target does not have."""
    from foredraft.models import load_model

    llama(seed=0).save_pretrained(tmp_path)
    if card is not None:
        (tmp_path / "README.md").write_text(card)
    assert licence_of(load_model(tmp_path)) == licence
