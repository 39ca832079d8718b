"""Temperature, top-k, top-p and min-p, in that order, as Hugging Face transformers applies them."""

from __future__ import annotations

import torch

from foredraft.params import SamplingParams

_CANDIDATES = 1024
"""Top-p first looks at this many best tokens; only a flatter law needs the whole vocabulary sorted."""


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
    law = torch.softmax(scores, dim=-1)
    best, count = _nucleus(law, top_p)
    last = best.gather(-1, count - 1)
    kept_ties = ((best == last) & (torch.arange(best.shape[-1], device=best.device) < count)).sum(-1, True)
    ties = law == last
    dropped = law < last
    if bool((ties.sum(-1, True) > kept_ties).any()):
        dropped |= ties & (ties.cumsum(dim=-1) > kept_ties)
    return scores.masked_fill(dropped, -torch.inf)


def _nucleus(law: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The best probabilities `[n, m]`, descending, and how many of them `[n, 1]` make up `top_p`."""
    vocab = law.shape[-1]
    best = law.topk(min(_CANDIDATES, vocab), dim=-1).values
    if best.shape[-1] < vocab and bool((best.sum(dim=-1) < top_p).any()):
        best = law.sort(dim=-1, descending=True).values
    mass_before = best.cumsum(dim=-1) - best
    return best, (mass_before < top_p).sum(dim=-1, keepdim=True).clamp(min=1)
