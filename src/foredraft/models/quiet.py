"""Silence while libraries load: their progress bars and advice are not for foredraft's users."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Generator

from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers.utils import logging as transformers_logging

_lock = threading.RLock()


@contextlib.contextmanager
def quiet(*, downloads_shown: bool = False) -> Generator[None]:
    """Mute transformers and huggingface_hub, and restore what was set before.

    The settings are global, so one load at a time holds them.

    Args:
        downloads_shown: leave huggingface_hub's own progress bars as they are.
    """
    with _lock, contextlib.ExitStack() as restore:
        bars = transformers_logging.is_progress_bar_enabled()
        transformers_logging.disable_progress_bar()
        if bars:
            restore.callback(transformers_logging.enable_progress_bar)
        hub_bars = not are_progress_bars_disabled()
        if hub_bars and not downloads_shown:
            disable_progress_bars()
            restore.callback(enable_progress_bars)
        elif hub_bars:
            # transformers' switch turns the hub's bars off as well
            enable_progress_bars()
        for name in ("transformers", "huggingface_hub"):
            logger = logging.getLogger(name)
            restore.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        yield
