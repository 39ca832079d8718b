"""`AcceptanceEstimate`: how likely a drafted token is accepted, by its position in the draft."""

from __future__ import annotations

from foredraft.params import MAX_DRAFT_TOKENS

_PRIOR_WEIGHT = 2.0


class AcceptanceEstimate:
    """Probability that the k-th drafted token is accepted once those before it are.

    Counts decay, so that a text that changes its kind is followed. A position that was rarely reached
    leans on the position before it, the first one on a prior.

    Args:
        decay: factor by which a position's counts shrink at each new trial of it.
        prior: belief about the first position before anything was seen.
    """

    def __init__(self, *, decay: float, prior: float) -> None:
        self._decay = decay
        self._prior = prior
        self._accepted = [0.0] * MAX_DRAFT_TOKENS
        self._trials = [0.0] * MAX_DRAFT_TOKENS

    def observe(self, drafted: int, accepted: int) -> None:
        """A draft of `drafted` tokens had its first `accepted` ones accepted."""
        for position in range(min(drafted, accepted + 1)):
            self._trials[position] = self._decay * self._trials[position] + 1.0
            self._accepted[position] = self._decay * self._accepted[position] + (position < accepted)

    def probabilities(
        self, positions: int, prior: float | None = None, *, caution: float = 0.0
    ) -> list[float]:
        """Conditional acceptance of the first `positions` drafted tokens.

        Args:
            positions: how many.
            prior: belief about the first position in place of the estimate's own.
            caution: standard errors to stay below the mean.
        """
        belief = self._prior if prior is None else prior
        result: list[float] = []
        for accepted, trials in zip(self._accepted[:positions], self._trials[:positions], strict=True):
            weight = trials + _PRIOR_WEIGHT
            belief = (accepted + _PRIOR_WEIGHT * belief) / weight
            error = (belief * (1.0 - belief) / weight) ** 0.5
            result.append(max(0.0, belief - caution * error))
        return result
