"""A draft model of the target's family: the target with some of its layers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from foredraft.errors import ParameterError, UnsupportedModelError


def spread_layers(num_layers: int, wanted: int) -> tuple[int, ...]:
    """`wanted` of the layers 0 ... `num_layers - 1`, evenly spaced from the first on.

    The last one is left out (unless all are wanted): it undoes what the layers before it built up for it, and
    a draft that has it without them begins far from the target.

    Raises:
        ParameterError: unless 1 <= wanted <= num_layers.
    """
    if not 1 <= wanted <= num_layers:
        raise ParameterError(f"layers: must be between 1 and the target's {num_layers} (got {wanted})")
    return tuple(step * num_layers // wanted for step in range(wanted))


def make_student(target: PreTrainedModel, layers: Sequence[int]) -> PreTrainedModel:
    """A float32 model of the target's class with copies of `layers`, embeddings and head of the target.

    Embeddings and head are tied where the target's are.

    Raises:
        ParameterError: if a layer is not the target's.
        UnsupportedModelError: if the target's layers cannot be told apart from the rest of it.
    """
    prefix, num_layers = _layer_list(target)
    wrong = [layer for layer in layers if not 0 <= layer < num_layers]
    if wrong or not layers:
        raise ParameterError(f"layers: must be from 0 to {num_layers - 1} (got {list(layers)})")
    student: Any = type(target)(_shorter(target.config, layers)).float()
    taken = {f"{prefix}.{old}.": f"{prefix}.{new}." for new, old in enumerate(layers)}
    weights: dict[str, torch.Tensor] = {}
    for name, tensor in target.state_dict().items():
        if not name.startswith(f"{prefix}."):
            weights[name] = tensor
    for old, new in taken.items():
        for name, tensor in target.state_dict().items():
            if name.startswith(old):
                weights[new + name[len(old) :]] = tensor
    student.load_state_dict(weights)
    student.generation_config = copy.deepcopy(target.generation_config)
    return student.to(target.device)


def _shorter(config: Any, layers: Sequence[int]) -> Any:
    """The configuration with these layers alone."""
    shorter = copy.deepcopy(config)
    shorter.num_hidden_layers = len(layers)
    kinds: Any = getattr(config, "layer_types", None)
    if kinds is not None:
        shorter.layer_types = [kinds[layer] for layer in layers]
    return shorter


def _layer_list(model: PreTrainedModel) -> tuple[str, int]:
    """Name and length of the list of decoder layers."""
    count: Any = getattr(model.config, "num_hidden_layers", None)
    found = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == count
    ]
    if len(found) != 1:
        raise UnsupportedModelError(
            f"no draft can be cut from {type(model).__name__}: its layers cannot be told from the rest"
        )
    return found[0], int(count)
