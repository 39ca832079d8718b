"""`SpeculationStats`: what was drafted, what was accepted, and where the time went.

Names follow vLLM's speculative decoding metrics: an acceptance rate is accepted over drafted tokens, a
mean accepted length counts the token that the target adds itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest


@dataclass
class SpeculationStats:
    """Counters of one sequence, or of many added up."""

    target_steps: int = 0
    """Target forwards that this sequence took part in, prefill not counted."""
    draft_rounds: int = 0
    """Target steps that verified at least one drafted token."""
    drafted: int = 0
    accepted: int = 0
    committed: int = 0
    """Tokens generated."""
    drafted_per_position: list[int] = field(default_factory=list[int])
    accepted_per_position: list[int] = field(default_factory=list[int])
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    total_seconds: float = 0.0
    """Wall time from admission to finish; prefill, waiting for other rows and everything else included."""

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens; 0 if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_accepted_length(self) -> float:
        """Tokens committed for each target step, the target's own token included."""
        return self.committed / self.target_steps if self.target_steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.committed / self.total_seconds if self.total_seconds else 0.0

    def acceptance_per_position(self) -> list[float]:
        """For each draft position, the share of drafted tokens that were accepted there."""
        return [
            accepted / drafted
            for accepted, drafted in zip(self.accepted_per_position, self.drafted_per_position, strict=True)
        ]

    def count_round(self, depths: list[int], accepted: int, committed: int) -> None:
        """Add one verification round.

        Args:
            depths: depth of each drafted token, from 0.
            accepted: drafted tokens that were accepted, one at each depth from 0.
            committed: tokens added to the sequence.
        """
        self.target_steps += 1
        self.draft_rounds += bool(depths)
        self.drafted += len(depths)
        self.accepted += accepted
        self.committed += committed
        deepest = max(depths, default=-1) + 1
        missing = deepest - len(self.drafted_per_position)
        self.drafted_per_position += [0] * missing
        self.accepted_per_position += [0] * missing
        for depth in depths:
            self.drafted_per_position[depth] += 1
        for depth in range(accepted):
            self.accepted_per_position[depth] += 1

    def add(self, other: SpeculationStats) -> None:
        """Add another sequence's counters; times add up too, so they are row seconds."""
        for name in (
            "target_steps",
            "draft_rounds",
            "drafted",
            "accepted",
            "committed",
            "prefill_seconds",
            "draft_seconds",
            "target_seconds",
            "total_seconds",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.drafted_per_position = _added(self.drafted_per_position, other.drafted_per_position)
        self.accepted_per_position = _added(self.accepted_per_position, other.accepted_per_position)

    def as_dict(self) -> dict[str, int | float | list[float]]:
        """What `--json` prints."""
        return {
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_per_position": self.acceptance_per_position(),
            "mean_accepted_length": self.mean_accepted_length,
            "tokens_per_second": self.tokens_per_second,
            "target_steps": self.target_steps,
            "prefill_seconds": self.prefill_seconds,
            "draft_seconds": self.draft_seconds,
            "target_seconds": self.target_seconds,
            "total_seconds": self.total_seconds,
        }


def _added(left: list[int], right: list[int]) -> list[int]:
    return [sum(pair) for pair in zip_longest(left, right, fillvalue=0)]
