"""What the libraries say about a load, in one line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foredraft.errors import ModelError

_MAX_LENGTH = 200
_PROBLEMS = {
    "missing_keys": "lacks tensors of the model",
    "mismatched_keys": "holds tensors of another shape than its configuration says",
}


def one_line(error: BaseException) -> str:
    """An exception's message on one line of readable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MAX_LENGTH else text[: _MAX_LENGTH - 3] + "..."


def check_loading_report(source: Path, report: Mapping[str, Any]) -> None:
    """Refuse a model of which transformers filled some tensors with random numbers.

    Args:
        source: the file or folder it was read from.
        report: the second result of `from_pretrained(..., output_loading_info=True)`.

    Raises:
        ModelError: naming one such tensor and counting them.
    """
    for key, problem in _PROBLEMS.items():
        found = sorted(str(item[0] if isinstance(item, tuple) else item) for item in report.get(key) or ())
        if found:
            raise ModelError(f"{source} {problem} ({len(found)}, the first is {found[0]})")
