"""`flatten`: rows of different lengths as the flat arrays that paged attention takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from foredraft.execution.masks import depths, visible_slots
from foredraft.execution.openvino.block_pool import BlockPool
from foredraft.execution.runner import RowInput


def flatten(inputs: Sequence[RowInput], pool: BlockPool) -> dict[str, np.ndarray]:
    """Arrays by the names of the graph's inputs; see `build_model` and `BatchInputs`."""
    tokens: list[int] = []
    positions: list[int] = []
    logit_rows: list[int] = []
    past: list[int] = []
    begins = [0]
    blocks: list[int] = []
    block_begins = [0]
    masks: list[np.ndarray] = []
    mask_begins = [0]
    for row_input in inputs:
        fed, length = len(row_input.tokens), pool.length(row_input.row)
        tokens += row_input.tokens
        begins.append(begins[-1] + fed)
        logit_rows += range(begins[-1] - row_input.num_logits, begins[-1])
        past.append(length)
        blocks += pool.table(row_input.row)[: pool.blocks_of(length + fed)]
        block_begins.append(len(blocks))
        if row_input.parents is None:
            positions += range(length, length + fed)
            mask_begins.append(mask_begins[-1])
        else:
            positions += [length + depth for depth in depths(row_input)]
            masks.append(_tree_mask(row_input))
            mask_begins.append(mask_begins[-1] + fed * fed)
    longest = max(length + len(row_input.tokens) for length, row_input in zip(past, inputs, strict=True))
    arrays = {
        "token_ids": tokens,
        "position_ids": positions,
        "logit_rows": logit_rows,
        "past_lens": past,
        "subsequence_begins": begins,
        "block_indices": blocks,
        "block_indices_begins": block_begins,
        "max_context_len": longest,
        "tree_mask_begins": mask_begins,
    }
    result: dict[str, np.ndarray] = {name: np.array(values, np.int32) for name, values in arrays.items()}
    result["tree_mask"] = np.concatenate(masks) if masks else np.zeros(0, np.uint8)
    return result


def _tree_mask(row_input: RowInput) -> np.ndarray:
    """uint8, flat `[nodes, nodes]`: 1 where the second node is the first one or above it."""
    fed = len(row_input.tokens)
    positions = torch.arange(fed)[None]
    visible = visible_slots([row_input], torch.zeros(1, dtype=torch.int64), positions, fed)
    return visible.flatten().to(torch.uint8).numpy()
