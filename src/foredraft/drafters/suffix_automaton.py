"""Drafting from a suffix automaton over the sequence's own prompt and output.

The automaton (Blumer et al. 1985) grows with every committed token at amortised O(1). Its last state's
suffix link is the longest suffix that has occurred before, whatever its length, so tracking the match costs
nothing beyond the insertion. Drafting from it is SAM-Decoding (Hu et al. 2024, arXiv 2411.10666); where that
work keeps the first occurrence of a match, the most recent one is kept here.

Measured once on one core of a shared server CPU: 0.014 ms a round of five committed tokens at 8,192 tokens of
context; the automaton of an 8,192-token prompt is built once, in 20 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.drafters.base import EMPTY_PROPOSAL, DraftContext, Proposal
from foredraft.drafters.suffix_automaton_copy import copied_continuation
from foredraft.errors import ParameterError

DEFAULT_MIN_MATCH = 2
DEFAULT_DRAFT_PER_MATCH = 2.0

_MARKED_LINKS = 64
"""Shorter suffixes whose last occurrence is brought up to date with a token. It bounds the cost of a token;
only texts that repeat themselves ever more deeply have more, and they then find an older occurrence."""


@dataclass(frozen=True)
class SuffixMatch:
    """The longest suffix of a sequence that occurred before."""

    length: int
    """Tokens that agree; 0 if the last token is new."""
    source: int
    """Position of the token that followed the most recent earlier occurrence."""


class SuffixAutomaton:
    """All substrings of one growing sequence."""

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [-1]
        self._last = 0
        self._size = 0
        self._source = 0

    def __len__(self) -> int:
        """Tokens inserted."""
        return self._size

    @property
    def match(self) -> SuffixMatch:
        """The longest suffix of all tokens inserted so far that occurred before."""
        link = self._link[self._last]
        return SuffixMatch(self._length[link] if link >= 0 else 0, self._source)

    def extend(self, tokens: Sequence[int]) -> None:
        """Insert the tokens of the sequence that are new since the last call."""
        for token in tokens[self._size :]:
            self._insert(token)

    def _insert(self, token: int) -> None:
        position = self._size
        state = self._new_state({}, self._length[self._last] + 1, position)
        ancestor = self._last
        while ancestor >= 0 and token not in self._next[ancestor]:
            self._next[ancestor][token] = state
            ancestor = self._link[ancestor]
        link = self._link[state] = 0 if ancestor < 0 else self._target(ancestor, token)
        self._source = self._end[link] + 1
        self._mark(link, position)
        self._last = state
        self._size = position + 1

    def _target(self, ancestor: int, token: int) -> int:
        """The state of the longest earlier suffix, split off from longer ones where it shares theirs."""
        state = self._next[ancestor][token]
        if self._length[state] == self._length[ancestor] + 1:
            return state
        clone = self._new_state(dict(self._next[state]), self._length[ancestor] + 1, self._end[state])
        self._link[clone] = self._link[state]
        self._link[state] = clone
        while ancestor >= 0 and self._next[ancestor].get(token) == state:
            self._next[ancestor][token] = clone
            ancestor = self._link[ancestor]
        return clone

    def _new_state(self, following: dict[int, int], length: int, end: int) -> int:
        self._next.append(following)
        self._link.append(-1)
        self._length.append(length)
        self._end.append(end)
        return len(self._next) - 1

    def _mark(self, state: int, position: int) -> None:
        """Every suffix of what was inserted has now occurred at `position`."""
        for _ in range(_MARKED_LINKS):
            if state <= 0:
                return
            self._end[state] = position
            state = self._link[state]


class SuffixAutomatonDrafter:
    """Copies what followed the most recent occurrence of the longest repeated suffix.

    Args:
        min_match: shortest match that is trusted.
        draft_per_match: tokens drafted for each token of the match, within the budget. A long match has
            proven itself, and an accepted draft makes the next match longer by what was accepted.
        end_token_ids: a copy ends with one of these, since nothing after it can be accepted.
        vocab_size: token ids from here on are never proposed.

    Raises:
        ParameterError: if `min_match` is below 1 or `draft_per_match` is not positive.
    """

    name = "suffix"

    def __init__(
        self,
        *,
        min_match: int = DEFAULT_MIN_MATCH,
        draft_per_match: float = DEFAULT_DRAFT_PER_MATCH,
        end_token_ids: Sequence[int] = (),
        vocab_size: int | None = None,
    ) -> None:
        if min_match < 1:
            raise ParameterError(f"min_match must be at least 1 (got {min_match})")
        if not draft_per_match > 0:
            raise ParameterError(f"draft_per_match must be positive (got {draft_per_match})")
        self.min_match = min_match
        self.draft_per_match = draft_per_match
        self._end_token_ids = frozenset(end_token_ids)
        self._vocab_size = vocab_size
        self._automata: dict[int, SuffixAutomaton] = {}

    def propose(self, contexts: Sequence[DraftContext], budgets: Sequence[int]) -> list[Proposal]:
        """See `Drafter.propose`."""
        return [
            self.copy(context, self.match(context), budget)
            for context, budget in zip(contexts, budgets, strict=True)
        ]

    def forget(self, context: DraftContext) -> None:
        """See `Drafter.forget`."""
        self._automata.pop(context.id, None)

    def match(self, context: DraftContext) -> SuffixMatch:
        """Bring the sequence's automaton up to date and look up its longest repeated suffix."""
        automaton = self._automata.get(context.id)
        if automaton is None:
            automaton = self._automata[context.id] = SuffixAutomaton()
        automaton.extend(context.tokens)
        return automaton.match

    def copy(self, context: DraftContext, match: SuffixMatch, budget: int) -> Proposal:
        """The draft of a match; empty if it is shorter than `min_match`."""
        length = draft_length(match.length, budget, self.draft_per_match)
        if match.length < self.min_match or not length:
            return EMPTY_PROPOSAL
        copied = copied_continuation(
            context.tokens,
            match.source,
            length,
            end_token_ids=self._end_token_ids,
            vocab_size=self._vocab_size,
        )
        return Proposal(tuple(copied))


def draft_length(match_length: int, budget: int, draft_per_match: float) -> int:
    """Tokens to draft after a match of `match_length`, never more than `budget`."""
    return min(budget, int(match_length * draft_per_match))
