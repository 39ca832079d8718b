"""Attention inside chunks of positions (Llama 4): cached steps equal uncached forwards over chunk borders."""

from __future__ import annotations

import random

import pytest
import torch
from shadow_rows import ShadowRows, assert_like_a_fresh_prefill
from transformers import Llama4ForCausalLM, Llama4TextConfig, PreTrainedModel

from foredraft.execution import ReferenceRunner, RowInput
from tiny_models import random_tokens

CHUNK = 8


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    """Two layers, one chunked and one full, with experts."""
    torch.manual_seed(0)
    config = Llama4TextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, intermediate_size_mlp=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=256,
        num_local_experts=2, initializer_range=0.3, attention_chunk_size=CHUNK,
        layer_types=["chunked_attention", "full_attention"], pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return Llama4ForCausalLM(config).eval()


def _shadow(model: PreTrainedModel) -> ShadowRows:
    return ShadowRows(ReferenceRunner(model, context_length=256), model, 2)


@pytest.mark.parametrize("prompt_length", [1, 7, 8, 9, 20])
def test_chunk_borders_are_crossed_and_rolled_back_over(model, prompt_length):
    """Without the border a text longer than one chunk is another model's; a short check at load misses it."""
    choose = random.Random(prompt_length)
    shadow = _shadow(model)
    shadow.step([RowInput(0, random_tokens(prompt_length, 1), 1), RowInput(1, random_tokens(3, 2), 1)])
    while len(shadow.rows[0]) < prompt_length + 50:
        count = choose.choice([1, 3, CHUNK, CHUNK + 3])
        tokens = random_tokens(count, len(shadow.rows[0]))
        shadow.step([RowInput(0, tokens, count), RowInput(1, tokens[:2], 1)])
        shadow.truncate(0, len(shadow.rows[0]) - choose.randrange(count))
    assert_like_a_fresh_prefill(shadow)


def test_a_tree_over_a_chunk_border_counts_positions(model):
    """In a tree a slot is no position: the border lies at another node of each path."""
    shadow = _shadow(model)
    shadow.step([RowInput(0, random_tokens(6, 1), 1)])
    parents = [-1, 0, 0, 1, 2, 3, 4, 5, 6]
    shadow.step([RowInput(0, random_tokens(9, 2), 9, parents)])
    shadow.keep(0, 6, [0, 2, 4, 6, 8])
    shadow.step([RowInput(0, random_tokens(2, 4), 2)])
    assert_like_a_fresh_prefill(shadow)
