"""What the benchmark's tests share: tiny models in folders, one thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny import save_tiny_llama


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target."""
    return save_tiny_llama(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with the same tokenizer and other weights."""
    return save_tiny_llama(tmp_path_factory.mktemp("draft"), seed=1)
