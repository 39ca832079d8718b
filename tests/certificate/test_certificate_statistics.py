"""The statistics must be calibrated under the law and have power against another."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from foredraft.certificate.statistics import chi_square, chi_square_of_law, probability_transform, uniformity


def _laws(rows: int, vocab: int) -> torch.Tensor:
    return torch.softmax(2 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0)), dim=-1)


def _transform(drawn_from: torch.Tensor, laws: torch.Tensor) -> np.ndarray:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.multinomial(drawn_from, 1, generator=generator).squeeze(1)
    uniforms = torch.rand(len(laws), dtype=torch.float64, generator=generator)
    return probability_transform(laws, tokens, laws, uniforms).numpy()


def test_transform_is_uniform_under_its_law():
    """Without this every p-value of the certificate would be meaningless."""
    laws = _laws(20_000, 9)
    values = _transform(laws, laws)
    assert stats.kstest(values, "uniform").pvalue > 1e-3
    assert uniformity(values).p_value > 1e-3


def test_transform_has_power_against_a_sharper_law():
    """A law at temperature 0.8 in place of 1 must be seen in a few thousand tokens."""
    laws = _laws(5_000, 9)
    sharper = laws**1.25 / (laws**1.25).sum(dim=-1, keepdim=True)
    assert uniformity(_transform(sharper, laws)).p_value < 1e-6


@pytest.mark.parametrize("order", ["law", "constant"])
def test_transform_by_hand(order):
    """Ranked by falling order, equal ones by id: mass before the token plus a share of its own."""
    law = torch.tensor([[0.2, 0.5, 0.3]])
    ranking = law if order == "law" else torch.zeros(1, 3)
    value = probability_transform(law, torch.tensor([2]), ranking, torch.tensor([0.5]))
    assert float(value) == pytest.approx(0.5 + 0.15 if order == "law" else 0.7 + 0.15)


def test_chi_square_matches_scipy_where_no_cell_is_rare():
    """The statistic is Pearson's."""
    counts, expected = np.array([18.0, 22.0, 60.0]), np.array([20.0, 20.0, 60.0])
    mine, theirs = chi_square(counts, expected), stats.chisquare(counts, expected)
    assert mine.statistic == pytest.approx(theirs.statistic)
    assert mine.p_value == pytest.approx(theirs.pvalue)


def test_rare_cells_are_merged():
    """Expected counts below five would break the chi-square law."""
    result = chi_square(np.array([90.0, 2.0, 3.0, 5.0]), np.array([90.0, 3.0, 4.0, 3.0]))
    assert result.degrees_of_freedom == 1
    assert chi_square(np.array([10.0, 0.0]), np.array([9.5, 0.5])).degrees_of_freedom == 0


def test_an_impossible_token_fails_at_once():
    """One token outside the support refutes the law whatever the counts say."""
    law = np.array([0.5, 0.5, 0.0])
    assert chi_square_of_law(np.array([0, 1] * 50 + [2]), law).p_value == 0.0
    assert chi_square_of_law(np.array([0, 1] * 50), law).p_value > 0.5
