"""Loading a model from a GGUF file: dequantised exactly to float32, then cast.

transformers reads GGUF too, but takes tens of seconds for a small model and needs `accelerate`.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from transformers import PretrainedConfig

from foredraft.errors import ModelError, UnsupportedModelError
from foredraft.models.gguf_architectures import ROPE_FACTORS, Architecture, architecture_of
from foredraft.models.gguf_file import GGUFFile
from foredraft.models.reporting import check_loading_report, one_line
from foredraft.models.support import causal_model_class

_MAX_THREADS = 8


def gguf_config(file: GGUFFile) -> PretrainedConfig:
    """The transformers configuration that the file's metadata describes.

    Raises:
        UnsupportedModelError: for an architecture or a setting that is not handled.
        ModelError: if a needed key is missing or makes no sense.
    """
    architecture = architecture_of(file)
    try:
        return architecture.build_config(file)
    except ModelError:
        raise
    except Exception as error:  # transformers validates with exceptions of many kinds
        raise ModelError(
            f"{file.path}: the GGUF file's metadata makes no sense ({one_line(error)})"
        ) from error


def load_gguf_model(
    file: GGUFFile, config: PretrainedConfig, dtype: torch.dtype, attention: str
) -> torch.nn.Module:
    """The model with the file's weights, on the CPU.

    Raises:
        UnsupportedModelError: if the file holds tensors that the architecture does not have.
        ModelError: if tensors are missing or of the wrong shape.
    """
    weights = _weights(file, architecture_of(file), config, dtype)
    model_class: Any = causal_model_class(config)
    model, report = model_class.from_pretrained(
        None,
        config=config,
        state_dict=weights,
        dtype=dtype,
        attn_implementation=attention,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    check_loading_report(file.path, report)
    return model


def _weights(
    file: GGUFFile, architecture: Architecture, config: PretrainedConfig, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    names = {name: architecture.hf_name(name) for name in file.tensors if name != ROPE_FACTORS}
    unknown = sorted(name for name, target in names.items() if target is None)
    if unknown:
        raise UnsupportedModelError(
            f"{file.path}: tensor {unknown[0]!r} has no place in the architecture "
            f"{file.architecture!r} as foredraft knows it; use the model's safetensors instead"
        )

    def converted(name: str) -> torch.Tensor:
        restored = architecture.restore(name, file.dequantized(name), config)
        return torch.from_numpy(restored).to(dtype)

    # NumPy releases the interpreter lock while it unpacks blocks, so threads help.
    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as pool:
        tensors = list(pool.map(converted, names))
    return {str(target): tensor for target, tensor in zip(names.values(), tensors, strict=True)}
