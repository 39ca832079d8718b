"""Verification by rejection, for chains sampled from a known draft law.

Both rules are lossless if and only if `draft_laws` are exactly the laws that the drafted tokens were
drawn from. A rule is split into three pure steps, so that its law can be enumerated exactly in tests:
acceptance probabilities, the accepted length given uniforms, and the law of the token that follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class RejectionRule(Protocol):
    """A way to accept a sampled chain of g tokens.

    Shapes: `target_laws` float32 `[g + 1, vocab]` (row i is conditioned on the first i drafted tokens),
    `draft_laws` float32 `[g, vocab]`, `drafted` int64 `[g]`.
    """

    name: str

    def acceptance(
        self, target_laws: torch.Tensor, draft_laws: torch.Tensor, drafted: torch.Tensor
    ) -> torch.Tensor:
        """float64 `[g]`: the probability with which each uniform accepts its token."""
        ...

    def accepted_length(self, acceptance: torch.Tensor, uniforms: Sequence[float]) -> int:
        """How many drafted tokens are kept, given one uniform in (0, 1) for each."""
        ...

    def next_law(
        self,
        target_laws: torch.Tensor,
        draft_laws: torch.Tensor,
        drafted: torch.Tensor,
        accepted_length: int,
    ) -> torch.Tensor:
        """float `[vocab]`, not necessarily normalised: the law of the token after the kept ones."""
        ...


class TokenRule:
    """Token-level speculative sampling: Leviathan et al. 2023 (arXiv 2211.17192, algorithm 1) and
    Chen et al. 2023 (arXiv 2302.01318)."""

    name = "token"

    def acceptance(
        self, target_laws: torch.Tensor, draft_laws: torch.Tensor, drafted: torch.Tensor
    ) -> torch.Tensor:
        """min(1, p(x) / q(x)) of each drafted token."""
        return likelihood_ratios(target_laws, draft_laws, drafted).clamp(max=1.0)

    def accepted_length(self, acceptance: torch.Tensor, uniforms: Sequence[float]) -> int:
        """Tokens before the first failure. The test is strict, so probability 0 never passes."""
        for index, (probability, uniform) in enumerate(zip(acceptance.tolist(), uniforms, strict=True)):
            if not uniform < probability:
                return index
        return len(uniforms)

    def next_law(
        self,
        target_laws: torch.Tensor,
        draft_laws: torch.Tensor,
        drafted: torch.Tensor,
        accepted_length: int,
    ) -> torch.Tensor:
        """The residual (p - q)+ at the first failure, the target's law after the whole block."""
        if accepted_length == len(drafted):
            return target_laws[accepted_length]
        return residual(target_laws[accepted_length], draft_laws[accepted_length])


class BlockRule:
    """Block verification: Sun et al., ICLR 2025 (arXiv 2403.10444, algorithm 2).

    Accepts at least as many tokens as the token rule in expectation, never fewer.
    """

    name = "block"

    def acceptance(
        self, target_laws: torch.Tensor, draft_laws: torch.Tensor, drafted: torch.Tensor
    ) -> torch.Tensor:
        """h_i = S_i / (S_i + 1 - rho_i) with S_i the residual mass after i tokens; h_g = rho_g.

        Where the denominator is zero, p = q after x_i and a later uniform is certain to succeed.
        """
        scales = running_ratios(target_laws, draft_laws, drafted)
        acceptance = scales.clone()
        inner = scales[:-1]
        mass = excess(target_laws[1:-1], draft_laws[1:], inner.unsqueeze(-1)).sum(dim=-1)
        # In this order the sum keeps its digits where p and q nearly agree, and h_i cannot exceed one.
        denominator = mass + (1.0 - inner)
        acceptance[:-1] = torch.where(denominator > 0, mass / denominator, 0.0)
        return acceptance

    def accepted_length(self, acceptance: torch.Tensor, uniforms: Sequence[float]) -> int:
        """The LARGEST index whose uniform succeeds; stopping at the first failure would be biased."""
        length = 0
        for index, (probability, uniform) in enumerate(zip(acceptance.tolist(), uniforms, strict=True)):
            if uniform < probability:
                length = index + 1
        return length

    def next_law(
        self,
        target_laws: torch.Tensor,
        draft_laws: torch.Tensor,
        drafted: torch.Tensor,
        accepted_length: int,
    ) -> torch.Tensor:
        """The residual (rho p - q)+ with the running ratio rho at the accepted length (1 at the root)."""
        if accepted_length == len(drafted):
            return target_laws[accepted_length]
        scale = 1.0
        if accepted_length:
            scales = running_ratios(target_laws, draft_laws, drafted)
            scale = scales[accepted_length - 1]
        return residual(target_laws[accepted_length], draft_laws[accepted_length], scale)


REJECTION_RULES: dict[str, RejectionRule] = {rule.name: rule for rule in (TokenRule(), BlockRule())}


def likelihood_ratios(
    target_laws: torch.Tensor, draft_laws: torch.Tensor, drafted: torch.Tensor
) -> torch.Tensor:
    """float64 `[g]`: p(x) / q(x) of each drafted token; every q(x) is positive, since x was drawn."""
    index = drafted.unsqueeze(-1)
    p = target_laws[: len(drafted)].gather(-1, index).squeeze(-1).double()
    q = draft_laws.gather(-1, index).squeeze(-1).double()
    return p / q


def running_ratios(
    target_laws: torch.Tensor, draft_laws: torch.Tensor, drafted: torch.Tensor
) -> torch.Tensor:
    """float64 `[g]`: rho_i = min(1, rho_{i-1} p(x_i) / q(x_i)), rho_0 = 1 (Sun et al., eq. 4)."""
    scales: list[float] = []
    scale = 1.0
    for ratio in likelihood_ratios(target_laws, draft_laws, drafted).tolist():
        scale = min(1.0, scale * ratio)
        scales.append(scale)
    return torch.tensor(scales, dtype=torch.float64, device=drafted.device)


def excess(
    target_law: torch.Tensor, draft_law: torch.Tensor, scale: float | torch.Tensor = 1.0
) -> torch.Tensor:
    """float64 `[..., vocab]`: (scale * p - q)+, the target's mass that the draft does not cover."""
    return (scale * target_law.double() - draft_law.double()).clamp(min=0.0)


def residual(
    target_law: torch.Tensor, draft_law: torch.Tensor, scale: float | torch.Tensor = 1.0
) -> torch.Tensor:
    """float64 `[vocab]`: the law, up to its own sum, of the token that replaces a rejected one.

    Where p and q agree up to rounding the excess can vanish; rejection then has probability zero up to
    rounding as well, and p itself is returned.
    """
    difference = excess(target_law, draft_law, scale)
    return difference if bool(difference.sum() > 0) else target_law.double()
