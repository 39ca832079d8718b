"""Small builders shared by the graphs: constants, projections, reshapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from foredraft.execution.openvino.api import ops
from foredraft.execution.openvino.weights import WeightSource


def integers(values: int | Sequence[int]) -> Any:
    """An int64 constant, as axes, shapes and indices are."""
    return ops.constant(np.array(values, np.int64))


def real(value: float) -> Any:
    """A float32 scalar."""
    return ops.constant(np.array(value, np.float32))


def linear(weights: WeightSource, states: Any, names: Sequence[str], *, input_major: bool = False) -> Any:
    """`states [tokens, in]` times the named matrices, stacked along their outputs, plus their biases.

    Args:
        weights: where `<name>.weight`, and `<name>.bias` where there is one, are found.
        states: the node to multiply.
        names: modules that share their input; one wide product costs less than several narrow ones.
        input_major: the matrices are stored `[in, out]`, as GPT-2's are.
    """
    matrices = [weights.tensor(name + ".weight") for name in names]
    if input_major:
        matrices = [matrix.T for matrix in matrices]
    matrix = weights.matrix(torch.cat(matrices) if len(matrices) > 1 else matrices[0])
    product = ops.matmul(states, matrix, False, True)
    if names[0] + ".bias" not in weights:
        return product
    biases = torch.cat([weights.tensor(name + ".bias").float() for name in names])
    return ops.add(product, ops.constant(biases.numpy()[None]))


def split(states: Any, widths: Sequence[int]) -> list[Any]:
    """Cut `[tokens, sum of widths]` along the last axis."""
    return list(ops.variadic_split(states, integers(1), integers(widths)).outputs())


def select_rows(states: Any, rows: Any) -> Any:
    """`states[rows]`."""
    return ops.gather(states, rows, integers(0))
