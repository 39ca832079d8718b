"""Ctrl-C that keeps what was generated."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells give it."""


@contextmanager
def cancel_on_interrupt() -> Generator[threading.Event, None, None]:
    """An event that the first Ctrl-C sets; a second one interrupts at once."""
    cancelled = threading.Event()
    before = signal.getsignal(signal.SIGINT)

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        if cancelled.is_set():
            raise KeyboardInterrupt
        cancelled.set()

    try:
        signal.signal(signal.SIGINT, on_interrupt)
    except ValueError:  # Not in the main thread (tests, embedding): Ctrl-C is somebody else's.
        yield cancelled
        return
    try:
        yield cancelled
    finally:
        signal.signal(signal.SIGINT, before)
