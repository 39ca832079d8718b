"""`DecoderArchitecture`: what a graph needs to know of a llama-like decoder or of GPT-2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from foredraft.errors import UnsupportedModelError

_ROTARY_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
FAMILIES = (*_ROTARY_FAMILIES, "gpt2")
"""`model_type` of the models that the runner can build."""

# The frequencies of the other kinds ("dynamic", "longrope") change with the length of the sequence.
_FIXED_ROPE_TYPES = ("linear", "llama3", "yarn")


@dataclass(frozen=True)
class DecoderArchitecture:
    """Sizes and constants of one decoder-only transformer."""

    family: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    context_length: int
    norm_epsilon: float
    tied_head: bool
    windows: tuple[int, ...]
    """Sliding window of each layer in tokens, the token itself included; 0 where it sees everything."""
    inverse_frequencies: tuple[float, ...] = ()
    """`head_size / 2` rotary frequencies; empty for learned positions."""
    rope_scale: float = 1.0
    """Factor on cosines and sines (YaRN's attention factor)."""


def read_architecture(config: Any, context_length: int | None = None) -> DecoderArchitecture:
    """The architecture that a Hugging Face configuration describes.

    Args:
        config: a `transformers` configuration of one of `FAMILIES`.
        context_length: tokens that a row will hold at most; None means the model's own limit. Windows
            that are no shorter are dropped.

    Raises:
        UnsupportedModelError: if the family, activation or rotary scaling is one this runner lacks.
    """
    config = config.get_text_config()
    if config.model_type not in FAMILIES:
        raise UnsupportedModelError(
            f"the OpenVINO runner has no graph for model type {config.model_type!r}; "
            f"it has {', '.join(FAMILIES)} (the reference runner takes any)"
        )
    length = min(context_length or config.max_position_embeddings, config.max_position_embeddings)
    if config.model_type == "gpt2":
        return _gpt2(config, length)
    _require_activation(config.hidden_act, ("silu",))
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    frequencies, scale = _rotary(config, head_size)
    return DecoderArchitecture(
        family=config.model_type,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_size=head_size,
        vocab_size=config.vocab_size,
        context_length=length,
        norm_epsilon=config.rms_norm_eps,
        tied_head=bool(config.tie_word_embeddings),
        windows=_windows(config, length),
        inverse_frequencies=frequencies,
        rope_scale=scale,
    )


def _gpt2(config: Any, context_length: int) -> DecoderArchitecture:
    _require_activation(config.activation_function, ("gelu_new", "gelu_pytorch_tanh"))
    if config.scale_attn_by_inverse_layer_idx or not config.scale_attn_weights:
        raise UnsupportedModelError(
            "the OpenVINO runner scales GPT-2's attention by the head size alone; "
            "this model asks for another scale (the reference runner honours it)"
        )
    return DecoderArchitecture(
        family="gpt2",
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_attention_heads,
        head_size=config.hidden_size // config.num_attention_heads,
        vocab_size=config.vocab_size,
        context_length=context_length,
        norm_epsilon=config.layer_norm_epsilon,
        tied_head=bool(config.tie_word_embeddings),
        windows=(0,) * config.num_hidden_layers,
    )


def _require_activation(name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise UnsupportedModelError(
            f"the OpenVINO runner has no activation {name!r} for this family; it has {', '.join(known)}"
        )


def _windows(config: Any, context_length: int) -> tuple[int, ...]:
    window = getattr(config, "sliding_window", None)
    if not getattr(config, "use_sliding_window", True):
        window = None
    if not window or window >= context_length:
        return (0,) * config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _rotary(config: Any, head_size: int) -> tuple[tuple[float, ...], float]:
    """Inverse frequencies and the scale of cosines and sines."""
    parameters: dict[str, Any] = dict(config.rope_parameters)
    kind = parameters.get("rope_type", "default")
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError(
            "the OpenVINO runner rotates whole heads; this model rotates a part of each"
        )
    if kind == "default":
        exponents = torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size
        return tuple((1.0 / parameters["rope_theta"] ** exponents).tolist()), 1.0
    if kind not in _FIXED_ROPE_TYPES:
        raise UnsupportedModelError(
            f"the OpenVINO runner has no rotary scaling {kind!r}; "
            f"it has default, {', '.join(_FIXED_ROPE_TYPES)}"
        )
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return tuple(frequencies.tolist()), float(scale)
