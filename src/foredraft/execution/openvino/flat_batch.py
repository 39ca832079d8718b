"""`FlatBatch`: rows of different lengths as the flat arrays that paged attention takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from foredraft.execution.masks import depths, visible_slots
from foredraft.execution.openvino.block_pool import BlockPool
from foredraft.execution.runner import RowInput

_SINGLE_TOKENS = 4
"""Longest chain whose tokens are fed as sequences of one token each.

The operator stores all keys and values of a step before it attends, so the tokens of a chain may share the
row's blocks as if each were a sequence that ends with it. Sequences of one token take a kernel that reads
the cache in place; longer ones first repack all of it, which pays from about 8 tokens on.
"""


class FlatBatch:
    """The inputs of one step; see `build_model` and `BatchInputs` for their meaning.

    Args:
        inputs: rows of the step; the pool has blocks for their tokens.
        pool: lengths and blocks of the rows before the step.
    """

    def __init__(self, inputs: Sequence[RowInput], pool: BlockPool) -> None:
        self._pool = pool
        self._tokens: list[int] = []
        self._positions: list[int] = []
        self._logit_rows: list[int] = []
        self._past: list[int] = []
        self._begins = [0]
        self._blocks: list[int] = []
        self._block_begins = [0]
        self._masks: list[np.ndarray] = []
        self._mask_begins = [0]
        self._longest = 0
        for row_input in inputs:
            self._add(row_input)

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by the names of the graph's inputs."""
        integers = {
            "token_ids": self._tokens,
            "position_ids": self._positions,
            "logit_rows": self._logit_rows,
            "past_lens": self._past,
            "subsequence_begins": self._begins,
            "block_indices": self._blocks,
            "block_indices_begins": self._block_begins,
            "max_context_len": self._longest,
            "tree_mask_begins": self._mask_begins,
        }
        arrays: dict[str, np.ndarray] = {
            name: np.array(values, np.int32) for name, values in integers.items()
        }
        arrays["tree_mask"] = np.concatenate(self._masks) if self._masks else np.zeros(0, np.uint8)
        return arrays

    def _add(self, row_input: RowInput) -> None:
        fed, length = len(row_input.tokens), self._pool.length(row_input.row)
        self._tokens += row_input.tokens
        self._positions += [length + depth for depth in depths(row_input)]
        self._logit_rows += range(len(self._tokens) - row_input.num_logits, len(self._tokens))
        self._longest = max(self._longest, length + fed)
        if row_input.parents is not None:
            self._masks.append(_tree_mask(row_input))
            self._add_sequence(row_input.row, length, fed, fed * fed)
        elif fed <= _SINGLE_TOKENS and self._pool.is_exact:
            for offset in range(fed):
                self._add_sequence(row_input.row, length + offset, 1, 0)
        else:
            self._add_sequence(row_input.row, length, fed, 0)

    def _add_sequence(self, row: int, past: int, fed: int, mask_size: int) -> None:
        self._past.append(past)
        self._begins.append(self._begins[-1] + fed)
        self._blocks += self._pool.table(row)[: self._pool.blocks_of(past + fed)]
        self._block_begins.append(len(self._blocks))
        self._mask_begins.append(self._mask_begins[-1] + mask_size)


def _tree_mask(row_input: RowInput) -> np.ndarray:
    """uint8, flat `[nodes, nodes]`: 1 where the second node is the first one or above it."""
    fed = len(row_input.tokens)
    positions = torch.arange(fed)[None]
    visible = visible_slots([row_input], torch.zeros(1, dtype=torch.int64), positions, fed)
    return visible.flatten().to(torch.uint8).numpy()
