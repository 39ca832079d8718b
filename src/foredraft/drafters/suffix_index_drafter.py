"""Drafting from the sequence itself and from what earlier requests generated."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.drafters.base import DraftContext, Proposal
from foredraft.drafters.suffix_automaton import (
    DEFAULT_DRAFT_PER_MATCH,
    DEFAULT_MIN_MATCH,
    SuffixAutomatonDrafter,
    draft_length,
)
from foredraft.drafters.suffix_automaton_copy import cut
from foredraft.drafters.suffix_index import SuffixIndex
from foredraft.drafters.suffix_index_segment import MAX_MATCH

_LEAD = 16
"""Tokens of the prompt's end that are indexed with an output, so that its beginning can be found too."""


class SuffixIndexDrafter:
    """The sequence's own suffix automaton first; the shared index where it knows a longer suffix.

    An output is added to the index when its sequence ends; a sequence that is still running sees only its
    own tokens and finished ones, so what is drafted never depends on how rows of a batch interleave within
    a round.

    Args:
        index: earlier outputs; may be shared between drafters that run in one thread, and is kept when the
            drafter goes.
        min_match: shortest match within the sequence that is trusted.
        draft_per_match: tokens drafted for each token of the match, within the budget.
        end_token_ids: a draft ends with one of these, since nothing after it can be accepted.
        vocab_size: token ids from here on are never proposed.

    Raises:
        ParameterError: as `SuffixAutomatonDrafter`.
    """

    name = "suffix-index"

    def __init__(
        self,
        index: SuffixIndex,
        *,
        min_match: int = DEFAULT_MIN_MATCH,
        draft_per_match: float = DEFAULT_DRAFT_PER_MATCH,
        end_token_ids: Sequence[int] = (),
        vocab_size: int | None = None,
    ) -> None:
        self.index = index
        self._own = SuffixAutomatonDrafter(
            min_match=min_match,
            draft_per_match=draft_per_match,
            end_token_ids=end_token_ids,
            vocab_size=vocab_size,
        )
        self._end_token_ids = frozenset(end_token_ids)
        self._vocab_size = vocab_size
        self._prompt_lengths: dict[int, int] = {}

    def propose(self, contexts: Sequence[DraftContext], budgets: Sequence[int]) -> list[Proposal]:
        """See `Drafter.propose`."""
        return [self._propose(context, budget) for context, budget in zip(contexts, budgets, strict=True)]

    def forget(self, context: DraftContext) -> None:
        """See `Drafter.forget`. What the sequence generated enters the index."""
        self._own.forget(context)
        prompt_length = self._prompt_lengths.pop(context.id, None)
        if prompt_length is not None and len(context.tokens) > prompt_length:
            self.index.add(context.tokens[max(0, prompt_length - _LEAD) :])

    def _propose(self, context: DraftContext, budget: int) -> Proposal:
        # The engine asks before the first new token is committed, so this is the prompt.
        self._prompt_lengths.setdefault(context.id, len(context.tokens))
        own = self._own.match(context)
        if not budget or own.length >= MAX_MATCH:
            return self._own.copy(context, own, budget)
        shared = self.index.match(context.tokens)
        if shared.length > own.length:
            length = draft_length(shared.length, budget, self._own.draft_per_match)
            tokens = cut(
                self.index.continuation(shared, length),
                end_token_ids=self._end_token_ids,
                vocab_size=self._vocab_size,
            )
            if tokens:
                return Proposal(tuple(tokens))
        return self._own.copy(context, own, budget)
