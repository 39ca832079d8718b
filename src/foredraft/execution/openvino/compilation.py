"""Compiling the graph for this CPU: precisions, threads, a folder for compiled models."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Literal

import torch

from foredraft.errors import ExecutionError
from foredraft.execution.openvino.api import ov
from foredraft.execution.openvino.weights import WeightPrecision

Precision = Literal["auto", "f32", "f16", "bf16", "int8"]
CachePrecision = Literal["auto", "f32", "f16", "u8"]

_STORED_AS: dict[torch.dtype, WeightPrecision] = {torch.bfloat16: "bf16", torch.float16: "f16"}


@functools.cache
def multiplies_bf16() -> bool:
    """Whether this CPU has bfloat16 instructions; without them bf16 weights are widened to float32."""
    return "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def weight_precision(precision: Precision, dtype: torch.dtype | None) -> WeightPrecision:
    """What "auto" means for a model whose tensors are of `dtype`: the type that they came in."""
    if precision != "auto":
        return precision
    return _STORED_AS.get(dtype or torch.float32, "f32")


def compile_model(
    model: Any,
    *,
    precision: WeightPrecision,
    cache_precision: CachePrecision,
    num_threads: int | None,
    compiled_folder: Path | None,
) -> Any:
    """Compile for the CPU.

    Args:
        model: in paged-attention form.
        precision: of the weights; decides that of the products.
        cache_precision: of keys and values. "auto" is f16, or f32 beside f32 weights.
        num_threads: None leaves it to OpenVINO (all physical cores).
        compiled_folder: where compiled models are kept and found again; None compiles every time.

    Raises:
        ExecutionError: if OpenVINO refuses the graph.
    """
    if cache_precision == "auto":
        cache_precision = "f32" if precision == "f32" else "f16"
    properties: dict[str, str | int] = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" and multiplies_bf16() else "f32",
        # Left alone, the plugin would quantise the cache to 8 bits.
        "KV_CACHE_PRECISION": cache_precision,
    }
    if num_threads is not None:
        properties["INFERENCE_NUM_THREADS"] = num_threads
    if compiled_folder is not None:
        properties["CACHE_DIR"] = str(compiled_folder)
    try:
        return ov.Core().compile_model(model, "CPU", properties)
    except RuntimeError as error:
        raise ExecutionError(f"OpenVINO could not compile the model: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "no message")
