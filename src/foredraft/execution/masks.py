"""Attention masks over rows of different length, for chains and trees."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from foredraft.execution.runner import RowInput


def depths(row_input: RowInput) -> list[int]:
    """Depth of each fed token below the row's last cached token, 0 for the first of a chain."""
    if row_input.parents is None:
        return list(range(len(row_input.tokens)))
    result: list[int] = []
    for parent in row_input.parents:
        result.append(0 if parent < 0 else result[parent] + 1)
    return result


def visible_slots(
    inputs: Sequence[RowInput],
    lengths: torch.Tensor,
    positions: torch.Tensor,
    width: int,
    *,
    window: int | None = None,
    chunk: int | None = None,
) -> torch.Tensor:
    """Which slots each fed token attends to: its row's cached prefix, its ancestors and itself.

    Args:
        inputs: the rows of the step.
        lengths: int64 `[batch]`, cached tokens of each row.
        positions: int64 `[batch, tokens]`, position of each fed token (padding continues the row).
        width: slots that attention reads.
        window: sliding window in positions, None for full attention.
        chunk: positions of one chunk where attention stays inside chunks, None for full attention.

    Returns:
        bool `[batch, 1, tokens, width]`.
    """
    num_tokens = positions.shape[1]
    slots = torch.arange(width, device=lengths.device)
    written = lengths[:, None] + torch.arange(num_tokens, device=lengths.device)
    visible = slots <= written[:, :, None]
    slot_positions = slots.expand(len(inputs), width)
    trees = [index for index, row_input in enumerate(inputs) if row_input.parents is not None]
    if trees:
        slot_positions = slot_positions.scatter(1, written, positions)
    for index in trees:
        start = int(lengths[index])
        fed = len(inputs[index].tokens)
        block = _ancestors(inputs[index].parents or ()).to(lengths.device)
        visible[index, :fed, start : start + fed] = block
    if window is not None:
        visible &= slot_positions[:, None, :] > positions[:, :, None] - window
    if chunk is not None:
        visible &= slot_positions[:, None, :] // chunk == positions[:, :, None] // chunk
    return visible.unsqueeze(1)


def additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The mask as numbers to add to attention scores: 0 where visible, the lowest value elsewhere."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible, torch.finfo(dtype).min
    )


def _ancestors(parents: Sequence[int]) -> torch.Tensor:
    """bool `[tokens, tokens]`: token j is an ancestor of token i, or i itself."""
    matrix = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            matrix[node] |= matrix[parent]
    return matrix
