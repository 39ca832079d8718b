"""Temperature, top-k, top-p and min-p, in that order, as Hugging Face transformers applies them."""

from __future__ import annotations

import numpy as np
import torch

from foredraft.params import SamplingParams


def truncated_law(scores: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Law of a sampled request.

    Args:
        scores: float32 `[n, vocab]` logits after penalties and bans; -inf marks forbidden tokens.
        params: temperature must not be 0.

    Returns:
        float32 `[n, vocab]`, rows sum to one.
    """
    # Subtracting the maximum first keeps the smallest temperatures free of overflow; a temperature that
    # float32 cannot hold would divide zero by zero.
    temperature = max(params.temperature, torch.finfo(torch.float32).tiny)
    scores = (scores - scores.amax(dim=-1, keepdim=True)) / temperature
    if 0 < params.top_k < scores.shape[-1]:
        scores = _top_k(scores, params.top_k)
    if params.top_p < 1.0:
        scores = _top_p(scores, params.top_p)
    if params.min_p > 0.0:
        scores = _min_p(scores, params.min_p)
    return torch.softmax(scores, dim=-1)


def _top_k(scores: torch.Tensor, k: int) -> torch.Tensor:
    kth_best = scores.topk(k, dim=-1).values[:, -1:]
    return scores.masked_fill(scores < kth_best, -torch.inf)


def _min_p(scores: torch.Tensor, min_p: float) -> torch.Tensor:
    law = torch.softmax(scores, dim=-1)
    return scores.masked_fill(law < min_p * law.amax(dim=-1, keepdim=True), -torch.inf)


def _top_p(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the smallest set of best tokens whose mass reaches `top_p`, the crossing token included.

    Of equal tokens at the boundary the lowest ids are kept. Half-precision models give many, and a choice
    left to the sorting algorithm would make a law depend on the rows that it is computed with.
    """
    vocab = scores.shape[-1]
    law = torch.softmax(scores, dim=-1)
    ascending = _ascending(law)
    mass = ascending.flip(-1).cumsum(dim=-1)
    count = (torch.searchsorted(mass, mass.new_full((len(mass), 1), top_p)) + 1).clamp(max=vocab)
    last = ascending.gather(-1, vocab - count)
    better_or_equal = vocab - torch.searchsorted(ascending, last)
    better = vocab - torch.searchsorted(ascending, last, right=True)
    dropped = law < last
    if bool((better_or_equal > count).any()):
        equal = law == last
        dropped |= equal & (equal.cumsum(dim=-1) > count - better)
    return scores.masked_fill(dropped, -torch.inf)


def _ascending(law: torch.Tensor) -> torch.Tensor:
    """The probabilities of each row `[n, vocab]`, smallest first."""
    if law.device.type != "cpu":
        return law.sort(dim=-1).values
    # numpy's vectorised sort takes a tenth of the time of torch's, which carries indices along.
    return torch.from_numpy(np.sort(law.numpy(force=True), axis=-1))
