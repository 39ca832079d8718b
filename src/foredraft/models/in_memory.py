"""`loaded_from`: a model that the caller already holds in memory."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from foredraft.errors import UnsupportedModelError
from foredraft.models.loader import LoadedModel, context_length, eos_token_ids
from foredraft.models.support import class_keeps_state, unsupported_reason


def loaded_from(model: PreTrainedModel, tokenizer: Any | None = None) -> LoadedModel:
    """Wrap a model as `load_model` would have; the model itself is left as it is.

    Raises:
        UnsupportedModelError: if it could not be run without risking wrong text, or is in training mode
            (dropout would change the text).
    """
    name = model.config.name_or_path or type(model).__name__
    reason = unsupported_reason(model.config) or class_keeps_state(type(model))
    if reason:
        raise UnsupportedModelError(f"{name} cannot be used: {reason}")
    if model.training:
        raise UnsupportedModelError(f"{name} is in training mode; call model.eval() first")
    return LoadedModel(
        name=name,
        model=model,
        tokenizer=tokenizer,
        eos_token_ids=eos_token_ids(model, tokenizer),
        context_length=context_length(model.config, tokenizer),
        dtype=model.dtype,
        device=model.device,
        attention=getattr(model.config, "_attn_implementation", None) or "eager",
        source=None,
    )
