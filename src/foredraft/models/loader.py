"""`load_model`: from a name to a model ready to run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from foredraft.errors import ModelError, ParameterError, UnsupportedModelError
from foredraft.models import checkpoint
from foredraft.models.gguf import gguf_config, load_gguf_model
from foredraft.models.gguf_file import GGUFFile, read_gguf
from foredraft.models.gguf_tokenizer import load_gguf_tokenizer
from foredraft.models.pull import pull
from foredraft.models.quiet import quiet
from foredraft.models.reporting import one_line
from foredraft.models.resolve import ResolvedModel, resolve
from foredraft.models.support import class_keeps_state, needs_remote_code, sdpa_is_safe, unsupported_reason

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_ATTENTIONS = ("auto", "eager", "sdpa")
_CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
)
_DEFAULT_CONTEXT = 2048
_UNLIMITED = 10**9
"""Tokenizers without a limit give a far larger number."""
_LONG_REASON = 60
"""Characters beyond which PyTorch's reason is a list of its internals."""


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode, on its device, without gradients."""

    name: str
    """As the user gave it."""
    model: PreTrainedModel
    tokenizer: Any | None
    """A transformers tokenizer; None if the model came without one."""
    eos_token_ids: tuple[int, ...]
    """Any of these ends a text; may be empty."""
    context_length: int
    """Tokens that prompt and output may have together."""
    dtype: torch.dtype
    device: torch.device
    attention: str
    """`eager` or `sdpa`."""
    source: Path | None
    """The file or folder that it was read from."""


def load_model(
    name: str | Path,
    *,
    dtype: str = "auto",
    device: str = "auto",
    attention: str = "auto",
    trust_remote_code: bool = False,
    progress: bool = False,
) -> LoadedModel:
    """Load a built-in model, a local folder, a GGUF file or a hub id.

    Args:
        name: see `resolve`.
        dtype: "float32", "bfloat16" or "float16"; "auto" is bfloat16 on CUDA and float32 elsewhere.
        device: as PyTorch names devices; "auto" is CUDA where there is one and the CPU elsewhere.
        attention: "eager" or "sdpa"; "auto" is sdpa wherever it computes this model's attention.
        trust_remote_code: let Python code that comes with the model run.
        progress: show the progress of downloads on standard error.

    Raises:
        ParameterError: for an unknown dtype, device or attention.
        ModelNotFoundError: if nothing of that name is found.
        UnsupportedModelError: if it could not be run without risking wrong text, or safely be read.
        ModelError: if it is broken (`DownloadError` if it cannot be fetched).
    """
    target = _device(device)
    precision = _dtype(dtype, target)
    if attention not in _ATTENTIONS:
        raise ParameterError(f"attention: must be one of {', '.join(_ATTENTIONS)} (got {attention!r})")
    with quiet(downloads_shown=progress):
        found = resolve(name)
        source = _local(found, weights=False, trust_remote_code=trust_remote_code, progress=progress)
        opened = _opened(source)
        config = _config(opened, trust_remote_code)
        chosen = _supported_attention(found.name, config, attention, trust_remote_code)
        if found.kind == "hub":
            source = _local(found, weights=True, trust_remote_code=trust_remote_code, progress=progress)
            opened = source
        model, tokenizer = _read(opened, config, precision, chosen, trust_remote_code)
        if reason := class_keeps_state(type(model)):
            raise UnsupportedModelError(f"{found.name} cannot be used: {reason}")
        model = _placed(model, target)
    return LoadedModel(
        name=found.name,
        model=model,
        tokenizer=tokenizer,
        eos_token_ids=eos_token_ids(model, tokenizer),
        context_length=context_length(model.config, tokenizer),
        dtype=precision,
        device=target,
        attention=chosen,
        source=source,
    )


def load_config(
    name: str | Path, *, trust_remote_code: bool = False, progress: bool = False
) -> PretrainedConfig:
    """The model's configuration; no weights are read (a built-in model is fetched all the same).

    Models that foredraft refuses to run still have one: ask `unsupported_reason`.

    Raises:
        ModelNotFoundError, UnsupportedModelError, ModelError: as `load_model`.
    """
    with quiet(downloads_shown=progress):
        found = resolve(name)
        source = _local(found, weights=False, trust_remote_code=trust_remote_code, progress=progress)
        return _config(_opened(source), trust_remote_code)


def context_length(config: PretrainedConfig, tokenizer: Any | None = None) -> int:
    """Tokens that a sequence may have.

    Models with LongRoPE are held to the length before which their rotary frequencies do not change:
    beyond it, what one position sees would depend on how far the others in the batch have come.
    """
    limits = [getattr(config, key, None) for key in _CONTEXT_KEYS]
    limits.append(getattr(tokenizer, "model_max_length", None))
    known = [int(limit) for limit in limits if isinstance(limit, int) and 0 < limit < _UNLIMITED]
    length = known[0] if known else _DEFAULT_CONTEXT
    rope: Any = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope" and rope.get("short_factor") != rope.get("long_factor"):
        original = rope.get("original_max_position_embeddings")
        original = original or getattr(config, "original_max_position_embeddings", None)
        return min(length, int(original)) if original else length
    return length


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # fails where there is no such device, and on "meta"
    except (RuntimeError, AssertionError, TypeError) as error:  # NotImplementedError is a RuntimeError
        reason = one_line(error)
        hint = "use auto, cpu, cuda, cuda:N or mps" if len(reason) > _LONG_REASON else reason
        raise ParameterError(f"device: {name!r} is not available here ({hint})") from None
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in _DTYPES:
        raise ParameterError(f"dtype: must be one of auto, {', '.join(_DTYPES)} (got {name!r})")
    return _DTYPES[name]


def _supported_attention(name: str, config: PretrainedConfig, attention: str, trust_remote_code: bool) -> str:
    if needs_remote_code(config) and not trust_remote_code:
        raise UnsupportedModelError(
            f"{name} brings its own code; if you trust its authors, allow it with trust_remote_code"
        )
    if reason := unsupported_reason(config):
        raise UnsupportedModelError(f"{name} cannot be used: {reason}")
    safe = sdpa_is_safe(config)
    if attention == "sdpa" and not safe:
        raise ParameterError(
            f"attention: sdpa does not compute the attention of {config.model_type}; use eager"
        )
    if attention == "auto":
        return "sdpa" if safe else "eager"
    return attention


def _local(found: ResolvedModel, *, weights: bool, trust_remote_code: bool, progress: bool) -> Path:
    if found.kind == "hub":
        return checkpoint.snapshot(found.name, weights=weights, trust_remote_code=trust_remote_code)
    return found.path or pull(found.name, progress=progress)


def _opened(source: Path) -> Path | GGUFFile:
    return source if source.is_dir() else read_gguf(source)


def _config(source: Path | GGUFFile, trust_remote_code: bool) -> PretrainedConfig:
    if isinstance(source, GGUFFile):
        return gguf_config(source)
    return checkpoint.read_config(source, trust_remote_code=trust_remote_code)


def _read(
    source: Path | GGUFFile,
    config: PretrainedConfig,
    dtype: torch.dtype,
    attention: str,
    trust_remote_code: bool,
) -> tuple[Any, Any | None]:
    """Model and tokenizer."""
    if isinstance(source, GGUFFile):
        return load_gguf_model(source, config, dtype, attention), load_gguf_tokenizer(source)
    checkpoint.check_weights(source)
    model = checkpoint.load_weights(source, config, dtype, attention, trust_remote_code=trust_remote_code)
    return model, checkpoint.load_tokenizer(source, trust_remote_code=trust_remote_code)


def _placed(model: Any, device: torch.device) -> Any:
    try:
        model = model.to(device)
    except RuntimeError as error:
        raise ModelError(f"the model does not fit on {device}: {one_line(error)}") from None
    return model.eval().requires_grad_(False)


def eos_token_ids(model: PreTrainedModel, tokenizer: Any | None) -> tuple[int, ...]:
    """Ids that end a text: the generation config's, else the model's, else the tokenizer's."""
    for owner in (model.generation_config, model.config, tokenizer):
        found: Any = getattr(owner, "eos_token_id", None)
        if isinstance(found, int):
            return (found,)
        if found:
            return tuple(int(token) for token in found)
    return ()
