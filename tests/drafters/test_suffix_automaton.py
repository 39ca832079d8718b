"""Tests of the suffix automaton and its drafter."""

from __future__ import annotations

import pytest
from hashed_model import Context, FunctionRunner, assert_unchanged, check_within_budget, hashed_logits
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.drafters.suffix_automaton import SuffixAutomaton, SuffixAutomatonDrafter, draft_length
from foredraft.drafters.suffix_automaton_copy import copied_continuation
from foredraft.errors import ParameterError

TEXTS = st.lists(st.integers(0, 3), max_size=60)


def longest_repeated_suffix(tokens: list[int]) -> tuple[int, int]:
    """By definition: length, and the position after its most recent earlier occurrence."""
    for length in range(len(tokens) - 1, 0, -1):
        suffix = tokens[-length:]
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == suffix:
                return length, end
    return 0, 0


@settings(max_examples=50, deadline=None)
@given(TEXTS)
def test_match_is_the_longest_and_most_recent_one(tokens: list[int]) -> None:
    """If this failed, drafts would be copied from a worse place than a plain search finds."""
    automaton = SuffixAutomaton()
    for count in range(1, len(tokens) + 1):
        automaton.extend(tokens[:count])
        assert (automaton.match.length, automaton.match.source) == longest_repeated_suffix(tokens[:count])


@settings(max_examples=50, deadline=None)
@given(TEXTS, st.lists(st.integers(1, 7), max_size=30))
def test_growing_in_pieces_equals_building_at_once(tokens: list[int], pieces: list[int]) -> None:
    """If this failed, the match would depend on how many tokens each round committed."""
    grown, built = SuffixAutomaton(), SuffixAutomaton()
    end = 0
    for piece in [*pieces, len(tokens)]:
        end = min(len(tokens), end + piece)
        grown.extend(tokens[:end])
    built.extend(tokens)
    assert grown.match == built.match
    assert len(grown) == len(built) == len(tokens)


def test_states_stay_linear() -> None:
    """If this failed, memory or time a token would grow with the context (amortised O(1) is lost)."""
    for text in ([0] * 2000, [0, 1] * 1000, [*range(2000)], [0, 1, 1] * 700):
        automaton = SuffixAutomaton()
        automaton.extend(text)
        assert len(automaton._link) <= 2 * len(text)
        assert sum(len(following) for following in automaton._next) <= 3 * len(text)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.data())
def test_copy_repeats_a_period_and_stops_in_time(tokens: list[int], data: st.DataObject) -> None:
    """If this failed, a copy would leave the context, run past an end token or propose an unknown id."""
    source = data.draw(st.integers(0, len(tokens) - 1))
    length = data.draw(st.integers(0, 40))
    extended = list(tokens)
    for index in range(length):
        extended.append(extended[source + index])
    expected: list[int] = []
    for token in extended[len(tokens) :]:
        if token >= 5:
            break
        expected.append(token)
        if token == 4:
            break
    assert copied_continuation(tokens, source, length, end_token_ids=[4], vocab_size=5) == expected


def test_draft_length_follows_the_match_within_the_budget() -> None:
    """If this failed, a weak match would draft as many tokens as a strong one, or exceed the budget."""
    assert draft_length(3, 64, 2.0) == 6
    assert draft_length(30, 8, 2.0) == 8
    drafter = SuffixAutomatonDrafter(draft_per_match=1.0)
    (proposal,) = drafter.propose([Context([5, 6, 7, 8, 9, 1, 2, 5, 6])], [10])
    assert proposal.tokens == (7, 8)


def test_short_matches_and_zero_budgets_draft_nothing() -> None:
    """If this failed, the drafter would ignore its threshold or its budget."""
    drafter = SuffixAutomatonDrafter(min_match=3)
    first, second = Context([1, 2, 9, 1, 2], id=1), Context([1, 2, 3, 9, 1, 2, 3], id=2)
    proposals = drafter.propose([first, second, second], [4, 0, 2])
    assert [proposal.tokens for proposal in proposals] == [(), (), (9, 1)]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=24), min_size=1, max_size=3))
def test_budgets_hold_for_any_content(prompts: list[list[int]]) -> None:
    """If this failed, a proposal could exceed what the engine made room for."""
    drafter = SuffixAutomatonDrafter(end_token_ids=[1], vocab_size=6)
    contexts = [Context(prompt, id=index) for index, prompt in enumerate(prompts)]
    budgets = [index * 5 for index in range(len(prompts))]
    proposals = drafter.propose(contexts, budgets)
    check_within_budget(proposals, budgets)
    assert all(token < 6 for proposal in proposals for token in proposal.tokens)


@pytest.mark.parametrize(("vocab_size", "end_token_ids"), [(6, ()), (12, (1,))])
def test_output_is_that_of_plain_decoding(vocab_size: int, end_token_ids: tuple[int, ...]) -> None:
    """If this failed, drafting from the automaton would change the text."""
    runner = FunctionRunner(hashed_logits(vocab_size), vocab_size)
    prompts = [[2], [0, 2] * 20, [*range(vocab_size)] * 3, [2, 2, 2, 2]]

    def drafter() -> SuffixAutomatonDrafter:
        return SuffixAutomatonDrafter(vocab_size=vocab_size, end_token_ids=end_token_ids)

    finished = assert_unchanged(drafter, runner, prompts, end_token_ids)
    assert sum(sequence.stats.drafted for sequence in finished) > 0
    if not end_token_ids:
        assert sum(sequence.stats.accepted for sequence in finished) > 0


def test_forgetting_frees_the_sequence() -> None:
    """If this failed, a long-running process would keep every sequence it ever saw."""
    drafter = SuffixAutomatonDrafter()
    context = Context([1, 2, 1, 2])
    drafter.propose([context], [1])
    drafter.forget(context)
    drafter.forget(context)
    assert not drafter._automata


def test_parameters_are_checked() -> None:
    """If this failed, a nonsensical setting would only show as a drafter that never drafts."""
    with pytest.raises(ParameterError, match="min_match must be at least 1"):
        SuffixAutomatonDrafter(min_match=0)
    with pytest.raises(ParameterError, match="draft_per_match must be positive"):
        SuffixAutomatonDrafter(draft_per_match=float("nan"))
