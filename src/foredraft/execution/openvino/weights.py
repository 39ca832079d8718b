"""`WeightSource`: named tensors as constants of a graph, at the precision asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch

from foredraft.errors import UnsupportedModelError
from foredraft.execution.openvino.api import compress_constants, ops, ov

WeightPrecision = Literal["f32", "f16", "bf16", "int8"]

_TORCH_TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}

_QUANTISED_ROWS = 2048


class WeightSource:
    """Reads tensors from a mapping one at a time and turns them into constants.

    Args:
        tensors: by their Hugging Face names; NumPy arrays (memory maps included) or torch tensors on the
            CPU, of any floating type. Each is read when the graph comes to it, so a lazy mapping works.
        precision: how matrices are stored. Vectors (norms, biases) always stay float32.
    """

    def __init__(self, tensors: Mapping[str, np.ndarray | torch.Tensor], precision: WeightPrecision) -> None:
        self._tensors = tensors
        self._precision: WeightPrecision = precision

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor as the mapping holds it.

        Raises:
            UnsupportedModelError: if there is none of that name.
        """
        if name not in self._tensors:
            raise UnsupportedModelError(
                f"the model has no tensor {name!r}, which its configuration calls for"
            )
        tensor = self._tensors[name]
        return torch.from_numpy(tensor) if isinstance(tensor, np.ndarray) else tensor.detach()

    def vector(self, name: str) -> Any:
        """A float32 constant of the tensor's own shape."""
        return vector_constant(self.tensor(name))

    def matrix(self, weight: torch.Tensor) -> Any:
        """A float32-valued node `[out, in]` over `weight` stored at the chosen precision."""
        if self._precision == "int8":
            return _int8_matrix(weight)
        return _float_matrix(weight, self._precision)


def vector_constant(tensor: torch.Tensor) -> Any:
    """A float32 constant that owns its memory."""
    return ops.constant(tensor.float().contiguous().numpy().copy())


def _float_matrix(weight: torch.Tensor, precision: str) -> Any:
    stored = weight.to(_TORCH_TYPES[precision]).contiguous()
    if precision == "f32":
        return ov.op.Constant(stored.numpy(), shared_memory=True)
    if precision == "f16":
        return _decompressed(ov.op.Constant(stored.numpy(), shared_memory=True))
    # NumPy has no bfloat16, and a tensor made over foreign memory would not keep that memory alive.
    owned = ov.Tensor(ov.Type.bf16, ov.Shape(list(stored.shape)))
    owned.data.view(np.int16)[...] = stored.view(torch.int16).numpy()
    return _decompressed(ov.op.Constant(owned))


def _decompressed(constant: Any) -> Any:
    """Convert to float32, marked so that the plugin keeps the small constant and converts as it multiplies.

    The mark has no constructor in Python: a node that carries it comes out of a compressed model.
    """
    matrix = ops.constant(np.ones((64, 64), np.float32))
    value = ops.parameter([-1, 64], np.float32)
    template = ov.Model([ops.result(ops.matmul(value, matrix, False, True))], [value], "template")
    compress_constants(template)
    convert = next(node for node in template.get_ops() if node.get_type_name() == "Convert")
    convert.input(0).replace_source_output(constant.output(0))
    convert.validate_and_infer_types()
    return convert


def _int8_matrix(weight: torch.Tensor) -> Any:
    """Symmetric, one scale for each output channel; the plugin multiplies from this form directly."""
    levels = torch.empty(weight.shape, dtype=torch.int8)
    scales = torch.empty(len(weight), 1)
    # In pieces, because float32 copies of a whole embedding would dwarf the result.
    for start in range(0, len(weight), _QUANTISED_ROWS):
        piece = slice(start, start + _QUANTISED_ROWS)
        values = weight[piece].float()
        scales[piece] = values.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / 127.0
        levels[piece] = (values / scales[piece]).round_().to(torch.int8)
    integers = ops.convert(ov.op.Constant(levels.numpy(), shared_memory=True), "f32")
    return ops.multiply(integers, ops.constant(scales.numpy().copy()))
