"""Believed costs: interpolation, drift, noise, and measuring on a runner."""

from __future__ import annotations

import pytest
import torch

from foredraft.engine.costs import StepCosts, measure_step_costs
from foredraft.execution import StepOutput


def test_costs_between_and_beyond_measured_sizes_are_interpolated():
    """Lengths that were not measured must not look free."""
    costs = StepCosts({1: 1.0, 4: 1.3, 8: 2.1})
    assert costs.step(1, 2) == pytest.approx(1.1)
    assert costs.step(1, 6) == pytest.approx(1.7)
    assert costs.step(1, 16) == pytest.approx(3.7)


def test_one_measurement_serves_every_size():
    """A runner with room for a single token still has a cost."""
    assert StepCosts({1: 0.5}).step(3, 9) == 0.5


def test_a_slower_machine_slows_every_length_alike():
    """A slow minute must not be blamed on the length that happened to run in it."""
    costs = StepCosts({1: 1.0, 8: 1.5})
    for _ in range(100):
        costs.observe_step(1, 1, 2.0)
    assert costs.step(1, 1) == pytest.approx(2.0, rel=0.02)
    assert costs.step(1, 8) / costs.step(1, 1) == pytest.approx(1.5, rel=0.05)


def test_a_length_that_keeps_costing_more_is_corrected():
    """The ratio measured at load is wrong for long contexts; observation must win in the end."""
    costs = StepCosts({1: 1.0, 8: 1.1})
    for _ in range(400):
        costs.observe_step(1, 1, 1.0)
        costs.observe_step(1, 8, 1.6)
    assert costs.step(1, 8) / costs.step(1, 1) == pytest.approx(1.6, rel=0.1)


def test_a_single_slow_step_counts_for_little():
    """One page fault must not switch speculation off."""
    costs = StepCosts({1: 1.0})
    costs.observe_step(1, 1, 100.0)
    assert costs.step(1, 1) <= 1.15


def test_batches_have_their_own_scale():
    """Eight rows cost more than one; unknown batch sizes borrow from the nearest."""
    costs = StepCosts({1: 1.0})
    costs.observe_step(8, 1, 3.0)
    assert (costs.step(8, 1), costs.step(7, 1), costs.step(1, 1)) == (3.0, 3.0, 1.0)


def test_a_dear_drafter_is_believed_at_once():
    """Waiting for an average would cost the very rounds that the bound protects."""
    costs = StepCosts({1: 1.0})
    costs.observe_draft(4, 0.4)
    costs.observe_draft(2, 4.0)
    assert costs.draft(3) == pytest.approx(6.0)
    costs.observe_draft(1, 0.1)
    assert 1.5 < costs.draft(1) < 2.0


class _Runner:
    """Counts steps; every step takes no time."""

    vocab_size, context_length = 4, 20

    def __init__(self) -> None:
        self.cached, self.fed = 0, []

    def reserve(self, num_rows, num_tokens):
        assert num_tokens <= self.context_length

    def step(self, inputs):
        (row_input,) = inputs
        self.cached += len(row_input.tokens)
        assert self.cached <= self.context_length
        self.fed.append(len(row_input.tokens))
        return StepOutput(torch.zeros(max(1, row_input.num_logits), self.vocab_size))

    def truncate(self, row, length):
        self.cached = length


def test_measuring_leaves_the_row_empty_and_fits_the_context():
    """Calibration must not leave tokens behind, nor ask for more than a small context holds."""
    runner = _Runner()
    costs = measure_step_costs(runner)
    assert runner.cached == 0
    assert set(runner.fed) >= {1, 2, 4, 8, 16}
    assert costs.step(1, 16) >= costs.step(1, 1) > 0
