"""The benchmark's prompts."""

from __future__ import annotations

import pytest

from foredraft.bench.tasks import KINDS, kinds_of, load_tasks
from foredraft.errors import ParameterError

LONG_KINDS = ("summarisation", "retrieval", "code_editing")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_enough_prompts(kind: str):
    """A kind with few, doubled or mislabelled prompts would be measured badly."""
    tasks = load_tasks([kind])
    assert len(tasks) >= 8
    assert len({task.prompt for task in tasks}) == len(tasks)
    assert all(task.kind == kind and task.prompt.strip() == task.prompt for task in tasks)


@pytest.mark.parametrize("kind", LONG_KINDS)
def test_long_kinds_have_context(kind: str):
    """Summaries, answers from passages and edits of code without much to read say nothing of long prompts."""
    assert all(len(task.prompt.split()) >= 120 and len(task.prompt) >= 1000 for task in load_tasks([kind]))


def test_kinds_take_turns():
    """A run that is cut short would otherwise have measured the first kinds only."""
    assert [task.kind for task in load_tasks(per_kind=2)] == [*KINDS, *KINDS]


def test_kinds_are_named_or_all():
    """A list with blanks is what people type."""
    assert kinds_of("all") == KINDS
    assert kinds_of("chat, math") == ("chat", "math")


@pytest.mark.parametrize("wrong", [{"kinds": ["poetry"]}, {"kinds": []}, {"per_kind": 0}])
def test_nothing_to_measure_is_refused(wrong):
    """A typo would silently measure something else, or nothing."""
    with pytest.raises(ParameterError):
        load_tasks(**wrong)
