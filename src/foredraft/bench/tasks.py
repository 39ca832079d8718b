"""The benchmark's prompts: seven kinds of task in the manner of Spec-Bench, and code editing among them.

Written for foredraft; each kind is a file of JSON lines with a "kind" and a "prompt".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import zip_longest

from foredraft.errors import ParameterError

KINDS = (
    "chat",
    "translation",
    "summarisation",
    "question_answering",
    "math",
    "retrieval",
    "code_editing",
)


@dataclass(frozen=True)
class Task:
    """One prompt of the benchmark."""

    kind: str
    prompt: str


def load_tasks(kinds: Sequence[str] = KINDS, *, per_kind: int | None = None) -> list[Task]:
    """Prompts of some kinds, one of each kind in turn.

    That order makes every kind have its share of whatever a run that is cut short has reached.

    Args:
        kinds: any of `KINDS`.
        per_kind: at most this many of each; None takes all.

    Raises:
        ParameterError: for a kind that does not exist, or where nothing is left.
    """
    if per_kind is not None and per_kind < 1:
        raise ParameterError(f"prompts per kind must be at least 1 (got {per_kind})")
    if not kinds:
        raise ParameterError(f"kinds: name at least one of {', '.join(KINDS)}")
    for kind in kinds:
        if kind not in KINDS:
            raise ParameterError(f"kinds: must be among {', '.join(KINDS)} (got {kind!r})")
    columns = [_read(kind)[:per_kind] for kind in dict.fromkeys(kinds)]
    return [task for row in zip_longest(*columns) for task in row if task is not None]


def kinds_of(text: str) -> tuple[str, ...]:
    """Kinds from a list with commas; "all" is every one of them."""
    if text.strip() == "all":
        return KINDS
    return tuple(_stripped(text.split(",")))


def _stripped(parts: Iterable[str]) -> list[str]:
    return [part.strip() for part in parts if part.strip()]


def _read(kind: str) -> list[Task]:
    folder = resources.files("foredraft.bench") / "prompts"
    text = (folder / f"{kind}.jsonl").read_text(encoding="utf-8")
    records = [json.loads(line) for line in text.splitlines()]
    return [Task(record["kind"], record["prompt"]) for record in records]
