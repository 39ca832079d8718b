"""`Host`: a process of its own for each engine that is measured.

Engines keep threads that spin, and memory: in one process they would disturb each other's times, and
nobody could say whose the memory is. An engine that crashes or hangs takes only its own process along.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from foredraft.errors import ExecutionError, ForedraftError

logger = logging.getLogger(__name__)

CLOSING_SECONDS = 2.0


class Host(Protocol):
    """Where an engine lives; calls its methods one at a time."""

    def call(self, method: str, *arguments: Any, timeout: float | None = None) -> Any:
        """The result of the method; its errors are raised here."""
        ...

    def close(self) -> None:
        """Let the engine go."""
        ...


class LocalHost:
    """The engine in this process, for tests and embedding; time limits are not kept."""

    def __init__(self, factory: Callable[..., Any], *arguments: Any, timeout: float | None = None) -> None:
        self._engine = factory(*arguments)

    def call(self, method: str, *arguments: Any, timeout: float | None = None) -> Any:
        """See `Host.call`."""
        return getattr(self._engine, method)(*arguments)

    def close(self) -> None:
        """See `Host.close`."""
        close = getattr(self._engine, "close", None)
        if close is not None:
            close()


class ProcessHost:
    """The engine in a fresh process.

    Args:
        factory: makes the engine; importable by name, like its arguments.
        timeout: seconds that making it may take; None waits.

    Raises:
        ForedraftError: whatever the factory raised.
        ExecutionError: if it raised anything else, took too long, or its process died.
    """

    def __init__(self, factory: Callable[..., Any], *arguments: Any, timeout: float | None = None) -> None:
        # A forked process would inherit thread pools in a state that some libraries hang in.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, factory, arguments), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self._answer(timeout)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *arguments: Any, timeout: float | None = None) -> Any:
        """See `Host.call`; an engine that takes longer than `timeout` is stopped for good."""
        try:
            self._connection.send((method, arguments))
        except OSError:
            raise ExecutionError("the engine's process is gone") from None
        return self._answer(timeout)

    def close(self) -> None:
        """See `Host.close`."""
        with contextlib.suppress(OSError):
            self._connection.close()
        self._process.join(CLOSING_SECONDS)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(CLOSING_SECONDS)
        if self._process.is_alive():
            self._process.kill()

    def _answer(self, timeout: float | None) -> Any:
        try:
            if not self._connection.poll(timeout):
                self._process.terminate()
                self._connection.close()
                raise ExecutionError(f"it took longer than the {timeout:.0f} s allowed; give it more time")
            succeeded, value = self._connection.recv()
        except (EOFError, ConnectionError):
            raise ExecutionError("the engine's process died (out of memory, perhaps)") from None
        if not succeeded:
            raise value
        return value


def _serve(connection: Connection, factory: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Make the engine, then answer calls until the other end is closed."""
    # Ctrl-C is the parent's to handle; being told to stop must still end what the engine started.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit)
    try:
        _answer_calls(connection, factory, arguments)
    finally:
        # What libraries do at exit takes seconds, and nobody needs it.
        os._exit(0)


def _answer_calls(connection: Connection, factory: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        host = LocalHost(factory, *arguments)
    except Exception as error:
        _reply(connection, False, _sendable(error))
        return
    try:
        _reply(connection, True, None)
        while True:
            method, values = connection.recv()
            try:
                _reply(connection, True, host.call(method, *values))
            except Exception as error:
                _reply(connection, False, _sendable(error))
    except (EOFError, OSError):
        return
    finally:
        host.close()


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(1)


def _reply(connection: Connection, succeeded: bool, value: Any) -> None:
    with contextlib.suppress(OSError):  # Nobody is listening any more.
        connection.send((succeeded, value))


def _sendable(error: Exception) -> ForedraftError:
    if isinstance(error, ForedraftError):
        return error
    logger.debug("the engine failed", exc_info=error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ExecutionError(f"{type(error).__name__}: {lines[0][:200] if lines else 'no message'}")


def forget_peak_memory() -> None:
    """Start the count of `peak_memory` anew; only Linux can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(pid: int | None = None) -> int | None:
    """Most bytes that a process (this one, if None) has had resident; None where that cannot be read."""
    try:
        status = Path(f"/proc/{pid or 'self'}/status").read_text()
    except OSError:
        return _peak_of_this_process() if pid is None else None
    line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), None)
    return int(line.split()[1]) * 1024 if line is not None else None


def _peak_of_this_process() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
