"""Tiny random models of every family that the OpenVINO runner builds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY = 97
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

_MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_SIZES, tie_word_embeddings=True)),
    "llama3": lambda: LlamaForCausalLM(
        LlamaConfig(**_SIZES, attention_bias=True, mlp_bias=True, rope_parameters=_LLAMA3_ROPE)
    ),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**_SIZES, sliding_window=40)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_SIZES, head_dim=32)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_embd=64, n_layer=3, n_head=4, n_positions=512)
    ),
}
FAMILIES = tuple(_MODELS)


@functools.cache
def tiny_model(family: str) -> PreTrainedModel:
    """The family's model with weights large enough for every part to show in the logits."""
    torch.manual_seed(0)
    model = _MODELS[family]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@torch.inference_mode()
def full_forward(model: PreTrainedModel, tokens: list[int]) -> Any:
    """The model's own uncached output for one sequence."""
    return model(torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
