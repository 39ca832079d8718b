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
    # Subtracting the maximum first keeps the smallest temperatures free of overflow.
    scores = (scores - scores.amax(dim=-1, keepdim=True)) / params.temperature
    if 0 < params.top_k < scores.shape[-1]:
        scores = _top_k(scores, params.top_k)
    if params.top_p < 1.0:
        scores = _top_p(scores, params.top_p)
    law = torch.softmax(scores, dim=-1)
    if params.min_p > 0.0:
        law = torch.where(law >= params.min_p * law.amax(dim=-1, keepdim=True), law, 0.0)
        law = law / law.sum(dim=-1, keepdim=True)
    return law


def _top_k(scores: torch.Tensor, k: int) -> torch.Tensor:
    kth_best = scores.topk(k, dim=-1).values[:, -1:]
    return scores.masked_fill(scores < kth_best, -torch.inf)


def _top_p(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the smallest set of best tokens whose mass reaches `top_p`, the crossing token included."""
    vocab = scores.shape[-1]
    candidates = min(_CANDIDATES, vocab)
    log_mass = scores.logsumexp(dim=-1, keepdim=True)
    best, token_ids = scores.topk(candidates, dim=-1)
    law = (best - log_mass).exp()
    if candidates < vocab and bool((law.sum(dim=-1) < top_p).any()):
        best, token_ids = scores.sort(dim=-1, descending=True, stable=True)
        law = (best - log_mass).exp()
    mass_before = law.cumsum(dim=-1) - law
    kept = mass_before < top_p
    kept[:, 0] = True
    result = torch.full_like(scores, -torch.inf)
    return result.scatter(-1, token_ids, best.masked_fill(~kept, -torch.inf))
