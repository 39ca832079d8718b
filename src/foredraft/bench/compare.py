"""`compare`: two results of the benchmark, row by row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foredraft.errors import ParameterError

Row = Mapping[str, Any]
KEYS = ("engine", "drafter", "task", "temperature", "dtype", "batch", "context", "tokens")
"""What identifies a row; a generate row's number of tokens is a result, a step row's is not."""


@dataclass(frozen=True)
class Comparison:
    """One row that both results have."""

    label: str
    metric: str
    before: float
    after: float
    low: float
    """Least speed ratio that the spreads of both sides allow."""
    high: float
    reason: str = ""
    """Why it is a regression; "" if it is none."""

    @property
    def ratio(self) -> float:
        """Speed after over speed before, above 1 for faster."""
        return self.after / self.before if self.metric in _RISING else self.before / self.after

    def as_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "row": self.label,
            "metric": self.metric,
            "before": self.before,
            "after": self.after,
            "ratio": self.ratio,
            "ratio_low": self.low,
            "ratio_high": self.high,
            "regression": bool(self.reason),
            "reason": self.reason or None,
        }


_RISING = {"tokens_per_second"}


def read_rows(path: Path) -> Sequence[Row]:
    """The rows of a result: a document with "rows", a list of rows, or a row a line.

    Raises:
        ParameterError: if the file cannot be read as one of them, or has no rows.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"{path}: cannot be read ({error})") from None
    try:
        found: Any = json.loads(text)
    except ValueError:
        found = _lines(path, text)
    rows: Any = found.get("rows", [found]) if isinstance(found, dict) else found
    known = (
        [row for row in rows if isinstance(row, dict) and "engine" in row] if isinstance(rows, list) else []
    )
    if not known:
        raise ParameterError(
            f"{path}: no rows of foredraft bench in it; write one with foredraft bench --json"
        )
    return known


def compare(before: Iterable[Row], after: Iterable[Row], *, tolerance: float) -> list[Comparison]:
    """Rows that both results have.

    A row is a regression if it is slower by more than `tolerance`, or if tokens that were equal to plain
    decoding's no longer are.

    Args:
        before: the older result.
        after: the newer result.
        tolerance: 0.1 allows a loss of a tenth of the speed.

    Raises:
        ParameterError: if the results have no row in common, or the tolerance is not in [0, 1).
    """
    if not 0 <= tolerance < 1:
        raise ParameterError(f"tolerance: must be at least 0 and below 1 (got {tolerance})")
    older = {_key(row): row for row in before}
    pairs = [(older[_key(row)], row) for row in after if _key(row) in older]
    found = [_compared(old, new, tolerance) for old, new in pairs]
    comparisons = [comparison for comparison in found if comparison is not None]
    if not comparisons:
        raise ParameterError("the two results have no row in common; compare runs of the same command")
    return comparisons


def _key(row: Row) -> tuple[Any, ...]:
    names = KEYS if _is_step(row) else KEYS[:-1]
    return tuple(row.get(name) for name in names)


def _is_step(row: Row) -> bool:
    return "ms_median" in row


def _compared(old: Row, new: Row, tolerance: float) -> Comparison | None:
    metric = "ms_median" if _is_step(new) else "tokens_per_second"
    if not old.get(metric) or not new.get(metric):
        return None
    low, high = _ratio_range(old, new, metric)
    comparison = Comparison(_label(new), metric, float(old[metric]), float(new[metric]), low, high)
    reason = ""
    if comparison.ratio < 1 - tolerance:
        reason = f"slower: {comparison.ratio:.2f}x"
    if old.get("equal_to_plain") is True and new.get("equal_to_plain") is False:
        reason = "tokens are no longer those of plain decoding"
    return replace(comparison, reason=reason)


def _ratio_range(old: Row, new: Row, metric: str) -> tuple[float, float]:
    """Least and greatest speed ratio, from the ends of both spreads."""
    if metric == "ms_median":
        return old["ms_min"] / new["ms_median"], old["ms_median"] / new["ms_min"]
    names = (f"{metric}_p10", f"{metric}_p90")
    old_low, old_high = (float(old.get(name) or old[metric]) for name in names)
    new_low, new_high = (float(new.get(name) or new[metric]) for name in names)
    return new_low / old_high, new_high / old_low


def _label(row: Row) -> str:
    parts = [row["engine"], row.get("drafter"), row.get("dtype"), row.get("task")]
    if _is_step(row):
        parts += [f"batch {row.get('batch')}", f"context {row.get('context')}", f"T={row.get('tokens')}"]
    elif row.get("temperature"):
        parts.append(f"temperature {row['temperature']:g}")
    return " ".join(str(part) for part in parts if part)


def _lines(path: Path, text: str) -> list[Any]:
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError:
        raise ParameterError(f"{path}: not JSON") from None
