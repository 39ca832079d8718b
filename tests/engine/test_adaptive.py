"""The adaptive draft length against simulated acceptance and costs; no clock is read."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from foredraft.drafters import Proposal
from foredraft.engine import AdaptiveDraftLength, Verdict
from foredraft.engine.costs import StepCosts

Acceptance = Callable[[int, float], float]
"""Probability that a drafted token is accepted, by row and tokens so far."""


def linear(slope: float) -> Callable[[int], float]:
    return lambda tokens: 1.0 + slope * (tokens - 1)


def stairs(tokens: int) -> float:
    return 1.0 + 0.35 * (tokens > 1) + 0.6 * (tokens > 8)


@dataclass
class Outcome:
    speedup: float
    worst_window: float
    """Slowest 256 tokens, relative to plain decoding."""
    mean_length: float


def simulate(
    acceptance: Acceptance,
    *,
    draft_cost: float,
    step_cost: Callable[[int], float],
    tokens: int = 2000,
    rows: int = 1,
    fixed: int | None = None,
    believed_draft_cost: float | None = None,
    seed: int = 0,
) -> Outcome:
    draw = random.Random(seed)
    costs = StepCosts({size: step_cost(size) for size in (1, 2, 4, 8, 16)})
    costs.draft_token = believed_draft_cost
    controller = AdaptiveDraftLength(costs)
    sequences = [SimpleNamespace(id=row, round_index=0, is_finished=False) for row in range(rows)]
    seconds, made = 0.0, 0.0
    trace: list[tuple[float, float]] = [(0.0, 0.0)]
    lengths: list[int] = []
    while made < tokens:
        budgets = controller.budgets(sequences) if fixed is None else [fixed] * rows
        drafted = max(budgets)
        verdicts = []
        for sequence, budget in zip(sequences, budgets, strict=True):
            accepted = 0
            while accepted < budget and draw.random() < acceptance(sequence.id, made):
                accepted += 1
            verdicts.append(Verdict(tuple(range(accepted)), 0))
            sequence.round_index += 1
        controller.observe(
            sequences,
            [Proposal((0,) * budget) for budget in budgets],
            verdicts,
            draft_seconds=drafted * draft_cost,
            target_seconds=step_cost(1 + drafted),
        )
        seconds += drafted * draft_cost + step_cost(1 + drafted)
        made += sum(1 + len(verdict.accepted) for verdict in verdicts) / rows
        trace.append((made, seconds))
        lengths.append(drafted)
    plain = step_cost(1)
    worst = 1.0
    marks = [mark for mark, _ in trace]
    for start, (mark, at) in enumerate(trace):
        end = bisect_left(marks, mark + 256, lo=start)
        if end < len(trace):
            worst = min(worst, (trace[end][0] - mark) * plain / (trace[end][1] - at))
    return Outcome(made * plain / seconds, worst, sum(lengths) / len(lengths))


def best_fixed(acceptance: Acceptance, **setting) -> float:
    return max(simulate(acceptance, fixed=length, tokens=4000, **setting).speedup for length in range(17))


@pytest.mark.parametrize("step_cost", [linear(0.0), linear(0.12), stairs], ids=["flat", "linear", "stairs"])
@pytest.mark.parametrize("draft_cost", [0.0, 0.05, 0.1])
@pytest.mark.parametrize("rate", [0.7, 0.9])
def test_comes_close_to_the_best_fixed_length(rate, draft_cost, step_cost):
    """Where speculation pays well, choosing by measurement must cost next to nothing."""
    setting = {"draft_cost": draft_cost, "step_cost": step_cost}
    outcome = simulate(lambda row, made: rate, tokens=4000, **setting)
    assert outcome.speedup >= 0.93 * best_fixed(lambda row, made: rate, **setting)


@pytest.mark.parametrize("step_cost", [linear(0.0), linear(0.12), linear(0.5), stairs])
@pytest.mark.parametrize("draft_cost", [0.0, 0.1, 0.2])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.5])
def test_never_slower_than_plain(rate, draft_cost, step_cost):
    """Low acceptance must cost less than two percent of the run, and of any 256 tokens about that."""
    outcome = simulate(lambda row, made: rate, draft_cost=draft_cost, step_cost=step_cost)
    assert outcome.speedup >= 0.98
    assert outcome.worst_window >= 0.97


@pytest.mark.parametrize("seed", range(5))
def test_acceptance_that_flips_every_64_tokens(seed):
    """A text that keeps changing its kind must not make learning a loss."""
    outcome = simulate(
        lambda row, made: 0.9 * (int(made / 64) % 2), draft_cost=0.1, step_cost=linear(0.12), seed=seed
    )
    assert outcome.speedup >= 0.98
    assert outcome.worst_window >= 0.96


def test_a_drafter_ten_times_slower_than_believed():
    """A wrong belief about the draft's cost must be dropped at once."""
    outcome = simulate(lambda row, made: 0.5, draft_cost=1.0, step_cost=linear(0.0), believed_draft_cost=0.1)
    assert outcome.speedup >= 0.98


def test_rows_of_opposite_kind_share_a_batch():
    """A hopeless row must neither stop the others nor be drafted for at length."""
    outcome = simulate(lambda row, made: (0.9, 0.0)[row], draft_cost=0.05, step_cost=linear(0.12), rows=2)
    assert outcome.speedup >= 1.3


def test_better_times_are_noticed():
    """After a long bad stretch speculation must come back by itself."""
    setting = {"draft_cost": 0.05, "step_cost": linear(0.12)}
    outcome = simulate(lambda row, made: 0.9 * (made > 2000), tokens=5000, **setting)
    assert outcome.speedup >= 1.3


def test_beliefs_explain_the_choice():
    """`--stats` shows them; they must agree with what was chosen."""
    controller = AdaptiveDraftLength(StepCosts({1: 1.0, 8: 1.1}))
    assert controller.beliefs is None
    sequences = [SimpleNamespace(id=0, round_index=0, is_finished=False)]
    budgets = controller.budgets(sequences)
    beliefs = controller.beliefs
    assert beliefs is not None
    assert budgets == [beliefs.num_draft_tokens] == [4]
    assert beliefs.expected_speedup > 1.5


def test_finished_sequences_are_forgotten():
    """A server would leak an estimate for every request it ever had."""
    controller = AdaptiveDraftLength(StepCosts({1: 1.0, 8: 1.1}))
    sequence = SimpleNamespace(id=0, round_index=2, is_finished=True)
    controller.budgets([sequence])
    controller.observe([sequence], [Proposal((0,))], [Verdict((), 1)], draft_seconds=0.0, target_seconds=1.0)
    assert not controller._of_row
