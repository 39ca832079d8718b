"""Engines in processes of their own."""

from __future__ import annotations

import os
import time

import pytest

from foredraft.bench.host import LocalHost, ProcessHost, forget_peak_memory, peak_memory
from foredraft.errors import ExecutionError, ParameterError


class Worker:
    """Does what the tests ask for."""

    def __init__(self, name: str) -> None:
        if name == "broken":
            raise ParameterError("this name is taken")
        self.name = name

    def pid(self) -> int:
        return os.getpid()

    def add(self, left: int, right: int) -> int:
        return left + right

    def fail(self, kind: str) -> None:
        raise (ParameterError if kind == "own" else RuntimeError)("first line\nsecond line")

    def die(self) -> None:
        os._exit(7)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def test_calls_cross_to_another_process():
    """Engines in one process would disturb each other; errors must come back as if they had not crossed."""
    host = ProcessHost(Worker, "a")
    try:
        assert host.call("add", 2, 3) == 5
        assert host.call("pid") != os.getpid()
        with pytest.raises(ParameterError, match="first line"):
            host.call("fail", "own")
        with pytest.raises(ExecutionError, match="RuntimeError: first line"):
            host.call("fail", "other")
        assert host.call("add", 1, 1) == 2, "an error is not the end"
        with pytest.raises(ExecutionError, match="died"):
            host.call("die")
        with pytest.raises(ExecutionError):
            host.call("add", 1, 1)
    finally:
        host.close()


def test_errors_of_the_factory_come_back():
    """An absent engine is told from a broken benchmark by its error."""
    with pytest.raises(ParameterError, match="this name is taken"):
        ProcessHost(Worker, "broken")


def test_a_hanging_engine_is_stopped():
    """One engine that hangs would hold up the benchmark for ever."""
    host = ProcessHost(Worker, "a")
    started = time.monotonic()
    with pytest.raises(ExecutionError, match="longer"):
        host.call("sleep", 60, timeout=0.2)
    host.close()
    assert time.monotonic() - started < 15
    assert not host._process.is_alive()


def test_the_local_host_is_the_same_but_here():
    """Tests through it would say nothing of the real one if it behaved differently."""
    host = LocalHost(Worker, "a")
    assert host.call("add", 2, 3) == 5 and host.call("pid") == os.getpid()
    host.close()


def test_peak_memory_is_counted_from_when_it_is_forgotten():
    """A peak that never falls would be charged to every engine after the largest."""
    before = peak_memory()
    if before is None:
        pytest.skip("this system does not tell")
    block = bytearray(200 * 2**20)
    block[:: 2**12] = b"\1" * len(block[:: 2**12])
    grown = peak_memory()
    assert grown is not None and grown >= before and grown > 200 * 2**20
    del block
    forget_peak_memory()
    after = peak_memory()
    assert after is not None and after <= grown
