"""The statistics of the certificate: chi-square of a law, and the probability integral transform."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats

MIN_EXPECTED = 5.0
"""Cells with a smaller expected count are merged, the usual condition for the chi-square law."""


@dataclass(frozen=True)
class ChiSquare:
    """Pearson's statistic of observed against expected counts."""

    statistic: float
    degrees_of_freedom: int
    p_value: float


def chi_square_of_law(tokens: npt.NDArray[np.int64], law: npt.NDArray[np.float64]) -> ChiSquare:
    """Test whether `tokens` were drawn independently from `law`.

    A token of probability zero that was drawn all the same gives p = 0.

    Args:
        tokens: int64 `[samples]`.
        law: float64 `[vocab]`.
    """
    if bool((law[tokens] == 0.0).any()):
        return ChiSquare(float("inf"), 1, 0.0)
    counts = np.bincount(tokens, minlength=len(law)).astype(np.float64)
    return chi_square(counts, law / law.sum() * len(tokens))


def chi_square(counts: npt.NDArray[np.float64], expected: npt.NDArray[np.float64]) -> ChiSquare:
    """Pearson's test; rare cells are merged into one, which joins the rarest kept cell if still rare."""
    kept = expected >= MIN_EXPECTED
    observed = np.append(counts[kept], counts[~kept].sum())
    mean = np.append(expected[kept], expected[~kept].sum())
    if mean[-1] < MIN_EXPECTED and len(mean) > 1:
        rarest = int(np.argmin(mean[:-1]))
        observed[rarest] += observed[-1]
        mean[rarest] += mean[-1]
        observed, mean = observed[:-1], mean[:-1]
    freedom = len(mean) - 1
    if freedom < 1:
        return ChiSquare(0.0, 0, 1.0)
    statistic = float(((observed - mean) ** 2 / mean).sum())
    return ChiSquare(statistic, freedom, float(stats.chi2.sf(statistic, freedom)))


def probability_transform(
    laws: torch.Tensor, tokens: torch.Tensor, order: torch.Tensor, uniforms: torch.Tensor
) -> torch.Tensor:
    """Randomised probability integral transform: uniform on (0, 1) if each token has its row's law.

    Unlike counts, the values of different contexts can be pooled into one test, so every generated token
    of every prompt takes part (Brockwell 2007, "Universal residuals").

    Args:
        laws: float `[n, vocab]`.
        tokens: int64 `[n]`.
        order: float `[n, vocab]`: tokens are ranked by falling `order`, equal ones by id. Any order that
            does not depend on the drawn token is valid; a good one puts apart what a bug would favour.
        uniforms: float64 `[n]`, independent of everything.

    Returns:
        float64 `[n]`.
    """
    laws = laws.double()
    own = order.gather(1, tokens[:, None])
    ids = torch.arange(laws.shape[1], device=laws.device)
    before = (order > own) | ((order == own) & (ids < tokens[:, None]))
    mass = (laws * before).sum(dim=1)
    return mass + uniforms.to(laws.device) * laws.gather(1, tokens[:, None]).squeeze(1)


def uniformity(values: npt.NDArray[np.float64], bins: int = 20) -> ChiSquare:
    """Chi-square test of uniformity on (0, 1)."""
    bins = max(2, min(bins, int(len(values) / (2 * MIN_EXPECTED))))
    counts, _ = np.histogram(values.clip(0.0, 1.0), bins=bins, range=(0.0, 1.0))
    return chi_square(counts.astype(np.float64), np.full(bins, len(values) / bins))
