"""Verification by match: chains and trees, every drafter, by enumeration of the target's tokens."""

from __future__ import annotations

import pytest
import table_models as tables
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from table_models import Context, total_variation

from foredraft.laws import Match, match

VOCAB = 3
TARGET = tables.dense(VOCAB, 31)


class _UndecidedError(Exception):
    """The target was asked for a token that the script does not hold."""


def path_of(node: int, drafted: list[int], parents: list[int]) -> Context:
    """Tokens from the root down to `node`."""
    return () if node < 0 else (*path_of(parents[node], drafted, parents), drafted[node])


def outcomes(drafted: list[int], parents: list[int] | None) -> list[tuple[float, Context, Match, list[int]]]:
    """Probability, emitted tokens, match and nodes asked for, of everything that the target can draw."""
    links = list(range(-1, len(drafted) - 1)) if parents is None else parents
    found: list[tuple[float, Context, Match, list[int]]] = []

    def explore(script: list[int]) -> None:
        asked: list[int] = []
        probability = 1.0

        def target_token(node: int) -> int:
            nonlocal probability
            if len(asked) == len(script):
                raise _UndecidedError
            token = script[len(asked)]
            asked.append(node)
            probability *= float(TARGET.law(path_of(node, drafted, links))[token])
            return token

        try:
            result = match(drafted, target_token, parents)
        except _UndecidedError:
            for token in range(VOCAB):
                explore([*script, token])
            return
        emitted = (*(drafted[node] for node in result.accepted), result.next_token)
        found.append((probability, emitted, result, asked))

    explore([])
    return found


@st.composite
def drafts(draw: st.DrawFn) -> tuple[list[int], list[int] | None]:
    """A chain or a tree of up to 6 nodes; equal siblings and ids outside the vocabulary occur."""
    drafted = draw(st.lists(st.integers(0, VOCAB), max_size=6))
    if draw(st.booleans()):
        return drafted[:4], None
    return drafted, [draw(st.integers(-1, node - 1)) for node in range(len(drafted))]


@given(drafts())
@settings(deadline=None, max_examples=60)
def test_output_law_is_the_target_law(draft: tuple[list[int], list[int] | None]) -> None:
    """Some drafter, chain or tree, could change the distribution of the text."""
    total = 7 if draft[1] is not None else 5
    total = min(total, len(draft[0]) + 1)
    joint = torch.zeros([VOCAB] * total, dtype=torch.float64)
    for probability, emitted, _, _ in outcomes(*draft):
        joint[emitted] += probability * TARGET.joint(emitted, total - len(emitted))
    assert total_variation(joint, TARGET.joint((), total)) < 1e-12


@given(drafts())
@settings(deadline=None, max_examples=60)
def test_target_is_asked_once_for_each_accepted_node(draft: tuple[list[int], list[int] | None]) -> None:
    """A token would be drawn for a node that was never reached, from a law with the wrong context."""
    drafted, parents = draft
    for _, emitted, result, asked in outcomes(drafted, parents):
        assert asked == [-1, *result.accepted]
        assert len(emitted) == len(result.accepted) + 1
        for parent, node in zip(asked, result.accepted, strict=False):
            assert (node - 1 if parents is None else parents[node]) == parent


@given(drafts(), st.lists(st.integers(0, VOCAB - 1), min_size=8, max_size=8))
@settings(deadline=None)
def test_output_is_the_target_text(draft: tuple[list[int], list[int] | None], text: list[int]) -> None:
    """Greedy or seed-exact text would depend on what was drafted."""
    drafted, parents = draft
    links = list(range(-1, len(drafted) - 1)) if parents is None else parents
    result = match(drafted, lambda node: text[len(path_of(node, drafted, links))], parents)
    emitted = [*(drafted[node] for node in result.accepted), result.next_token]
    assert emitted == text[: len(emitted)]


@pytest.mark.parametrize(
    ("drafted", "parents", "text", "expected"),
    [
        ([], None, [5], Match((), 5)),
        ([5, 6], None, [5, 6, 7], Match((0, 1), 7)),
        ([5, 6], None, [6, 6, 7], Match((), 6)),
        ([5, 6], None, [5, 7, 7], Match((0,), 7)),
        ([5, 6, 7, 8], [-1, -1, 1, 0], [6, 7, 1], Match((1, 2), 1)),
        ([5, 5, 6, 7], [-1, -1, 0, 1], [5, 6, 1], Match((0, 2), 1)),
        ([5, 5, 6, 7], [-1, -1, 0, 1], [5, 7, 1], Match((0,), 7)),
    ],
    ids=["empty", "all", "none", "first", "branch", "equal siblings", "equal siblings, second branch"],
)
def test_follows_the_target(
    drafted: list[int], parents: list[int] | None, text: list[int], expected: Match
) -> None:
    """A right guess would be rejected, a wrong one accepted, or a node's index be another node's."""
    links = list(range(-1, len(drafted) - 1)) if parents is None else parents
    assert match(drafted, lambda node: text[len(path_of(node, drafted, links))], parents) == expected
