"""A sequence as a draft with another tokenizer sees it: the same bytes, in the draft's own tokens.

Measured once on one core of a busy shared server CPU with a fast byte-level tokenizer: 50 ms for a prompt of
8,192 tokens, then 0.4 ms a round of four committed tokens.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from itertools import accumulate

from foredraft.drafters.vocabulary_map import VocabularyMap

Encode = Callable[[str], Sequence[int]]
"""A tokenizer's ids of a text, without the special tokens that it would add around it."""

_WINDOW = 32
"""Draft tokens at the end that may still change when more text comes."""
_LEAD = 8
"""Tokens re-encoded only as context for those after them: a tokenizer may split a text's first word in
another way than it would in the middle."""


class ReencodedContext:
    """Grows with the target's committed tokens; all but the end is encoded once.

    The target's ids are never derived from text, only the draft's are, so that a text which its tokenizer
    would split otherwise costs acceptance at most.

    Args:
        vocabulary: bytes of both tokenizers' tokens.
        encode: the draft tokenizer's encoder.
        start_ids: draft tokens that come before every text (its BOS).
    """

    def __init__(self, vocabulary: VocabularyMap, encode: Encode, start_ids: Sequence[int] = ()) -> None:
        self.ids: list[int] = list(start_ids)
        self.is_complete = True
        """False while the text ends within a character whose bytes the draft has no tokens for."""
        self._vocabulary = vocabulary
        self._encode = encode
        self._start_ids = list(start_ids)
        self._consumed = 0
        self._settled = len(self.ids)
        self._tail = b""
        # Whether the tail's first token has nothing before it that could change how it is encoded.
        self._is_fresh = True

    def extend(self, tokens: Sequence[int]) -> None:
        """Take over the target's committed tokens that are new since the last call."""
        pieces: list[bytes] = []
        for token in tokens[self._consumed :]:
            text = self._vocabulary.target_bytes(token)
            if text is None:
                self._append(pieces)
                self._append_special(token)
                pieces = []
            else:
                pieces.append(text)
        self._consumed = len(tokens)
        self._append(pieces)

    def _append(self, pieces: Sequence[bytes]) -> None:
        if pieces:
            self._tail += b"".join(pieces)
            self._encode_tail()

    def _append_special(self, token: int) -> None:
        """A token without text ends what is encoded as one piece; unknown ones leave no trace."""
        draft_id = self._vocabulary.special.get(token)
        starts = self.ids == self._start_ids and self.ids[-1:] == [draft_id]
        if draft_id is not None and not starts:
            self.ids.append(draft_id)
        self.is_complete = True
        self._settle(len(self.ids), b"")

    def _encode_tail(self) -> None:
        text, incomplete = split_characters(self._tail)
        encoded, is_exact = self._encoded(text)
        byte_ids = self._vocabulary.draft_byte_ids(incomplete)
        self.is_complete = byte_ids is not None
        self.ids[self._settled :] = [*encoded, *(byte_ids or ())]
        end = self._settled + len(encoded)
        if not is_exact:
            # The tokenizer changes texts (or this one is not UTF-8): what it gave cannot be matched to bytes.
            self._settle(end, incomplete)
        elif len(encoded) > 2 * _WINDOW:
            window = b"".join(
                self._vocabulary.draft_bytes(draft_id) or b"" for draft_id in encoded[-_WINDOW:]
            )
            if text.endswith(window) and not _continues_character(window[0]):
                self._settle(end - _WINDOW, window + incomplete)
                self._is_fresh = False

    def _settle(self, end: int, tail: bytes) -> None:
        self._settled, self._tail, self._is_fresh = end, tail, True

    def _encoded(self, text: bytes) -> tuple[list[int], bool]:
        """Draft tokens of the tail's whole characters, and whether they spell exactly them."""
        if not text:
            return [], True
        encoded = list(self._encode(text.decode("utf-8", errors="replace")))
        ends = token_ends(encoded, text, self._vocabulary.draft_bytes)
        if ends is None or self._is_fresh:
            return encoded, ends is not None
        known = self.ids[self._settled :]
        known_ends = accumulate(len(self._vocabulary.draft_bytes(draft_id) or b"") for draft_id in known)
        place = {end: index for index, end in enumerate(ends)}
        shared = [(index, place[end]) for index, end in enumerate(known_ends) if end in place]
        behind_lead = [pair for pair in shared if pair[0] >= _LEAD]
        for mine, theirs in behind_lead[:1] or shared[-1:]:
            return [*known[: mine + 1], *encoded[theirs + 1 :]], True
        return encoded, True


def token_ends(ids: Sequence[int], text: bytes, bytes_of: Callable[[int], bytes | None]) -> list[int] | None:
    """Where each token ends in `text`; None if the tokens do not spell it.

    A space that the tokenizer puts before every text (SentencePiece) is taken off.
    """
    pieces = [bytes_of(token) for token in ids]
    known = [piece for piece in pieces if piece is not None]
    spelled = b"".join(known)
    if len(known) < len(pieces) or spelled not in (text, b" " + text):
        return None
    added = len(spelled) - len(text)
    return [end - added for end in accumulate(len(piece) for piece in known)]


def split_characters(text: bytes) -> tuple[bytes, bytes]:
    """`text` without and only with the beginning of a UTF-8 character that it ends with."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(text)
    incomplete = decoder.getstate()[0]
    return text[: len(text) - len(incomplete)], incomplete


def _continues_character(byte: int) -> bool:
    return byte & 0xC0 == 0x80
