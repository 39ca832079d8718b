"""NgramDrafter: what is copied, from where, and where the copy ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hashed_model import Context
from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters import NgramDrafter
from foredraft.errors import ParameterError


def _drafted(tokens: Sequence[int], budget: int = 8, **options) -> list[int]:
    [proposal] = NgramDrafter(**options).propose([Context(list(tokens))], [budget])
    assert proposal.laws is None and proposal.parents is None
    return list(proposal.tokens)


def test_the_longest_ngram_wins_over_a_more_recent_shorter_one():
    """A shorter match guesses worse; taking it first would waste most drafts."""
    tokens = [1, 2, 3, 9, 9, 2, 3, 8, 8, 1, 2, 3]
    assert _drafted(tokens, 2) == [9, 9]
    assert _drafted(tokens, 2, max_ngram=2) == [8, 8]


def test_the_most_recent_of_equal_ngrams_wins():
    """What followed last time is the better guess than what followed long ago."""
    assert _drafted([1, 2, 7, 1, 2, 8, 1, 2, 9, 5, 1, 2], 1) == [9]


def test_a_copy_that_reaches_the_end_repeats_its_period():
    """Repetition is where lookup is worth most; stopping at the end would draft one period a round."""
    assert _drafted([4, 1, 2, 3, 1, 2, 3], 7) == [1, 2, 3, 1, 2, 3, 1]
    assert _drafted([5, 5, 5], 6) == [5] * 6


def test_a_copy_ends_with_an_end_token():
    """Nothing after the end of the sequence can be committed; verifying it is wasted work."""
    tokens = [1, 2, 7, 0, 6, 6, 1, 2]
    assert _drafted(tokens, 5, end_token_ids=[0]) == [7, 0]
    assert _drafted(tokens, 1, end_token_ids=[0]) == [7]


def test_ids_outside_the_vocabulary_are_never_proposed():
    """An image or padding id in the prompt has no embedding in the target and would crash its forward."""
    tokens = [1, 2, 7, 64, 6, 1, 2]
    assert _drafted(tokens, 5, vocab_size=64) == [7]
    assert _drafted([1, 2, 64, 1, 2], 5, vocab_size=64) == []


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 1], [1, 2, 3], [1, 2, 3, 4, 5, 6]])
def test_nothing_is_proposed_where_nothing_is_repeated(tokens):
    """A prompt shorter than the n-gram, or without a repetition, is decoded plainly."""
    assert _drafted(tokens) == []


def test_a_budget_of_zero_gives_nothing_and_the_index_goes_on():
    """Rounds without drafting must not leave a hole in what is looked up later."""
    drafter, context = NgramDrafter(), Context([1, 2, 3])
    assert drafter.propose([context], [0])[0].tokens == ()
    context.tokens += [9, 1, 2]
    assert drafter.propose([context], [0])[0].tokens == ()
    assert drafter.propose([context], [3])[0].tokens == (3, 9, 1)


def test_sequences_do_not_see_each_other():
    """One user's text must never be proposed to another."""
    drafter = NgramDrafter()
    one, other = Context([1, 2, 9, 1, 2], id=1), Context([3, 4, 1, 2], id=2)
    first, second = drafter.propose([one, other], [2, 2])
    assert first.tokens == (9, 1) and second.tokens == ()


def test_a_forgotten_sequence_leaves_nothing_behind():
    """An index kept under a number that is used again would propose another text's tokens."""
    drafter = NgramDrafter()
    drafter.propose([Context([1, 2, 9, 1, 2])], [2])
    drafter.forget(Context([]))
    drafter.forget(Context([], id=77))
    assert drafter.propose([Context([7, 1, 2])], [2])[0].tokens == ()


@pytest.mark.parametrize("sizes", [(0, 2), (3, 2), (-1, -1)])
def test_impossible_sizes_are_refused(sizes):
    """An n-gram of no tokens matches everywhere."""
    with pytest.raises(ParameterError, match="min_ngram"):
        NgramDrafter(min_ngram=sizes[0], max_ngram=sizes[1])


def _by_scanning(tokens: list[int], budget: int, smallest: int, largest: int) -> list[int]:
    """Prompt lookup as its paper describes it: scan the context for each n, longest first."""
    for size in range(largest, smallest - 1, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[len(tokens) - size :]:
                period = len(tokens) - start - size
                copied = tokens[start + size :]
                return [copied[index % period] for index in range(budget)]
    return []


@given(
    pieces=st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=8),
    smallest=st.integers(1, 3),
    extra=st.integers(0, 2),
    budget=st.integers(1, 9),
)
def test_the_growing_index_equals_a_scan_of_the_whole_context(pieces, smallest, extra, budget):
    """However the tokens arrive, an incremental index must find what scanning from scratch finds."""
    drafter = NgramDrafter(min_ngram=smallest, max_ngram=smallest + extra)
    context = Context([])
    for piece in pieces:
        context.tokens += piece
        [proposal] = drafter.propose([context], [budget])
        assert list(proposal.tokens) == _by_scanning(context.tokens, budget, smallest, smallest + extra)
