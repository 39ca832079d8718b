"""Counter-based noise: uniform, distinct for every purpose, and the same for ever."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from foredraft.laws import NoiseStream, noise_key, uniform_scalar
from foredraft.laws.noise import uniform

seeds = st.integers(0, 2**63 - 1)


def test_keys_are_distinct() -> None:
    """Two draws of one request, or requests with neighbouring seeds, would share their noise."""
    keys = {
        noise_key(seed, sample, stream, position, round_index)
        for seed, sample, stream, position, round_index in itertools.product(
            (0, 1, 2, 3, 41, 42, 2**63 - 1), range(4), NoiseStream, range(64), range(4)
        )
    }
    assert len(keys) == 7 * 4 * 3 * 64 * 4


@given(
    seeds, st.integers(0, 4095), st.sampled_from(NoiseStream), st.integers(0, 2**20), st.integers(0, 2**20)
)
def test_key_fits_an_int64_tensor(
    seed: int, sample: int, stream: NoiseStream, position: int, round_index: int
) -> None:
    """Some request would crash when its key becomes a tensor."""
    key = noise_key(seed, sample, stream, position, round_index)
    assert int(torch.tensor([key], dtype=torch.int64)) == key


@given(st.integers(-(2**63), 2**63 - 1))
def test_scalar_and_tensor_agree(key: int) -> None:
    """The pure Python hash and the tensor hash would be two different generators."""
    noise = uniform(torch.tensor([key]), torch.tensor([0]))
    assert float(noise) == uniform_scalar(key)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**31))
def test_uniform_is_strictly_inside(key: int, token: int) -> None:
    """A uniform of 0 or 1 would give an infinite or a zero arrival, or accept a forbidden token."""
    assert 0.0 < float(uniform(torch.tensor([key]), torch.tensor([token]))) < 1.0


def test_extreme_hashes_are_strictly_inside() -> None:
    """The 52 bits at their extremes would be rounded to 0 or 1."""
    for bits in (0, 2**52 - 1):
        assert 0.0 < (torch.tensor(bits).double() + 0.5).item() * 2.0**-52 < 1.0
    # splitmix64 maps 0 to 0, the smallest hash there is.
    assert uniform_scalar(0) == 2.0**-53
    assert float(-torch.log(torch.tensor(1 - 2.0**-53, dtype=torch.float64))) > 0.0


def test_noise_is_uniform_over_tokens_positions_and_seeds() -> None:
    """Sampling would be biased along one of the parts of a key."""
    key = noise_key(7, 0, NoiseStream.TARGET, 3)
    over_tokens = uniform(torch.tensor([key]), torch.arange(50_000)).tolist()
    over_positions = [uniform_scalar(noise_key(7, 0, NoiseStream.ACCEPT, i)) for i in range(20_000)]
    over_seeds = [uniform_scalar(noise_key(i, 0, NoiseStream.ACCEPT, 3)) for i in range(20_000)]
    over_samples = [uniform_scalar(noise_key(7, i, NoiseStream.ACCEPT, 3)) for i in range(4096)]
    for values in (over_tokens, over_positions, over_seeds, over_samples):
        assert stats.kstest(values, "uniform").pvalue > 1e-4


def test_neighbours_are_independent() -> None:
    """Noise of neighbouring tokens, positions, rounds or streams would be correlated."""
    keys = torch.tensor([noise_key(5, 0, NoiseStream.DRAFT, position) for position in range(2_000)])
    grid = uniform(keys.unsqueeze(-1), torch.arange(8))
    others = [
        torch.tensor([uniform_scalar(noise_key(5, *parts(position))) for position in range(2_000)])
        for parts in (
            lambda position: (0, NoiseStream.DRAFT, position, 1),
            lambda position: (0, NoiseStream.ACCEPT, position, 0),
            lambda position: (1, NoiseStream.DRAFT, position, 0),
        )
    ]
    columns = torch.stack([*grid.unbind(-1), grid[:, 0].roll(1), *others])
    correlation = torch.corrcoef(columns).fill_diagonal_(0.0).abs().max()
    assert float(correlation) < 5 / 2_000**0.5


def test_shapes_broadcast() -> None:
    """Noise of a batch would differ from that of its rows."""
    keys, token_ids = torch.tensor([[3], [-4]]), torch.tensor([0, 9, 2])
    noise = uniform(keys, token_ids)
    assert noise.dtype == torch.float64
    for row, key in enumerate((3, -4)):
        for column, token in enumerate((0, 9, 2)):
            assert noise[row, column] == uniform(torch.tensor([key]), torch.tensor([token]))
    assert keys.tolist() == [[3], [-4]] and token_ids.tolist() == [0, 9, 2]


@pytest.mark.parametrize(
    ("parts", "key", "first", "hundredth"),
    [
        ((0, 0, NoiseStream.TARGET, 0, 0), 8695987549771912286, 0.8140072558130625, 0.8731029465764301),
        ((42, 0, NoiseStream.TARGET, 17, 0), 6740308884959299606, 0.984082824113078, 0.9873219844552489),
        ((42, 3, NoiseStream.DRAFT, 17, 5), 9175626663296533310, 0.32407543417378715, 0.3899580697928565),
        (
            (2**63 - 1, 0, NoiseStream.ACCEPT, 100_000, 99),
            -840598139500452586,
            0.2829457427764307,
            0.13361116426463127,
        ),
    ],
)
def test_noise_never_changes(
    parts: tuple[int, int, NoiseStream, int, int], key: int, first: float, hundredth: float
) -> None:
    """A release would change the text of every seed without anybody having decided it."""
    assert noise_key(*parts) == key
    assert uniform_scalar(key) == first
    assert float(uniform(torch.tensor([key]), torch.tensor([100]))) == hundredth
