"""Tiny random models, and GGUF files written from them as llama.cpp's conversion would."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from foredraft.models.gguf_architectures import ARCHITECTURES

SIZES = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
    "bos_token_id": 1,
}


def tiny(family: str, **changes: object) -> PreTrainedModel:
    """A random model of one of the families that GGUF files may hold."""
    torch.manual_seed(0)
    settings = {**SIZES, **changes}
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, **settings)).eval()
    if family == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(tie_word_embeddings=False, **settings)).eval()
    if family == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(tie_word_embeddings=False, head_dim=32, **settings)).eval()
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=300, n_embd=64, n_layer=2, n_head=4, n_inner=96, n_positions=128, eos_token_id=2
        )
    ).eval()


def permuted(weights: np.ndarray, heads: int) -> np.ndarray:
    """The order in which llama.cpp's conversion writes Llama's query and key rows."""
    return weights.reshape(heads, 2, -1, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def tensor_for_gguf(family: str, name: str, weights: np.ndarray) -> np.ndarray:
    if family == "llama" and re.search(r"attn_[qk]\.", name):
        return permuted(weights, 4 if "attn_q" in name else 2)
    if family == "gpt2" and name.startswith("blk.") and weights.ndim == 2:
        return np.ascontiguousarray(weights.T)
    return weights


def write_metadata(writer: gguf.GGUFWriter, family: str) -> None:
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    if family == "gpt2":
        writer.add_layer_norm_eps(1e-5)
        return
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    if family == "qwen3":
        writer.add_key_length(32)
        writer.add_value_length(32)


def write_gguf_file(
    path: Path,
    family: str,
    model: PreTrainedModel | None = None,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    extra: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> Path:
    """Write a model of a family, its matrices in the given quantisation."""
    model = model or tiny(family)
    writer = gguf.GGUFWriter(path, family)
    write_metadata(writer, family)
    extra(writer)
    state = model.state_dict()
    names = {ARCHITECTURES[family].names[key]: key for key in ARCHITECTURES[family].names}
    for hf_name, tensor in state.items():
        module, _, leaf = hf_name.rpartition(".")
        if module == "lm_head" and model.config.tie_word_embeddings:
            continue
        layer = re.search(r"\.(\d+)\.", hf_name)
        pattern = re.sub(r"\.\d+\.", ".{}.", module)
        target = f"{names[pattern].format(layer[1]) if layer else names[pattern]}.{leaf}"
        weights = tensor_for_gguf(family, target, tensor.numpy())
        if weights.ndim == 2 and kind != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(target, gguf.quants.quantize(weights, kind), raw_dtype=kind)
        else:
            writer.add_tensor(target, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
