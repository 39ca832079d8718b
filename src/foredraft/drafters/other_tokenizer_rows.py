"""The cache of a draft whose contexts are re-encoded and may therefore change at their end."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from foredraft.drafters.base import DraftContext
from foredraft.drafters.other_tokenizer_context import Encode, ReencodedContext
from foredraft.drafters.vocabulary_map import VocabularyMap
from foredraft.execution import ModelRunner, PrefixRows, RowInput


class ReencodedRows:
    """Steps a draft over re-encoded contexts.

    Args:
        runner: the draft.
        vocabulary: bytes of both tokenizers' tokens.
        encode: the draft tokenizer's encoder, without special tokens.
        start_ids: draft tokens that come before every text (its BOS).
    """

    def __init__(
        self, runner: ModelRunner, vocabulary: VocabularyMap, encode: Encode, start_ids: Sequence[int]
    ) -> None:
        self._rows = PrefixRows(runner)
        self._runner = runner
        self._vocabulary = vocabulary
        self._encode = encode
        self._start_ids = tuple(start_ids)
        self._contexts: dict[int, ReencodedContext] = {}
        self._row_of: dict[int, int] = {}

    def begin(self, contexts: Sequence[DraftContext], lengths: Sequence[int]) -> dict[int, list[int]]:
        """Bring contexts up to date and cache all but the last token of each.

        Args:
            contexts: the sequences.
            lengths: draft tokens to be drawn for each; 0 skips it.

        Returns:
            Draft ids by index of those contexts for which tokens can be drawn: they end with a whole
            character and fit in the draft's context. The lists are the caller's to extend.
        """
        ready: dict[int, list[int]] = {}
        for index, (context, length) in enumerate(zip(contexts, lengths, strict=True)):
            if not length:
                continue
            own = self.reencoded(context)
            if own.is_complete and own.ids and len(own.ids) + length <= self._runner.context_length:
                ready[index] = list(own.ids)
                self._align(context, ready[index], length)
        self._rows.prefill({self._row_of[contexts[index].id]: ids for index, ids in ready.items()})
        return ready

    def reencoded(self, context: DraftContext) -> ReencodedContext:
        """The sequence in the draft's tokens, up to date."""
        own = self._contexts.get(context.id)
        if own is None:
            own = ReencodedContext(self._vocabulary, self._encode, self._start_ids)
            self._contexts[context.id] = own
        own.extend(context.tokens)
        return own

    def next_logits(self, drafts: Sequence[tuple[DraftContext, Sequence[int]]]) -> torch.Tensor:
        """float32 `[drafts, draft vocab]`: the draft's logits after each list of draft ids; one forward."""
        inputs: list[RowInput] = []
        for context, ids in drafts:
            row = self._row_of[context.id]
            inputs.append(RowInput(row, ids[self._rows.cached_length(row) :], 1))
        return self._rows.step(inputs).logits

    def forget(self, context: DraftContext) -> None:
        """Drop what is kept for a sequence."""
        self._contexts.pop(context.id, None)
        row = self._row_of.pop(context.id, None)
        if row is not None:
            self._rows.release(row)

    def _align(self, context: DraftContext, ids: Sequence[int], length: int) -> None:
        capacity = len(ids) + length
        row = self._row_of.get(context.id)
        if row is None:
            self._row_of[context.id] = self._rows.acquire(ids, capacity)
            return
        self._runner.reserve(0, capacity)
        self._rows.align(row, ids)
        # Something has to be fed for the first logits.
        self._rows.truncate(row, min(self._rows.cached_length(row), len(ids) - 1))
