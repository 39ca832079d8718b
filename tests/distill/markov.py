"""A tiny target whose law is worth learning: a Llama fitted to a Markov chain of order two."""

from __future__ import annotations

from functools import cache

import torch
from transformers import LlamaForCausalLM

from tiny_models import llama

TOKENS = 24
"""Ids of the chain are 3 ... 3 + TOKENS - 1."""


def chain_law() -> torch.Tensor:
    """`[TOKENS, TOKENS, TOKENS]`: the law of the next state after two states; a few likely ones each."""
    torch.manual_seed(5)
    return torch.softmax(2.5 * torch.randn(TOKENS, TOKENS // 4, TOKENS), -1).repeat_interleave(4, dim=1)


def chain(count: int, length: int, seed: int) -> torch.Tensor:
    """int64 `[count, length]` token ids."""
    law, noise = chain_law(), torch.Generator().manual_seed(seed)
    states = torch.randint(TOKENS, (count, 2), generator=noise)
    for _ in range(length - 2):
        rows = law[states[:, -1], states[:, -2]]
        states = torch.cat([states, torch.multinomial(rows, 1, generator=noise)], dim=1)
    return states + 3


@cache
def fitted_target() -> LlamaForCausalLM:
    """Three layers, fitted in a few seconds; the same object every time, leave its weights alone."""
    model = llama(seed=3, num_hidden_layers=3, initializer_range=0.1, max_position_embeddings=128)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(250):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (1 - step / 250)
        tokens = chain(32, 32, seed=step)
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval().requires_grad_(False)
