"""Text of a growing sequence of token ids, given out as soon as no later token can change it."""

from __future__ import annotations

import re

from foredraft.text.tokenizer import TextTokenizer

_REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")

# An unfinished UTF-8 sequence has at most 3 bytes, so it lies within the last 3 tokens that have any; one
# more keeps the window from starting inside it, and each may be followed by one empty token.
_KEPT_IDS = 8
_MOST_IDS = 16

_CONTEXT_IDS = 2  # an empty token alone would not show the decoder that a text has begun


class IncrementalDetokenizer:
    """Streams the text of token ids so that all pieces together equal one `decode` of all ids, exactly.

    Only a short window of ids is decoded at each push: the last id whose text is out already (so that
    decoders which treat the first token of a text differently, by dropping its leading space for example,
    see that the new one is not the first) and the ids whose text is not certain yet. What is uncertain:

    * A U+FFFD at the end may be the start of a character whose other bytes are still to come. Byte-level
      decoders show an unfinished sequence as exactly one U+FFFD, so that only this one is held back.
      (ByT5 leaves an unfinished sequence out: an id that adds no text stays in the window, too.)
    * SentencePiece's byte tokens (`<0x0A>`): their decoders turn a whole run of them into text, or, where it
      is not valid UTF-8 as a whole, into U+FFFD throughout. So a run is held back until it ends.
    """

    def __init__(self, tokenizer: TextTokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._window: list[int] = []
        self._given = 0  # characters of the window's text that are out already

    def push(self, token_id: int) -> str:
        """Append one id; returns the text that became certain, often that of this id, "" if none did."""
        if not self._tokenizer.is_visible(token_id, self._skip_special_tokens):
            return ""
        if self._is_idle_repeat(token_id):
            return ""
        ends_run = bool(self._window) and self._is_byte(self._window[-1])
        self._window.append(token_id)
        if self._is_byte(token_id):
            return ""
        text = self._decode()
        certain = text if ends_run else text.removesuffix(_REPLACEMENT)
        piece = certain[self._given :]
        self._given = len(certain)
        self._shorten_window(held=len(text) - len(certain), grown=bool(piece))
        return piece

    def flush(self) -> str:
        """The rest at the end of the sequence, as the tokenizer shows it (U+FFFD for half a character).

        Afterwards the detokenizer is as new.
        """
        piece = self._decode()[self._given :]
        self._window, self._given = [], 0
        return piece

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, self._skip_special_tokens)

    def _is_byte(self, token_id: int) -> bool:
        """Whether the id is a byte token, and is not just spelled like one."""
        entry = self._tokenizer.token(token_id) or ""
        return bool(_BYTE_TOKEN.fullmatch(entry)) and self._tokenizer.decode([token_id], False) != entry

    def _is_idle_repeat(self, token_id: int) -> bool:
        """An empty token after another one, where these add no text: it would fill the window for nothing."""
        if self._tokenizer.token(token_id) or not self._window or self._tokenizer.token(self._window[-1]):
            return False
        longer = self._tokenizer.decode([*self._window, token_id], self._skip_special_tokens)
        return longer == self._decode()

    def _shorten_window(self, held: int, grown: bool) -> None:
        """Drop ids that no longer matter; `held` characters at the end of the text are not out yet."""
        if grown and not held:
            self._window = self._window[-_CONTEXT_IDS:]
        elif len(self._window) > _MOST_IDS:
            self._window = self._window[-_KEPT_IDS:]
        else:
            return
        self._given = len(self._decode()) - held
