"""Drafting with a model of another tokenizer by token-level intersection (TLI).

Timor et al. 2025 (arXiv 2502.05202): the draft's law is restricted to the tokens that both vocabularies
have and renormalised, and a token is drawn from that, over the target's ids. It is an ordinary sampled draft
then, verified by any rejection rule, or by match if it is drawn with the target's noise. What the target
committed reaches the draft as text, in the draft's own tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from foredraft.drafters.base import EMPTY_PROPOSAL, DraftContext, Proposal
from foredraft.drafters.other_tokenizer_context import Encode
from foredraft.drafters.other_tokenizer_rows import ReencodedRows
from foredraft.drafters.vocabulary_map import VocabularyMap
from foredraft.errors import ExecutionError
from foredraft.execution import ModelRunner
from foredraft.laws import NoiseStream, sample_one

logger = logging.getLogger(__name__)


class IntersectionDrafter:
    """Draws tokens of the vocabularies' intersection from the draft's processed law.

    Args:
        runner: the draft.
        vocabulary: bytes of both tokenizers' tokens.
        encode: the draft tokenizer's encoder, without special tokens.
        vocab_size: width of the target's logits.
        start_ids: draft tokens that come before every text (its BOS).
        coupled: draw with the target's own noise (seed-exact verification) instead of independent noise.
            Then no laws are kept, since verification is by match.
        end_token_ids: drafting ends with one of these (target ids).

    A sequence gets an empty proposal while its text ends within a character that the draft cannot spell, or
    where it does not fit in the draft's context.
    """

    name = "tli"

    def __init__(
        self,
        runner: ModelRunner,
        vocabulary: VocabularyMap,
        encode: Encode,
        *,
        vocab_size: int,
        start_ids: Sequence[int] = (),
        coupled: bool = False,
        end_token_ids: Sequence[int] = (),
    ) -> None:
        self._rows = ReencodedRows(runner, vocabulary, encode, start_ids)
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._stream = NoiseStream.TARGET if coupled else NoiseStream.DRAFT
        self._end_token_ids = frozenset(end_token_ids)

    def propose(self, contexts: Sequence[DraftContext], budgets: Sequence[int]) -> list[Proposal]:
        """See `Drafter.propose`."""
        begun = self._rows.begin(contexts, budgets)
        drafts = {index: _Draft(contexts[index], ids, budgets[index]) for index, ids in begun.items()}
        active = list(drafts.values())
        while active:
            logits = self._rows.next_logits([(draft.context, draft.ids) for draft in active])
            mapped = self._vocabulary.target_logits(logits, self._vocab_size)
            for draft, row in zip(active, mapped.split(1), strict=True):
                self._draw(draft, row)
            active = [draft for draft in active if not draft.is_done]
        return [
            drafts[index].proposal() if index in drafts else EMPTY_PROPOSAL for index in range(len(contexts))
        ]

    def forget(self, context: DraftContext) -> None:
        """See `Drafter.forget`."""
        self._rows.forget(context)

    def _draw(self, draft: _Draft, logits: torch.Tensor) -> None:
        try:
            token = draft.draw(logits, self._stream)
        except ExecutionError as error:
            # The request forbids all of the intersection: known before a token is drawn, so no bias.
            logger.debug("sequence %d: drafting stopped: %s", draft.context.id, error)
            draft.is_done = True
            return
        draft.ids.append(self._vocabulary.draft_of_target[token])
        draft.is_done = len(draft.tokens) >= draft.budget or token in self._end_token_ids


class _Draft:
    """The tokens drawn so far for one sequence."""

    def __init__(self, context: DraftContext, ids: list[int], budget: int) -> None:
        self.context = context
        self.ids = ids
        """The context and what was drawn, in the draft's tokens."""
        self.budget = budget
        self.tokens: list[int] = []
        """What was drawn, in the target's tokens."""
        self.is_done = False
        self._laws: list[torch.Tensor] = []

    def draw(self, logits: torch.Tensor, stream: NoiseStream) -> int:
        """Draw the next token from the processed law of `logits` `[1, target vocab]`."""
        context, processor = self.context, self.context.processor
        if processor.params.is_greedy:
            self.tokens.append(int(processor.greedy_tokens(logits, context.tokens, [self.tokens])))
            return self.tokens[-1]
        law = processor.laws(logits, context.tokens, [self.tokens])
        key = context.noise_key(stream, len(context.tokens) + len(self.tokens))
        self.tokens.append(sample_one(law[0], key))
        if stream is NoiseStream.DRAFT:
            self._laws.append(law)
        return self.tokens[-1]

    def proposal(self) -> Proposal:
        return Proposal(tuple(self.tokens), torch.cat(self._laws) if self._laws else None)
