"""Truncation at vocabulary size and at ties, where a sort alone does not decide."""

from __future__ import annotations

import hugging_face
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.laws.truncation import truncated_law
from foredraft.params import SamplingParams

LARGE = 5_000


def random_scores(rows: int, seed: int, scale: float) -> torch.Tensor:
    """float32 `[rows, LARGE]` without ties."""
    return scale * torch.randn(rows, LARGE, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("scale", [0.01, 1.0, 4.0])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.95, 0.999])
def test_top_p_of_a_large_vocabulary(scale: float, top_p: float) -> None:
    """The nucleus of a real vocabulary would be another set than Hugging Face's, flat or peaked."""
    scores = random_scores(2, 1, scale)
    params = SamplingParams(temperature=1.0, top_p=top_p)
    laws = truncated_law(scores, params)
    for row, law in enumerate(laws):
        expected = hugging_face.law(hugging_face.warpers(params), [0], scores[row])
        # Both sum thousands of float32 values; the place of the crossing may differ by their rounding.
        assert abs(int(law.count_nonzero()) - int(expected.count_nonzero())) <= 3
        torch.testing.assert_close(law, expected, atol=1e-3 / top_p, rtol=1e-4)
        full = scores[row].double().softmax(-1)
        kept = law > 0
        assert float(full[kept].sum()) >= top_p - 1e-5
        assert float(full[kept].sum() - full[kept].min()) < top_p + 1e-5
        assert float(full[kept].min()) >= float(full[~kept].max())


def test_a_flat_row_does_not_change_a_peaked_one() -> None:
    """A law would depend on the other rows of its block, and seed-exact text on the draft length."""
    peaked = random_scores(1, 2, 4.0).bfloat16().float()
    flat = random_scores(3, 3, 0.01).bfloat16().float()
    for top_p in (0.3, 0.5, 0.7, 0.9, 0.99):
        params = SamplingParams(temperature=1.0, top_p=top_p)
        alone = truncated_law(peaked, params)
        together = truncated_law(torch.cat([flat, peaked]), params)
        assert torch.equal(together[3], alone[0])
        for row in range(3):
            assert torch.equal(together[row], truncated_law(flat[row : row + 1], params)[0])


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=12), st.sampled_from([0.1, 0.35, 0.62, 0.87]))
@settings(deadline=None)
def test_top_p_keeps_the_lowest_ids_of_equal_tokens(values: list[int], top_p: float) -> None:
    """Which of several equal tokens survives would be up to a sorting algorithm."""
    scores = torch.tensor([values], dtype=torch.float32)
    law = truncated_law(scores, SamplingParams(temperature=1.0, top_p=top_p))[0]
    full = scores[0].double().softmax(-1)
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    mass, kept = 0.0, set[int]()
    for token in order:
        if mass >= top_p - 1e-6 and kept:
            break
        kept.add(token)
        mass += float(full[token])
    assert set(law.nonzero().flatten().tolist()) == kept


def test_thousands_of_ties() -> None:
    """An untrained (flat) model would keep every token, whatever top_p says."""
    law = truncated_law(torch.zeros(1, LARGE), SamplingParams(temperature=1.0, top_p=0.1001))[0]
    assert law.nonzero().flatten().tolist() == list(range(501))


def test_top_k_keeps_all_tokens_equal_to_the_kth() -> None:
    """Ties at the k-th place would be cut, unlike in Hugging Face."""
    scores = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0]])
    params = SamplingParams(temperature=1.0, top_k=2)
    law = truncated_law(scores, params)[0]
    assert (law > 0).tolist() == [False, True, True, True, True]
    torch.testing.assert_close(law, hugging_face.law(hugging_face.warpers(params), [0], scores[0]))


@pytest.mark.parametrize("values", [{"top_k": 3}, {"top_p": 0.999999}, {"min_p": 1e-9}])
def test_forbidden_tokens_stay_forbidden(values: dict) -> None:
    """A token at minus infinity would come back through truncation, or make the law NaN."""
    scores = torch.tensor([[-torch.inf, 0.3, -torch.inf, 0.1, -torch.inf]])
    law = truncated_law(scores, SamplingParams(**{"temperature": 0.5, **values}))[0]
    assert (law > 0).tolist() == [False, True, False, True, False]
    assert float(law.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(5))
def test_top_p_just_below_one_keeps_everything(seed: int) -> None:
    """A sum that rounds to less than top_p would leave no place for the crossing, and crash."""
    scores = random_scores(2, seed, 0.5)
    laws = truncated_law(scores, SamplingParams(temperature=1.0, top_p=1 - 1e-12))
    torch.testing.assert_close(laws, scores.softmax(-1), atol=1e-6, rtol=1e-5)
