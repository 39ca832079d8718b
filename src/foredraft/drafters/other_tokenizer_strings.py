"""Drafting with a model of another tokenizer by string-level exact match (SLEM).

Timor et al. 2025 (arXiv 2502.05202): the draft writes text in its own tokens, without any restriction, and
the text's ids in the target's tokenizer are proposed. They carry no laws and are verified by match, so
they are drawn greedily at any temperature: the most likely guess is right most often.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from foredraft.drafters.base import EMPTY_PROPOSAL, DraftContext, Proposal
from foredraft.drafters.other_tokenizer_context import Encode, split_characters, token_ends
from foredraft.drafters.other_tokenizer_rows import ReencodedRows
from foredraft.drafters.vocabulary_map import VocabularyMap
from foredraft.execution import ModelRunner

_LOOK_BEHIND = 16
"""Committed target tokens encoded together with the draft's text, so that its first word is split as it
would be in the middle of a text. Their own ids are never replaced."""
_MAX_TOKEN_RATIO = 4.0


class StringMatchDrafter:
    """Proposes the target's tokens of the text that the draft would write.

    Args:
        runner: the draft.
        vocabulary: bytes of both tokenizers' tokens.
        encode: the draft tokenizer's encoder, without special tokens.
        target_encode: the target tokenizer's encoder, without special tokens.
        vocab_size: width of the target's logits; larger ids are never proposed.
        start_ids: draft tokens that come before every text (its BOS).
    """

    name = "slem"

    def __init__(
        self,
        runner: ModelRunner,
        vocabulary: VocabularyMap,
        encode: Encode,
        target_encode: Encode,
        *,
        vocab_size: int,
        start_ids: Sequence[int] = (),
    ) -> None:
        self._rows = ReencodedRows(runner, vocabulary, encode, start_ids)
        self._vocabulary = vocabulary
        self._target_encode = target_encode
        self._vocab_size = vocab_size
        self._special_of_draft = {draft_id: token for token, draft_id in vocabulary.special.items()}

    def propose(self, contexts: Sequence[DraftContext], budgets: Sequence[int]) -> list[Proposal]:
        """See `Drafter.propose`."""
        lengths = [
            self._draft_tokens(context, budget) for context, budget in zip(contexts, budgets, strict=True)
        ]
        texts = self._written(contexts, lengths)
        return [
            self._proposal(contexts[index], *texts[index], budget) if index in texts else EMPTY_PROPOSAL
            for index, budget in enumerate(budgets)
        ]

    def forget(self, context: DraftContext) -> None:
        """See `Drafter.forget`."""
        self._rows.forget(context)

    def _draft_tokens(self, context: DraftContext, budget: int) -> int:
        """Draft tokens that make about `budget` target tokens, going by the text so far."""
        if not budget:
            return 0
        ratio = len(self._rows.reencoded(context).ids) / len(context.tokens)
        return ceil(budget * min(max(ratio, 1 / _MAX_TOKEN_RATIO), _MAX_TOKEN_RATIO))

    def _written(
        self, contexts: Sequence[DraftContext], lengths: Sequence[int]
    ) -> dict[int, tuple[bytes, int | None]]:
        """For each index the text that the draft writes, and the special target token that it ends with."""
        ids = self._rows.begin(contexts, lengths)
        ends = {index: len(own) + lengths[index] for index, own in ids.items()}
        texts: dict[int, tuple[bytes, int | None]] = dict.fromkeys(ids, (b"", None))
        active = list(ids)
        while active:
            logits = self._rows.next_logits([(contexts[index], ids[index]) for index in active])
            for index, token in zip(list(active), logits.argmax(dim=-1).tolist(), strict=True):
                piece = self._vocabulary.draft_bytes(token)
                if piece is None:
                    texts[index] = (texts[index][0], self._special_of_draft.get(token))
                    active.remove(index)
                    continue
                texts[index] = (texts[index][0] + piece, None)
                ids[index].append(token)
                if len(ids[index]) >= ends[index]:
                    active.remove(index)
        return texts

    def _proposal(self, context: DraftContext, text: bytes, special: int | None, budget: int) -> Proposal:
        tokens = self._target_tokens(context.tokens, text)
        if special is not None and (tokens or not text):
            tokens = [*tokens, special]
        usable = next((index for index, token in enumerate(tokens) if token >= self._vocab_size), budget)
        return Proposal(tuple(tokens[: min(usable, budget)]))

    def _target_tokens(self, committed: Sequence[int], text: bytes) -> list[int]:
        """The target's tokens of `text` behind the committed ones; none if it cannot be split there."""
        behind = b""
        for token in reversed(committed[-_LOOK_BEHIND:]):
            piece = self._vocabulary.target_bytes(token)
            if piece is None:
                break
            behind = piece + behind
        # What lies behind may begin within a character.
        behind = behind.lstrip(bytes(range(0x80, 0xC0)))
        for known in (behind, b"") if behind else (b"",):
            whole, _ = split_characters(known + text)
            ids = list(self._target_encode(whole.decode("utf-8", errors="replace")))
            ends = token_ends(ids, whole, self._vocabulary.target_bytes)
            if ends is not None and len(known) in (0, *ends):
                return [token for token, end in zip(ids, ends, strict=True) if end > len(known)]
            # The tokenizer would merge the committed text with the new one. It was not asked to, so the
            # target is likely to go on from its own tokens: encode the new text alone.
        return []
