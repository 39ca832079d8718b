"""A median with its spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Spread:
    """A median, and the 10th and 90th percentile around it."""

    median: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def spread(values: Sequence[float]) -> Spread | None:
    """Median, 10th and 90th percentile (linear between values); None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return Spread(median(ordered), _percentile(ordered, 0.1), _percentile(ordered, 0.9), len(ordered))


def _percentile(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])
