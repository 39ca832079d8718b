"""The one sampling function: plain decoding, drafting, residuals and bonus tokens all draw here."""

from __future__ import annotations

import torch

from foredraft.laws.noise import uniform

_CHUNK = 1 << 15
"""Arrivals computed at a time, so that the temporaries of a whole vocabulary stay in the CPU's cache."""

_SPARSE = 0.25
"""Below this share of positive probabilities the race is run on the support alone."""


def sample(law: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Draw one token from each law by an exponential race.

    Token x wins if `E_x / p(x)` is smallest, with `E_x = -log U_x` standard exponential; then
    `P(x wins) = p(x)` exactly (the Gumbel-max trick). Because the noise is keyed by token id, two laws
    drawn with one key tend to give the same token, which is what seed-exact verification lives on
    (Daliri, Musco & Suresh 2024, arXiv 2408.07978).

    Args:
        law: float `[n, vocab]`, non-negative; rows need not sum to one, but each has some mass.
        keys: int64 `[n]`, from `noise_key`.

    Returns:
        int64 `[n]` token ids, each with positive probability.
    """
    if int(law.count_nonzero()) < _SPARSE * law.numel():
        return _race_on_support(law, keys)
    return _race_on_vocabulary(law, keys)


def sample_one(law: torch.Tensor, key: int) -> int:
    """`sample` for a single law `[vocab]`."""
    keys = torch.tensor([key], dtype=torch.int64, device=law.device)
    return int(sample(law.unsqueeze(0), keys))


def _arrival(law: torch.Tensor, keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    # Zero probability arrives at infinity, since the exponential is never zero.
    return uniform(keys, token_ids).log_().neg_().div_(law)


def _race_on_support(law: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """After top-k or top-p the support is a handful of tokens."""
    rows, token_ids = law.nonzero(as_tuple=True)
    arrival = _arrival(law[rows, token_ids], keys[rows], token_ids)
    first = torch.full(keys.shape, torch.inf, dtype=torch.float64, device=law.device)
    first.scatter_reduce_(0, rows, arrival, "amin")
    wins = arrival == first[rows]
    return torch.zeros_like(keys).scatter_(0, rows[wins], token_ids[wins])


def _race_on_vocabulary(law: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    first = torch.full(keys.shape, torch.inf, dtype=torch.float64, device=law.device)
    winner = torch.zeros_like(keys)
    step = max(1, _CHUNK // max(1, len(keys))) if law.device.type == "cpu" else law.shape[-1]
    for start in range(0, law.shape[-1], step):
        chunk = law[:, start : start + step]
        token_ids = torch.arange(start, start + chunk.shape[-1], device=law.device)
        earliest = _arrival(chunk, keys.unsqueeze(-1), token_ids).min(dim=-1)
        winner = torch.where(earliest.values < first, earliest.indices + start, winner)
        first = torch.minimum(first, earliest.values)
    return winner
