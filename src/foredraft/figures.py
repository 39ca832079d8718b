"""Empty figures and their files; needs matplotlib (`pip install foredraft[bench]`)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from foredraft.errors import ForedraftError

FORMATS = ("png", "svg")


def new_figure(panels: int, width: float = 6.0) -> Any:
    """A figure with `panels` axes side by side, each `width` inches wide.

    Raises:
        ForedraftError: if matplotlib is not installed.
    """
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise ForedraftError(
            "plots need matplotlib; install it with: pip install 'foredraft[bench]'"
        ) from None
    # Not pyplot: it would look for a screen, and keep every figure.
    figure = figures.Figure(figsize=(width * panels, 4.5), layout="constrained")
    figure.subplots(1, panels)
    return figure


def save_figure(figure: Any, stem: Path) -> list[Path]:
    """Write the figure in every format, beside each other."""
    paths = [stem.with_suffix(f".{name}") for name in FORMATS]
    for path in paths:
        figure.savefig(path, dpi=120)
    return paths
