"""Which models foredraft can run without risking wrong text, decided from the configuration alone."""

from __future__ import annotations

import inspect
from typing import Any

from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

_ROLLBACK_LAYERS = {"attention", "full_attention", "sliding_attention", "chunked_attention"}
"""Layer types whose cache is keys and values by position, so that its tail can be forgotten."""

_LAYER_PARTS = {"attn_config", "ffn_config"}
"""Nested configurations that describe a layer, not a second model."""

_GENERATING_NAMES = ("ForCausalLM", "LMHeadModel", "LMHead")


def unsupported_reason(config: PretrainedConfig) -> str | None:
    """Why a model of this configuration is refused, as the rest of a sentence; None if it is not.

    transformers' own declarations decide (encoder-decoder flag, registries of architectures, layer types,
    statefulness, the arguments of `forward`), not a list of model names kept here.
    """
    for reason in (
        _is_not_decoder(config),
        _is_composite(config),
        _is_other_head(config),
        _keeps_state(config),
        _windows_by_slot(config),
    ):
        if reason:
            return reason
    return None


def causal_model_class(config: PretrainedConfig) -> Any | None:
    """transformers' causal language model class for the configuration, None if it has none."""
    mapping: Any = AutoModelForCausalLM._model_mapping  # pyright: ignore[reportPrivateUsage]
    if type(config) not in mapping:
        return None
    found = mapping[type(config)]
    return found[0] if isinstance(found, tuple) else found


def needs_remote_code(config: PretrainedConfig) -> bool:
    """Whether only code shipped with the model can run it."""
    auto_map = getattr(config, "auto_map", None) or {}
    return "AutoModelForCausalLM" in auto_map and causal_model_class(config) is None


def sdpa_is_safe(config: PretrainedConfig) -> bool:
    """Whether PyTorch's scaled dot product attention computes this model's attention.

    It has no soft cap on the logits and no sinks, so models with those run transformers' eager attention.
    """
    if getattr(config, "attn_logit_softcapping", None):
        return False
    model = causal_model_class(config)
    return bool(getattr(model, "_supports_sdpa", False))


def _is_not_decoder(config: PretrainedConfig) -> str | None:
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False) or kind in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        return f"{kind} is an encoder-decoder; foredraft runs decoder-only language models"
    if kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return f"{kind} is an encoder (it fills in masks); foredraft runs decoder-only language models"
    return None


def _is_composite(config: PretrainedConfig) -> str | None:
    declared: Any = getattr(type(config), "sub_configs", None) or {}
    parts = sorted(set(declared) - _LAYER_PARTS)
    if not parts:
        return None
    return (
        f"{config.model_type} is made of several models ({', '.join(parts)}); foredraft runs text-only models"
    )


def _is_other_head(config: PretrainedConfig) -> str | None:
    names: list[str] = list(getattr(config, "architectures", None) or [])
    if not names or any(name.endswith(_GENERATING_NAMES) for name in names):
        if causal_model_class(config) is None and not needs_remote_code(config):
            return f"{config.model_type} has no causal language model in the installed transformers"
        return None
    return (
        f"it was saved as {names[0]}, which does not predict the next token; a ...ForCausalLM model is needed"
    )


def _keeps_state(config: PretrainedConfig) -> str | None:
    layers = {str(kind) for kind in getattr(config, "layer_types", None) or ()} - _ROLLBACK_LAYERS
    if layers:
        names = ", ".join(sorted(layers))
        return f"its {names} layers keep state that cannot be rolled back after a rejected draft"
    model = causal_model_class(config)
    return None if model is None else class_keeps_state(model)


def _windows_by_slot(config: PretrainedConfig) -> str | None:
    # GPT-Neo cuts its local windows out of a buffer by slot, not out of the mask by position.
    if "local" in (getattr(config, "attention_layers", None) or ()):
        return "its local attention layers cannot run rows of different length; the window would be wrong"
    return None


def class_keeps_state(model: Any) -> str | None:
    """The same question asked of a model class; remote code is only known once it is loaded."""
    if getattr(model, "_is_stateful", False):
        return f"{model.__name__} is recurrent: its state cannot be rolled back after a rejected draft"
    if not {"past_key_values", "cache"} & set(inspect.signature(model.forward).parameters):
        return f"{model.__name__} takes no key-value cache"
    return None
