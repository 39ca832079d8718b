"""The one sampling function: plain decoding, drafting, residuals and bonus tokens all draw here."""

from __future__ import annotations

import torch

from foredraft.laws.noise import uniform


def sample(law: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Draw one token from each law by an exponential race.

    Token x wins if `E_x / p(x)` is smallest, with `E_x = -log U_x` standard exponential; then
    `P(x wins) = p(x)` exactly (the Gumbel-max trick). Because the noise is keyed by token id, two laws
    drawn with one key tend to give the same token, which is what seed-exact verification lives on
    (Daliri, Musco & Suresh 2024, arXiv 2408.07978).

    Args:
        law: float `[n, vocab]`, non-negative; rows need not sum to one.
        keys: int64 `[n]`, from `noise_key`.

    Returns:
        int64 `[n]` token ids, each with positive probability.
    """
    # The race is run on the support alone: after top-k or top-p that is a handful of tokens.
    rows, token_ids = law.nonzero(as_tuple=True)
    exponential = -torch.log(uniform(keys[rows], token_ids))
    arrival = exponential / law[rows, token_ids].to(torch.float64)
    race = torch.full(law.shape, torch.inf, dtype=torch.float64, device=law.device)
    race[rows, token_ids] = arrival
    return race.argmin(dim=-1)


def sample_one(law: torch.Tensor, key: int) -> int:
    """`sample` for a single law `[vocab]`."""
    keys = torch.tensor([key], dtype=torch.int64, device=law.device)
    return int(sample(law.unsqueeze(0), keys))
