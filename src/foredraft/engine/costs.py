"""`StepCosts`: what a target step and a drafted token cost, measured and kept up to date."""

from __future__ import annotations

import time
from collections.abc import Sequence as List

from foredraft.execution import ModelRunner, RowInput

_SIZES = (1, 8, 4, 16, 2)
"""Tokens of the steps measured at load, the most telling first."""
_ROUNDS = 3
_SECONDS = 1.5
"""Measuring stops after this long, with what it has."""
_CONTEXT = 32
_UPDATE = 0.1
"""Weight of a new observation."""


class StepCosts:
    """Believed seconds of one step, by rows in the batch and tokens of the longest row.

    The cost is `scale(rows) * base(tokens) * correction(tokens)`: `base` is measured once; the scale
    follows the machine and the growing context, for every length at a time, so that a slow minute does not
    make the length that happened to run in it look worse than the others; corrections change slowly.

    Args:
        base: seconds of a step of one row, by tokens fed; at least the entry for 1.
    """

    def __init__(self, base: dict[int, float]) -> None:
        self._base = dict(sorted(base.items()))
        self._scale: dict[int, float] = {1: 1.0}
        self._correction: dict[int, float] = {}
        self.draft_token: float | None = None
        """Seconds of one more drafted token for the whole batch; None before anything was drafted."""

    def step(self, rows: int, tokens: int) -> float:
        """Believed seconds of a step."""
        return self._known_scale(rows) * self._shape(tokens)

    def draft(self, tokens: int) -> float:
        """Believed seconds of drafting this many tokens for every row."""
        return tokens * (self.draft_token or 0.0)

    def observe_step(self, rows: int, tokens: int, seconds: float) -> None:
        """A step of the target took `seconds`."""
        believed_scale = self._known_scale(rows)
        seen = seconds / self._shape(tokens)
        if rows in self._scale:
            # One very slow step (another process, a page fault) must not count for many.
            seen = min(max(seen, 0.5 * believed_scale), 2.0 * believed_scale)
            self._scale[rows] = believed_scale + _UPDATE * (seen - believed_scale)
        else:
            self._scale[rows] = seen
        if tokens == 1:
            return  # The scale is that of the plain step; only other lengths are corrected against it.
        ratio = min(max(seen / self._scale[rows], 0.5), 2.0)
        correction = self._correction.get(tokens, 1.0)
        self._correction[tokens] = correction * (1 + 0.2 * _UPDATE * (ratio - 1))

    def observe_draft(self, tokens: int, seconds: float) -> None:
        """Drafting `tokens` tokens for every row took `seconds`."""
        seen = seconds / tokens
        if self.draft_token is None or seen > 2 * self.draft_token:
            # A drafter that is suddenly dear is believed at once, one that is cheaper only in time.
            self.draft_token = seen
        else:
            self.draft_token += 2 * _UPDATE * (seen - self.draft_token)

    def _known_scale(self, rows: int) -> float:
        if rows in self._scale:
            return self._scale[rows]
        nearest = min(self._scale, key=lambda known: abs(known - rows))
        return self._scale[nearest]

    def _shape(self, tokens: int) -> float:
        return self._interpolated(tokens) * self._correction.get(tokens, 1.0)

    def _interpolated(self, tokens: int) -> float:
        sizes = list(self._base)
        if tokens in self._base or len(sizes) == 1:
            return self._base.get(tokens, self._base[sizes[0]])
        upper = next((index for index, size in enumerate(sizes) if size > tokens), len(sizes) - 1)
        upper = max(1, upper)
        low, high = sizes[upper - 1], sizes[upper]
        slope = (self._base[high] - self._base[low]) / (high - low)
        return max(self._base[low] + slope * (tokens - low), self._base[sizes[0]])


def measure_step_costs(runner: ModelRunner) -> StepCosts:
    """Time steps of several lengths on an unused row, interleaved, and keep the fastest of each.

    Nothing else may be running on the runner; its first row is empty afterwards.
    """
    largest = min(max(_SIZES), runner.context_length - 1)
    sizes = [size for size in _SIZES if size <= largest]
    context = max(0, min(_CONTEXT, runner.context_length - largest))
    runner.reserve(1, context + largest)
    if context:
        runner.step([RowInput(0, [0] * context, 0)])
    fastest: dict[int, float] = {}
    started = time.perf_counter()
    for _ in range(_ROUNDS):
        _time_once(runner, sizes, context, fastest, started)
    runner.truncate(0, 0)
    return StepCosts(_monotone(fastest))


def _time_once(
    runner: ModelRunner, sizes: List[int], context: int, fastest: dict[int, float], started: float
) -> None:
    for size in sizes:
        if time.perf_counter() - started > _SECONDS and len(fastest) >= min(2, len(sizes)):
            return
        before = time.perf_counter()
        output = runner.step([RowInput(0, [0] * size, size)])
        float(output.logits[0, 0])  # Waits for an accelerator.
        seconds = time.perf_counter() - before
        runner.truncate(0, context)
        fastest[size] = min(seconds, fastest.get(size, seconds))


def _monotone(seconds: dict[int, float]) -> dict[int, float]:
    """More tokens never cost less; where they seem to, that was noise."""
    result: dict[int, float] = {}
    most = 0.0
    for size in sorted(seconds):
        most = max(most, seconds[size])
        result[size] = most
    return result
