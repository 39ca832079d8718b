"""What this machine can do at most: reading memory and multiplying matrices."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

READ_BYTES = 512 * 2**20
"""Far beyond any cache."""
MATRIX_SIZE = 1536
ROUNDS = 5


@dataclass(frozen=True)
class MachineLimits:
    """The best of a few rounds each."""

    read_bytes_per_second: float
    float32_flops: float
    """Floating-point operations a second of a float32 matrix product."""
    bfloat16_flops: float
    threads: int
    """Threads of PyTorch that this was measured with."""

    def step_floor_ms(self, weight_bytes: float) -> float:
        """Milliseconds to read the weights once, below which no step over one token can be."""
        return 1000 * weight_bytes / self.read_bytes_per_second


def measure_limits(device: str = "cpu") -> MachineLimits:
    """Measure the device's limits with PyTorch; takes about a second on a small CPU."""
    data = torch.ones(READ_BYTES // 4, dtype=torch.float32, device=device)
    read = READ_BYTES / _best_seconds(data.sum, device)
    del data
    return MachineLimits(
        read, _product_flops(torch.float32, device), _product_flops(torch.bfloat16, device),
        torch.get_num_threads(),
    )  # fmt: skip


def _product_flops(dtype: torch.dtype, device: str) -> float:
    matrix = torch.ones(MATRIX_SIZE, MATRIX_SIZE, dtype=dtype, device=device)
    return 2 * MATRIX_SIZE**3 / _best_seconds(partial(torch.mm, matrix, matrix), device)


def _best_seconds(work: Callable[[], object], device: str) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return best
