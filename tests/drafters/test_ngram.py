"""NgramDrafter: the longest and most recent match is copied, and the index is always up to date."""

from __future__ import annotations

import pytest
from draft_contexts import Context
from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters import EMPTY_PROPOSAL, NgramDrafter
from foredraft.errors import ParameterError


def _drafted(tokens: list[int], budget: int = 4, **options) -> tuple[int, ...]:
    return NgramDrafter(**options).propose([Context(tokens)], [budget])[0].tokens


def test_the_longest_match_wins_over_a_more_recent_one():
    """More context that agrees predicts better."""
    assert _drafted([1, 2, 3, 9, 8, 7, 2, 3, 4, 4, 1, 2, 3], 2) == (9, 8)


def test_among_equal_matches_the_most_recent_wins():
    """Text follows its latest turn, not its first."""
    assert _drafted([5, 6, 7, 0, 5, 6, 8, 0, 5, 6], 1) == (8,)


def test_a_period_goes_on_beyond_the_end_of_the_context():
    """A copy that stopped at the end of the text would draft one period at most."""
    assert _drafted([1, 2, 3, 1, 2, 3], 8) == (1, 2, 3, 1, 2, 3, 1, 2)
    assert _drafted([4, 4, 4], 5) == (4, 4, 4, 4, 4)


def test_a_copy_ends_with_an_end_token():
    """Nothing behind it can be accepted."""
    assert _drafted([5, 6, 2, 9, 5, 6], 4, end_token_ids=(2,)) == (2,)


def test_ids_outside_the_vocabulary_are_not_proposed():
    """The target could not even be asked about them."""
    assert _drafted([5, 6, 7, 70, 5, 6], 4, vocab_size=64) == (7,)
    assert _drafted([5, 6, 70, 7, 5, 6], 4, vocab_size=64) == ()


@pytest.mark.parametrize("tokens", [[5], [5, 6], [5, 5], [1, 2, 3, 4, 5]])
def test_nothing_is_drafted_without_a_match(tokens):
    """Prompts shorter than the n-gram, and texts without repetition."""
    assert _drafted(tokens) == ()


def test_a_budget_of_zero_gets_nothing_and_keeps_the_index_right():
    """A round without drafting must not leave a hole in the index."""
    drafter, context = NgramDrafter(), Context([1, 2, 3])
    assert drafter.propose([context], [0]) == [EMPTY_PROPOSAL]
    context.commit([4, 1, 2])
    assert drafter.propose([context], [0]) == [EMPTY_PROPOSAL]
    assert drafter.propose([context], [2])[0].tokens == (3, 4)


def test_the_match_at_the_very_end_is_not_itself():
    """The last n-gram always occurs at the end; only earlier occurrences have a continuation."""
    assert _drafted([1, 2, 9, 9, 1, 2], 1) == (9,)
    assert _drafted([9, 1, 2], 1) == ()


def test_sequences_do_not_share_an_index():
    """One user's text must not be drafted for another."""
    drafter = NgramDrafter()
    first, second = Context([1, 2, 3, 1, 2]), Context([1, 2])
    assert [proposal.tokens for proposal in drafter.propose([first, second], [1, 1])] == [(3,), ()]
    drafter.forget(first)
    drafter.forget(first)
    assert not drafter._indexes.keys() & {first.id}


@pytest.mark.parametrize("sizes", [(0, 3), (4, 3), (-1, -1)])
def test_sizes_that_contradict_each_other_are_refused(sizes):
    """One readable line instead of a drafter that never matches."""
    with pytest.raises(ParameterError, match="n-gram sizes"):
        NgramDrafter(min_ngram=sizes[0], max_ngram=sizes[1])


def _by_scanning(tokens: list[int], budget: int, smallest: int, largest: int) -> tuple[int, ...]:
    for size in range(largest, smallest - 1, -1):
        for end in range(len(tokens) - 1, size - 1, -1):
            if size < len(tokens) and tokens[end - size : end] == tokens[-size:]:
                text = list(tokens)
                for source in range(end, end + budget):
                    text.append(text[source])
                return tuple(text[len(tokens) :])
    return ()


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=10),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(1, 6),
)
def test_the_index_grown_bit_by_bit_equals_a_scan_of_the_whole_text(pieces, smallest, more, budget):
    """Whatever arrives in whatever portions, the index finds what a search from scratch finds."""
    drafter = NgramDrafter(min_ngram=smallest, max_ngram=smallest + more)
    context = Context(pieces[0])
    for piece in [*pieces[1:], []]:
        drafted = drafter.propose([context], [budget])[0].tokens
        assert drafted == _by_scanning(context.tokens, budget, smallest, smallest + more)
        context.commit(piece)
