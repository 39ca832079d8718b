"""The storage of a paged cache."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from foredraft.errors import ExecutionError

# Not "openvino": this folder answers to that name where the package is missing.
pytest.importorskip("openvino.opset13")
ov: Any = importlib.import_module("openvino")
_module: Any = importlib.import_module("foredraft.execution.openvino.block_pool")
BlockPool, CacheLayout = _module.BlockPool, _module.CacheLayout


def _pool() -> Any:
    return BlockPool([CacheLayout("key_cache.0", (2, 32, 4), ov.Type.f32)])


def test_rows_have_blocks_of_their_own() -> None:
    """If this failed, two rows would overwrite each other."""
    pool = _pool()
    pool.reserve(3, 100)
    for row, tokens in [(0, 33), (2, 100), (0, 100), (1, 1)]:
        pool.extend(row, tokens)
    tables = [pool.table(row) for row in range(3)]
    assert [len(table) for table in tables] == [4, 1, 4]
    assert len({block for table in tables for block in table}) == 9


def test_reservations_always_suffice() -> None:
    """If this failed, a row within its reservation would find no block left."""
    pool = _pool()
    pool.reserve(1, 64)
    pool.extend(0, 64)
    pool.reserve(4, 40)
    for row in range(4):
        pool.extend(row, 64)
    assert max(pool.table(row)[-1] for row in range(4)) < pool.tensors()["key_cache.0"].shape[0]
    with pytest.raises(ExecutionError, match="64 are reserved"):
        pool.extend(1, 65)


def test_storage_that_cannot_be_had_is_an_execution_error() -> None:
    """If this failed, a huge request would end in a traceback instead of one line."""
    with pytest.raises(ExecutionError, match="no memory"):
        _pool().reserve(1 << 10, 1 << 36)


def test_tokens_move_across_blocks() -> None:
    """If this failed, an accepted path that straddles two blocks would lose its keys."""
    pool = _pool()
    pool.reserve(1, 64)
    pool.extend(0, 64)
    storage = pool.tensors()["key_cache.0"].data
    storage[:] = np.arange(64).reshape(2, 1, 32, 1)
    pool.move_together(0, 30, [1, 3, 4])
    assert storage[0, 0, 30:, 0].tolist() == [31, 33]
    assert storage[1, 1, :3, 0].tolist() == [34, 33, 34]
