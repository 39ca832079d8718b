"""The exponential race: right frequencies, and a token that depends on nothing but key and law."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from foredraft.laws import NoiseStream, noise_key, sample, sample_one

DRAWS = 20_000


def keys(count: int, seed: int = 0, stream: NoiseStream = NoiseStream.TARGET) -> torch.Tensor:
    """One key for each of `count` positions."""
    return torch.tensor(
        [noise_key(seed, 0, stream, position) for position in range(count)], dtype=torch.int64
    )


def random_law(vocab: int, seed: int, support: int | None = None, scale: float = 2.0) -> torch.Tensor:
    """float32 `[vocab]`, with at most `support` positive probabilities."""
    logits = scale * torch.randn(vocab, generator=torch.Generator().manual_seed(seed))
    if support is not None:
        logits = logits.masked_fill(logits < logits.topk(support).values[-1], -torch.inf)
    return logits.softmax(-1)


LAWS = {
    "dense": random_law(12, 1),
    "flat": torch.full((12,), 1 / 12),
    "sparse": random_law(40, 2, support=5),
    "peaked": random_law(12, 3, scale=5.0),
}


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
def test_frequencies_are_the_law(law: torch.Tensor) -> None:
    """Text would follow another distribution than the model's."""
    tokens = sample(law.expand(DRAWS, -1), keys(DRAWS))
    observed = tokens.bincount(minlength=len(law)).double()
    expected = law.double() / law.double().sum() * DRAWS
    assert float(observed[law == 0].sum()) == 0
    common = expected >= 5
    cells = torch.cat([observed[common], observed[~common].sum(0, keepdim=True)])
    means = torch.cat([expected[common], expected[~common].sum(0, keepdim=True)])
    if float(means[-1]) < 5:
        cells, means = cells[:-1], means[:-1]
    means *= cells.sum() / means.sum()
    assert stats.chisquare(cells.numpy(), means.numpy()).pvalue > 1e-4


def test_frequencies_catch_a_wrong_law() -> None:
    """The test of frequencies would pass a law at another temperature."""
    law = LAWS["dense"].double()
    observed = sample((law**1.1).expand(DRAWS, -1), keys(DRAWS)).bincount(minlength=12)
    assert stats.chisquare(observed.numpy(), (law / law.sum() * DRAWS).numpy()).pvalue < 1e-6


@given(st.integers(0, 2**32), st.integers(2, 60), st.integers(1, 60))
@settings(deadline=None)
def test_never_draws_a_zero(seed: int, vocab: int, support: int) -> None:
    """A token outside top-k or top-p, or one that is forbidden, would be written."""
    law = random_law(vocab, seed, min(vocab, support))
    for key in keys(4, seed).tolist():
        assert float(law[sample_one(law, key)]) > 0


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 0.5, 3.0, 1e30])
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
def test_law_need_not_be_normalised(law: torch.Tensor, scale: float) -> None:
    """A residual would have to be normalised first, and would lose its smallest probabilities."""
    rows, draw_keys = law.double().expand(2_000, -1), keys(2_000)
    assert torch.equal(sample(rows, draw_keys), sample(rows * scale, draw_keys))


def test_token_is_kept_when_the_support_shrinks() -> None:
    """Top-k or top-p would reshuffle the noise, and a draft's law with other zeros would never match."""
    law = random_law(64, 5)
    truncated = torch.where(law >= law.topk(8).values[-1], law, 0.0)
    full, kept = (sample(row.expand(2_000, -1), keys(2_000)) for row in (law, truncated))
    survives = truncated[full] > 0
    assert torch.equal(full[survives], kept[survives])
    assert 0 < int(survives.sum()) < 2_000


@pytest.mark.parametrize("vocab", [3, 1_000, 32_767, 32_768, 32_769, 70_001])
def test_token_does_not_depend_on_the_batch(vocab: int) -> None:
    """A row of a batch would draw another token than alone: dense and sparse rows race differently."""
    laws = torch.stack(
        [
            random_law(vocab, 6),
            random_law(vocab, 7, support=2),
            random_law(vocab, 8, scale=0.01),
            random_law(vocab, 9, support=max(1, vocab // 2)),
            torch.nn.functional.one_hot(torch.tensor(vocab - 1), vocab).float(),
        ]
    )
    draw_keys = keys(len(laws), seed=vocab)
    together = sample(laws, draw_keys).tolist()
    assert together == [sample_one(law, key) for law, key in zip(laws, draw_keys.tolist(), strict=True)]
    mostly_sparse = torch.cat([laws[:1], laws[1:2].expand(20, -1)])
    assert together[0] == int(sample(mostly_sparse, draw_keys[:1].expand(21))[0])
    assert together[4] == vocab - 1


def test_shared_noise_couples_draft_and_target() -> None:
    """Seed-exact verification would accept less (or more) than the theory of the coupling says."""
    for seed in range(3):
        p, q = random_law(8, 10 + seed).double(), random_law(8, 20 + seed).double()
        drafted, target = (sample(law.expand(DRAWS, -1), keys(DRAWS, seed)) for law in (q, p))
        rate = float((drafted == target).double().mean())
        ratios = torch.maximum(p / p.unsqueeze(-1), q / q.unsqueeze(-1))
        predicted = float((1 / ratios.sum(-1)).sum())
        error = (predicted * (1 - predicted) / DRAWS) ** 0.5
        assert abs(rate - predicted) < 4.5 * error
        variation = float((p - q).abs().sum() / 2)
        assert (1 - variation) / (1 + variation) - 1e-12 <= predicted <= 1 - variation + 1e-12
        independent = sample(q.expand(DRAWS, -1), keys(DRAWS, seed, NoiseStream.DRAFT))
        assert abs(float((independent == target).double().mean()) - float((p * q).sum())) < 0.02


def test_empty_batch() -> None:
    """A round with no row to draw for would crash."""
    assert sample(torch.empty(0, 5), keys(0)).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tokens_never_change(dtype: torch.dtype) -> None:
    """A release would change the text of every seed without anybody having decided it."""
    dense = 1 / torch.arange(1, 50_001, dtype=dtype)
    sparse = torch.where(torch.arange(50_000) % 977 == 5, 1.0, 0.0).to(dtype)
    draw_keys = keys(8, seed=42)
    assert sample(dense.expand(8, -1), draw_keys).tolist() == [8837, 3345, 270, 178, 7674, 0, 1642, 23]
    assert sample(sparse.expand(8, -1), draw_keys).tolist() == [
        29315,
        23453,
        30292,
        24430,
        19545,
        41039,
        4890,
        26384,
    ]
