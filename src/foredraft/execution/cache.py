"""A key-value cache of independent rows for Hugging Face models.

Rows are slices of one preallocated tensor a layer. Each row has its own length, kept as a plain integer:
rolling back is assigning a smaller one, and the slots behind it are masked until overwritten. Sliding
windows live in the attention mask, not in the storage, so a rollback can never reach evicted keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from transformers import Cache

from foredraft.errors import ExecutionError

_ROOM = 64
"""Capacity is rounded up to a multiple of this many tokens."""


@dataclass(frozen=True)
class StepSlots:
    """Where one forward writes and reads."""

    rows: torch.Tensor
    """int64 `[batch]`."""
    slots: torch.Tensor
    """int64 `[batch, tokens]`: slot of each fed token, padding included."""
    width: int
    """Slots read by attention, from 0."""

    @cached_property
    def contiguous_rows(self) -> slice | None:
        """The rows as a slice, where that spares a copy of the cache."""
        first = int(self.rows[0])
        count = len(self.rows)
        if self.rows.tolist() == list(range(first, first + count)):
            return slice(first, first + count)
        return None


class RowCache(Cache):
    """Storage `[rows, heads, capacity, head size]` of keys and values for every layer."""

    def __init__(self) -> None:
        # The parent's constructor wants ready-made layers; ours take shape at the first forward.
        self.layers = []
        self.layer_class_to_replicate = None
        self.offloading = False
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._num_rows = 0
        self._capacity = 0
        self._lengths: list[int] = []
        self._step: StepSlots | None = None

    @property
    def num_rows(self) -> int:
        return self._num_rows

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def bytes_per_token(self) -> int | None:
        """Bytes for one token of one row, None before the first forward."""
        if not self._keys:
            return None
        return sum(
            tensor.shape[1] * tensor.shape[3] * tensor.element_size() for tensor in self._keys + self._values
        )

    def length(self, row: int) -> int:
        return self._lengths[row]

    def set_length(self, row: int, length: int) -> None:
        self._lengths[row] = length

    def reserve(self, num_rows: int, num_tokens: int) -> None:
        """Grow to at least this shape, contents kept; growth doubles, so it is rare."""
        if num_rows <= self._num_rows and num_tokens <= self._capacity:
            return
        rows = max(num_rows, self._num_rows)
        capacity = self._capacity
        if num_tokens > capacity:
            capacity = -(-max(num_tokens, 2 * capacity) // _ROOM) * _ROOM
        try:
            # One tensor after another: the old and the new of one layer alone are held at the same time.
            for tensors in (self._keys, self._values):
                for layer, tensor in enumerate(tensors):
                    tensors[layer] = _grown(tensor, rows, capacity)
        except (RuntimeError, MemoryError) as error:
            raise ExecutionError(
                f"no memory for a KV cache of {rows} rows x {capacity} tokens; "
                "use fewer prompts at once (max_batch_size) or a smaller max_new_tokens"
            ) from error
        self._lengths += [0] * (rows - self._num_rows)
        self._num_rows, self._capacity = rows, capacity

    def begin(self, step: StepSlots) -> None:
        """Say where the next forward writes."""
        self._step = step

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by every attention layer: store `[batch, heads, tokens, head size]`, return what to read."""
        step = self._step
        assert step is not None, "begin() precedes every forward"
        for tensors, states in ((self._keys, key_states), (self._values, value_states)):
            while len(tensors) <= layer_idx:
                tensors.append(self._allocate(states))
        return (
            _write_and_read(self._keys[layer_idx], key_states, step),
            _write_and_read(self._values[layer_idx], value_states, step),
        )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        # Models ask only to derive position ids and masks, and both are always given.
        return 0

    def move_together(self, row: int, start: int, kept: Sequence[int]) -> None:
        """Move the tokens at `start + kept[i]` to `start + i`."""
        if list(kept) == list(range(len(kept))):
            return
        for tensor in self._keys + self._values:
            index = torch.tensor(kept, device=tensor.device) + start
            tensor[row, :, start : start + len(kept)] = tensor[row].index_select(1, index)

    @torch.inference_mode()
    def clear_row(self, row: int) -> None:
        """Overwrite the row with zeros."""
        for tensor in self._keys + self._values:
            tensor[row] = 0

    def copy_row(self, source: int, destination: int, length: int) -> None:
        for tensor in self._keys + self._values:
            tensor[destination, :, :length] = tensor[source, :, :length]

    def _allocate(self, like: torch.Tensor) -> torch.Tensor:
        _, heads, _, head_size = like.shape
        return like.new_zeros(self._num_rows, heads, self._capacity, head_size)


def _grown(tensor: torch.Tensor, rows: int, capacity: int) -> torch.Tensor:
    old_rows, heads, old_capacity, head_size = tensor.shape
    # A growth that failed half-way leaves some layers larger than the others.
    rows, capacity = max(rows, old_rows), max(capacity, old_capacity)
    grown = tensor.new_zeros(rows, heads, capacity, head_size)
    grown[:old_rows, :, :old_capacity] = tensor
    return grown


def _write_and_read(storage: torch.Tensor, states: torch.Tensor, step: StepSlots) -> torch.Tensor:
    rows = step.contiguous_rows
    if len(step.rows) == 1 and rows is not None:
        first = int(step.slots[0, 0])
        storage[rows, :, first : first + states.shape[2]] = states
    else:
        storage[step.rows[:, None], :, step.slots] = states.transpose(1, 2)
    if rows is not None:
        return storage[rows, :, : step.width]
    return storage[step.rows, :, : step.width]
