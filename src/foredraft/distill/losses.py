"""What a draft is trained to minimise, at each position, as functions of two laws.

All take log-probabilities `[positions, tokens]` of the draft (q, normalised) and of the target (p). The
tokens are the draft's: where its vocabulary is a part of the target's, p is the target's law on that part
and does not sum to 1. The missing mass is what this draft can never propose, so that `acceptance` stays
exact and the gradients of the divergences weigh a position by the mass that can be won there.

Sources: forward and reverse KL and total variation as objectives of a draft, DistillSpec (Zhou et al.
2023, arXiv 2310.08461); that the share of accepted tokens is 1 - TV(p, q), Leviathan et al. 2023 (arXiv
2211.17192, corollary 3.6); its negative logarithm, Samarin et al. 2026 (arXiv 2602.23881).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import torch

from foredraft.errors import ParameterError

Loss: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(log q, log p) `[positions, tokens]` to a loss `[positions]`."""


def acceptance(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    """Probability that a token drafted from q is accepted by the token rule: the sum of min(p, q).

    Returns:
        `[positions]`, between 0 and 1.
    """
    return torch.minimum(log_q, log_p).exp().sum(-1)


def forward_kl(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    """KL(p || q), the sum of p log(p / q): q is to cover whatever p may choose."""
    # Where p is 0 its logarithm is -inf, and 0 times that is no number.
    p = log_p.exp()
    return torch.where(p > 0, p * (log_p - log_q), 0.0).sum(-1)


def reverse_kl(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    """KL(q || p), the sum of q log(q / p): q is to leave out what p would not choose.

    p is floored at 1e-9: a token that the target's processors or rounding forbid would be infinitely bad.
    """
    floor = -20.72
    return (log_q.exp() * (log_q - log_p.clamp(min=floor))).sum(-1)


def total_variation(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    """TV(p, q) = 1 - sum of min(p, q): the share of rejected tokens itself."""
    return 1.0 - acceptance(log_q, log_p)


def negative_log_acceptance(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    """-log of `acceptance`: as total variation, with a gradient that does not vanish where q is far off."""
    return -acceptance(log_q, log_p).clamp(min=1e-9).log()


LOSSES: Mapping[str, Loss] = MappingProxyType(
    {
        "forward-kl": forward_kl,
        "reverse-kl": reverse_kl,
        "tv": total_variation,
        "acceptance": negative_log_acceptance,
    }
)


@dataclass(frozen=True)
class LossMix:
    """A weighted sum of losses, with both laws taken at one temperature."""

    weights: Mapping[str, float]
    """By the names of `LOSSES`."""
    temperature: float = 1.0

    def __post_init__(self) -> None:
        for name, weight in self.weights.items():
            if name not in LOSSES:
                raise ParameterError(f"loss: unknown {name!r}; known are {', '.join(LOSSES)}")
            if not 0.0 < weight < float("inf"):
                raise ParameterError(f"loss: the weight of {name} must be above 0 (got {weight:g})")
        if not self.weights:
            raise ParameterError(f"loss: give at least one of {', '.join(LOSSES)}")
        if not 0.0 < self.temperature <= 100.0:
            raise ParameterError(f"loss temperature must be above 0, at most 100 (got {self.temperature:g})")

    @classmethod
    def parse(cls, text: str, temperature: float = 1.0) -> LossMix:
        """From `"forward-kl"` or `"forward-kl=0.5,tv=1"`.

        Raises:
            ParameterError: if it is not of this form.
        """
        weights: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, weight = part.partition("=")
            try:
                weights[name.strip()] = float(weight) if weight else 1.0
            except ValueError:
                raise ParameterError(f"loss: {part!r} should read NAME=WEIGHT") from None
        return cls(weights, temperature)

    def __str__(self) -> str:
        return ",".join(f"{name}={weight:g}" for name, weight in self.weights.items())

    def __call__(self, log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
        """The weighted sum, `[positions]`; both laws are already at `temperature`."""
        parts = [weight * LOSSES[name](log_q, log_p) for name, weight in self.weights.items()]
        return torch.stack(parts).sum(0)
