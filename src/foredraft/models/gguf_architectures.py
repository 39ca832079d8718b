"""How the architectures found in GGUF files are spelled in transformers: configuration and tensor names."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import GPT2Config, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from foredraft.errors import ModelError, UnsupportedModelError
from foredraft.models.gguf_file import GGUFFile

Weights = npt.NDArray[np.float32]

ROPE_FACTORS = "rope_freqs.weight"
"""Divisors of the rotary frequencies, the form in which llama.cpp stores Llama 3's rotary scaling."""

_UNHANDLED_KEYS = (
    "expert_count",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.scale",
    "attention.sliding_window",
    "attention.value_length",
    "attn_logit_softcapping",
    "embedding_scale",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
)
"""Keys that change the mathematics in a way that the configurations below do not carry."""


@dataclass(frozen=True)
class Architecture:
    """One GGUF architecture."""

    build_config: Callable[[GGUFFile], PretrainedConfig]
    names: dict[str, str]
    """transformers' module names by GGUF's, both without `.weight` and `.bias`; `{}` is the layer."""
    restore: Callable[[str, Weights, PretrainedConfig], Weights]
    """Undo what the conversion to GGUF did to a tensor, given its GGUF name."""

    def hf_name(self, name: str) -> str | None:
        """transformers' name of a GGUF tensor, None for one it does not know."""
        module, _, leaf = name.rpartition(".")
        layer = re.match(r"blk\.(\d+)\.", module)
        target = self.names.get(re.sub(r"^blk\.\d+\.", "blk.{}.", module))
        if target is None or leaf not in ("weight", "bias"):
            return None
        return f"{target.format(layer[1]) if layer else target}.{leaf}"


def architecture_of(file: GGUFFile) -> Architecture:
    """The entry for this file.

    Raises:
        UnsupportedModelError: if there is none, or the file asks for something the entry lacks.
    """
    found = ARCHITECTURES.get(file.architecture)
    if found is None:
        raise UnsupportedModelError(
            f"{file.path}: GGUF files of architecture {file.architecture!r} are not supported "
            f"(supported: {', '.join(ARCHITECTURES)}); use the model's safetensors instead"
        )
    for key in _UNHANDLED_KEYS:
        value = file.metadata.get(f"{file.architecture}.{key}")
        if value and not (key == "attention.value_length" and value == _head_dim(file)):
            raise UnsupportedModelError(
                f"{file.path}: {file.architecture}.{key} = {value} is not supported in GGUF files; "
                "use the model's safetensors instead"
            )
    return found


def _need(file: GGUFFile, key: str) -> Any:
    name = f"{file.architecture}.{key}"
    if name not in file.metadata:
        raise ModelError(f"{file.path}: the GGUF file lacks the key {name!r}")
    return file.metadata[name]


def _rows(file: GGUFFile, tensor: str) -> int:
    if tensor not in file.tensors:
        raise ModelError(f"{file.path}: the GGUF file lacks the tensor {tensor!r}")
    return file.tensors[tensor].shape[0]


def _head_dim(file: GGUFFile) -> int:
    default = _need(file, "embedding_length") // _need(file, "attention.head_count")
    return int(file.metadata.get(f"{file.architecture}.attention.key_length", default))


def _ends(file: GGUFFile) -> dict[str, Any]:
    """Begin, end and padding ids; end of turn and end of message end the text too."""
    ids = {name: file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "padding")}
    keys = (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
    ends = list(dict.fromkeys(file.metadata[key] for key in keys if key in file.metadata))
    eos = ends[0] if len(ends) == 1 else ends or None
    return {"bos_token_id": ids["bos"], "pad_token_id": ids["padding"], "eos_token_id": eos}


def _rope(file: GGUFFile, context: int) -> dict[str, Any]:
    prefix = f"{file.architecture}.rope"
    if file.metadata.get(f"{prefix}.dimension_count", _head_dim(file)) != _head_dim(file):
        raise UnsupportedModelError(
            f"{file.path}: rotary embeddings over a part of the head are not supported"
        )
    theta = float(file.metadata.get(f"{prefix}.freq_base", 10000.0))
    kind = file.metadata.get(f"{prefix}.scaling.type", "none")
    if ROPE_FACTORS in file.tensors:
        # Equal short and long factors make LongRoPE the static division that llama.cpp performs.
        factors = [float(value) for value in file.dequantized(ROPE_FACTORS)]
        return {
            "rope_type": "longrope",
            "rope_theta": theta,
            "short_factor": factors,
            "long_factor": factors,
            "factor": 1.0,
            "attention_factor": 1.0,
            "original_max_position_embeddings": context,
        }
    if kind == "none":
        return {"rope_type": "default", "rope_theta": theta}
    scaling = {"rope_theta": theta, "factor": float(_need(file, "rope.scaling.factor"))}
    if kind == "linear":
        return {"rope_type": "linear", **scaling}
    if kind == "yarn":
        original = int(_need(file, "rope.scaling.original_context_length"))
        return {"rope_type": "yarn", "original_max_position_embeddings": original, **scaling}
    raise UnsupportedModelError(f"{file.path}: rotary scaling {kind!r} is not supported in GGUF files")


def _rotary_fields(file: GGUFFile) -> dict[str, Any]:
    context = int(_need(file, "context_length"))
    heads = int(_need(file, "attention.head_count"))
    return {
        "vocab_size": _rows(file, "token_embd.weight"),
        "hidden_size": _need(file, "embedding_length"),
        "intermediate_size": _need(file, "feed_forward_length"),
        "num_hidden_layers": _need(file, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": int(file.metadata.get(f"{file.architecture}.attention.head_count_kv", heads)),
        "head_dim": _head_dim(file),
        "rms_norm_eps": _need(file, "attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": context,
        "rope_parameters": _rope(file, context),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **_ends(file),
    }


def _llama_config(file: GGUFFile) -> PretrainedConfig:
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        **_rotary_fields(file),
    )


def _qwen2_config(file: GGUFFile) -> PretrainedConfig:
    return Qwen2Config(architectures=["Qwen2ForCausalLM"], **_rotary_fields(file))


def _qwen3_config(file: GGUFFile) -> PretrainedConfig:
    return Qwen3Config(
        architectures=["Qwen3ForCausalLM"],
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        **_rotary_fields(file),
    )


def _gpt2_config(file: GGUFFile) -> PretrainedConfig:
    return GPT2Config(
        architectures=["GPT2LMHeadModel"],
        vocab_size=_rows(file, "token_embd.weight"),
        n_embd=_need(file, "embedding_length"),
        n_layer=_need(file, "block_count"),
        n_head=_need(file, "attention.head_count"),
        n_inner=_need(file, "feed_forward_length"),
        n_positions=_need(file, "context_length"),
        layer_norm_epsilon=_need(file, "attention.layer_norm_epsilon"),
        tie_word_embeddings="output.weight" not in file.tensors,
        **_ends(file),
    )


def _as_is(name: str, weights: Weights, config: PretrainedConfig) -> Weights:
    return weights


def _unpermuted(name: str, weights: Weights, config: PretrainedConfig) -> Weights:
    """Llama's query and key rows: GGUF interleaves the two halves of each head, transformers does not."""
    settings: Any = config
    heads = {"attn_q": settings.num_attention_heads, "attn_k": settings.num_key_value_heads}
    count = heads.get(name.split(".")[-2])
    if count is None:
        return weights
    return weights.reshape(count, -1, 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def _transposed(name: str, weights: Weights, config: PretrainedConfig) -> Weights:
    """GPT-2 in transformers keeps its layer matrices as [in, out]."""
    is_matrix = name.startswith("blk.") and weights.ndim == 2
    return np.ascontiguousarray(weights.T) if is_matrix else weights


_ROTARY_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_norm",
    "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_norm",
    "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
}

_GPT2_NAMES = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{}.attn_norm": "transformer.h.{}.ln_1",
    "blk.{}.attn_qkv": "transformer.h.{}.attn.c_attn",
    "blk.{}.attn_output": "transformer.h.{}.attn.c_proj",
    "blk.{}.ffn_norm": "transformer.h.{}.ln_2",
    "blk.{}.ffn_up": "transformer.h.{}.mlp.c_fc",
    "blk.{}.ffn_down": "transformer.h.{}.mlp.c_proj",
}

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(_llama_config, _ROTARY_NAMES, _unpermuted),
    "qwen2": Architecture(_qwen2_config, _ROTARY_NAMES, _as_is),
    "qwen3": Architecture(_qwen3_config, _ROTARY_NAMES, _as_is),
    "gpt2": Architecture(_gpt2_config, _GPT2_NAMES, _transposed),
}
