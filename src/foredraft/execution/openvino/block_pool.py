"""`BlockPool`: the storage of a paged cache, and which blocks each row has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foredraft.errors import ExecutionError
from foredraft.execution.openvino.api import ov
from foredraft.execution.openvino.paged_attention import BLOCK_SIZE

_ALIGNMENT = 64


@dataclass(frozen=True)
class CacheLayout:
    """One cache input of the compiled model: `[blocks, *shape]` of `element_type`."""

    name: str
    shape: tuple[int, ...]
    element_type: Any

    @property
    def bytes_per_block(self) -> int:
        return int(np.prod(self.shape)) * self.element_type.size


class BlockPool:
    """Keys and values of all rows in blocks of `BLOCK_SIZE` tokens.

    A row is a list of blocks and a length. Truncating changes the length and nothing else; the row keeps
    its blocks for the tokens that come next, so the blocks reserved for the rows always suffice.
    """

    def __init__(self, layouts: Sequence[CacheLayout]) -> None:
        self._layouts = list(layouts)
        self._arrays: list[np.ndarray] = []
        self._tables: list[list[int]] = []
        self._lengths: list[int] = []
        self._row_blocks = 0
        self._taken = 0
        self._capacity = 0

    @property
    def num_rows(self) -> int:
        return len(self._tables)

    @property
    def bytes_per_token(self) -> int:
        return sum(layout.bytes_per_block for layout in self._layouts) // BLOCK_SIZE

    @property
    def is_exact(self) -> bool:
        """Whether tokens are stored as they are, not rounded together with their neighbours."""
        return all(layout.element_type.is_real() for layout in self._layouts)

    def length(self, row: int) -> int:
        return self._lengths[row]

    def set_length(self, row: int, length: int) -> None:
        self._lengths[row] = length

    def table(self, row: int) -> list[int]:
        """Blocks of the row in the order of its tokens."""
        return self._tables[row]

    @staticmethod
    def blocks_of(num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens of one row take."""
        return -(-num_tokens // BLOCK_SIZE)

    def reserve(self, num_rows: int, num_tokens: int) -> bool:
        """Make sure of blocks for this many rows and tokens; contents stay.

        Returns:
            Whether the storage moved, so that `tensors` have to be handed over again.

        Raises:
            ExecutionError: if the memory cannot be had.
        """
        rows = max(num_rows, self.num_rows)
        row_blocks = max(self.blocks_of(num_tokens), self._row_blocks)
        needed = rows * row_blocks
        moved = needed > self._capacity
        if moved:
            capacity = max(needed, 2 * self._capacity)
            try:
                self._arrays = [self._grown(index, capacity) for index in range(len(self._layouts))]
            except MemoryError as error:
                raise ExecutionError(
                    f"no memory for a KV cache of {rows} rows x {row_blocks * BLOCK_SIZE} tokens; "
                    "use fewer prompts at once (max_batch_size) or a smaller max_new_tokens"
                ) from error
            self._capacity = capacity
        self._row_blocks = row_blocks
        self._tables += [[] for _ in range(rows - self.num_rows)]
        self._lengths += [0] * (rows - len(self._lengths))
        return moved

    def extend(self, row: int, num_tokens: int) -> None:
        """Give the row the blocks that `num_tokens` tokens take.

        Raises:
            ExecutionError: if that is more than was reserved.
        """
        wanted = self.blocks_of(num_tokens)
        if wanted > self._row_blocks:
            raise ExecutionError(
                f"row {row} would hold {num_tokens} tokens; "
                f"{self._row_blocks * BLOCK_SIZE} are reserved for it"
            )
        table = self._tables[row]
        missing = wanted - len(table)
        if missing > 0:
            table += range(self._taken, self._taken + missing)
            self._taken += missing

    def copy(self, source: int, destination: int, length: int) -> None:
        """Copy the blocks that hold the first `length` tokens; the rest of the last one comes along."""
        self.extend(destination, length)
        blocks = self.blocks_of(length)
        origin, target = self._tables[source][:blocks], self._tables[destination][:blocks]
        for array in self._arrays:
            array[target] = array[origin]

    def move_together(self, row: int, start: int, kept: Sequence[int]) -> None:
        """Move the tokens at `start + kept[i]` to `start + i`. Not for quantised layouts."""
        if list(kept) == list(range(len(kept))):
            return
        table = np.array(self._tables[row])
        origin = start + np.array(kept)
        target = start + np.arange(len(kept))
        for array in self._arrays:
            moved = array[table[origin // BLOCK_SIZE], :, origin % BLOCK_SIZE]
            array[table[target // BLOCK_SIZE], :, target % BLOCK_SIZE] = moved

    def tensors(self) -> dict[str, Any]:
        """The storage by the name of the input it belongs to; valid until `reserve` moves it."""
        return {
            layout.name: ov.Tensor(array, shared_memory=True)
            for layout, array in zip(self._layouts, self._arrays, strict=True)
        }

    def _grown(self, index: int, capacity: int) -> np.ndarray:
        layout = self._layouts[index]
        array = _zeros((capacity, *layout.shape), np.dtype(layout.element_type.to_dtype()))
        if self._arrays:
            array[: self._taken] = self._arrays[index][: self._taken]
        return array


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Zeros (memory that is not touched is not resident) that begin on a cache line."""
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)
