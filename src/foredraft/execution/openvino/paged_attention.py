"""The paged-attention operator: its inputs, made once, and one node a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foredraft.execution.openvino.api import PagedAttentionExtension, ops, ov
from foredraft.execution.openvino.architecture import DecoderArchitecture

BLOCK_SIZE = 32
"""Tokens in one block of the cache; the CPU plugin knows no other size."""


def parameter(name: str, element_type: Any, shape: Sequence[int]) -> Any:
    """An input of the model that is looked up by `name`; -1 stands for a size known at run time."""
    node = ov.op.Parameter(element_type, ov.PartialShape(list(shape)))
    node.set_friendly_name(name)
    node.output(0).get_tensor().set_names({name})
    return node


@dataclass(frozen=True)
class BatchInputs:
    """Inputs that say which tokens of the flat batch belong to which row and where the rows are cached."""

    past_lens: Any
    """int32 `[rows]`: tokens cached before this step."""
    subsequence_begins: Any
    """int32 `[rows + 1]`: where each row's tokens begin."""
    block_indices: Any
    """int32 `[blocks]`: the blocks of each row, concatenated."""
    block_indices_begins: Any
    """int32 `[rows + 1]`: where each row's blocks begin."""
    max_context_len: Any
    """int32 scalar: the longest row, this step's tokens included."""
    tree_mask: Any
    """uint8, flat: for each row `[tokens, tokens]`, 1 where the new token sees the other; or nothing."""
    tree_mask_begins: Any
    """int32 `[rows + 1]`: where each row's mask begins; equal neighbours mean a chain."""

    @staticmethod
    def create() -> BatchInputs:
        flat = [-1]
        return BatchInputs(
            past_lens=parameter("past_lens", ov.Type.i32, flat),
            subsequence_begins=parameter("subsequence_begins", ov.Type.i32, flat),
            block_indices=parameter("block_indices", ov.Type.i32, flat),
            block_indices_begins=parameter("block_indices_begins", ov.Type.i32, flat),
            max_context_len=parameter("max_context_len", ov.Type.i32, []),
            tree_mask=parameter("tree_mask", ov.Type.u8, flat),
            tree_mask_begins=parameter("tree_mask_begins", ov.Type.i32, flat),
        )

    def parameters(self) -> list[Any]:
        return list(vars(self).values())


def cache_parameters(num_layers: int) -> list[tuple[Any, Any]]:
    """A key and a value cache for each layer; type and shape are the plugin's choice at compilation."""
    shape = [-1, -1, -1, -1]
    return [
        (
            parameter(f"key_cache.{layer}", ov.Type.dynamic, shape),
            parameter(f"value_cache.{layer}", ov.Type.dynamic, shape),
        )
        for layer in range(num_layers)
    ]


def paged_attention(
    query: Any,
    key: Any,
    value: Any,
    caches: tuple[Any, Any],
    batch: BatchInputs,
    architecture: DecoderArchitecture,
    window: int,
) -> Any:
    """Store keys and values `[tokens, kv heads * head size]` and attend with `query`; same shape as query.

    The operator's 28 inputs are positional; those that this project has no use for (ALiBi, cache eviction
    and rotation, sparse attention, sinks, token types) are given empty.
    """
    head_size = architecture.head_size
    inputs = [
        query,
        key,
        value,
        *caches,
        batch.past_lens,
        batch.subsequence_begins,
        batch.block_indices,
        batch.block_indices_begins,
        _constant(head_size**-0.5, np.float32),
        _constant(window, np.int32),
        _empty(np.float32),  # ALiBi slopes
        batch.max_context_len,
        _empty(np.int32),  # score aggregation window
        _empty(np.int32),  # rotated blocks
        _empty(np.int32),  # rotation deltas
        _empty(np.float32),  # rotation table
        _empty(np.float32),  # sparse attention: threshold, block size, stride
        _constant(0, np.int32),
        _constant(0, np.int32),
        _empty(np.float32, (0, 0, 0, 0)),  # sinks
        _constant(0, np.int32),  # diversity-driven eviction: start, sizes, blocks, where they begin
        _empty(np.int32),
        _empty(np.int32),
        _empty(np.int32),
        _empty(np.int32),  # token types
        batch.tree_mask,
        batch.tree_mask_begins,
    ]
    # Nodes with one output and outputs of nodes with several come mixed.
    node = PagedAttentionExtension([item.output(0) if hasattr(item, "output") else item for item in inputs])
    # The plugin derives the shape of the caches from these.
    for name in ("num_k_heads", "num_v_heads"):
        node.get_rt_info()[name] = architecture.num_kv_heads
    for name in ("k_head_size", "v_head_size"):
        node.get_rt_info()[name] = head_size
    return node.output(0)


def _constant(value: float, dtype: Any) -> Any:
    return ops.constant(np.array(value, dtype=dtype))


def _empty(dtype: Any, shape: tuple[int, ...] = (0,)) -> Any:
    return ops.constant(np.zeros(shape, dtype=dtype))
