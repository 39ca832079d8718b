"""Drafting by n-gram lookup in the sequence's own prompt and output.

Prompt lookup decoding (Saxena 2023) with an incremental index: each new token costs one dictionary entry
for each n, a lookup costs one probe for each n, and the context is never scanned. The longest n-gram wins,
and among equals the most recent occurrence.
"""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.drafters.base import EMPTY_PROPOSAL, DraftContext, Proposal
from foredraft.errors import ParameterError

DEFAULT_MIN_NGRAM = 2
DEFAULT_MAX_NGRAM = 4


class NgramIndex:
    """Where each n-gram of one growing sequence was last followed by something."""

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self._sizes = range(min_ngram, max_ngram + 1)
        self._followers: dict[tuple[int, ...], int] = {}
        self._indexed = 1

    def extend(self, tokens: Sequence[int]) -> None:
        """Index the tokens that are new since the last call."""
        for position in range(self._indexed, len(tokens)):
            for size in self._sizes:
                if size > position:
                    break
                self._followers[tuple(tokens[position - size : position])] = position
        self._indexed = max(self._indexed, len(tokens))

    def lookup(self, tokens: Sequence[int]) -> int | None:
        """Position of the token that followed the longest n-gram which `tokens` ends with."""
        for size in reversed(self._sizes):
            if size < len(tokens):
                position = self._followers.get(tuple(tokens[-size:]))
                if position is not None:
                    return position
        return None


class NgramDrafter:
    """Copies what followed the last occurrence of the current n-gram.

    Args:
        min_ngram: shortest n-gram that is trusted.
        max_ngram: longest n-gram that is looked up.
        end_token_ids: a copy ends with one of these, since nothing after it can be accepted.
        vocab_size: token ids from here on are never proposed.
    """

    name = "ngram"

    def __init__(
        self,
        *,
        min_ngram: int = DEFAULT_MIN_NGRAM,
        max_ngram: int = DEFAULT_MAX_NGRAM,
        end_token_ids: Sequence[int] = (),
        vocab_size: int | None = None,
    ) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ParameterError(
                f"n-gram sizes must satisfy 1 <= min_ngram <= max_ngram (got {min_ngram}, {max_ngram})"
            )
        self._sizes = (min_ngram, max_ngram)
        self._end_token_ids = frozenset(end_token_ids)
        self._vocab_size = vocab_size
        self._indexes: dict[int, NgramIndex] = {}

    def propose(self, contexts: Sequence[DraftContext], budgets: Sequence[int]) -> list[Proposal]:
        """See `Drafter.propose`."""
        return [self._propose(context, budget) for context, budget in zip(contexts, budgets, strict=True)]

    def forget(self, context: DraftContext) -> None:
        """See `Drafter.forget`."""
        self._indexes.pop(context.id, None)

    def _propose(self, context: DraftContext, budget: int) -> Proposal:
        index = self._indexes.get(context.id)
        if index is None:
            index = self._indexes[context.id] = NgramIndex(*self._sizes)
        tokens = context.tokens
        index.extend(tokens)
        source = index.lookup(tokens) if budget else None
        if source is None:
            return EMPTY_PROPOSAL
        return Proposal(tuple(self._copy(tokens, source, budget)))

    def _copy(self, tokens: Sequence[int], source: int, budget: int) -> list[int]:
        drafted: list[int] = []
        while len(drafted) < budget:
            # A copy that reaches the end of the context goes on with its own tokens: a period repeats.
            token = tokens[source] if source < len(tokens) else drafted[source - len(tokens)]
            if self._vocab_size is not None and token >= self._vocab_size:
                break
            drafted.append(token)
            if token in self._end_token_ids:
                break
            source += 1
        return drafted
