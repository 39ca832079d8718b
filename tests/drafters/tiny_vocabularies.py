"""Two small tokenizers over the same letters that split texts differently."""

from __future__ import annotations

from collections.abc import Callable

from foredraft.drafters.vocabulary_map import VocabularyMap

Encode = Callable[[str], list[int]]


def longest_match(vocabulary: list[bytes | None], prefix: str = "") -> Encode:
    """An encoder that takes the longest known token at each place and leaves unknown bytes out.

    It puts `prefix` before the text, as SentencePiece does with a space.
    """
    ids = {text: token_id for token_id, text in enumerate(vocabulary) if text is not None}
    longest = max(map(len, ids))

    def encode(text: str) -> list[int]:
        rest, found = (prefix + text).encode(), []
        while rest:
            piece = next((rest[:size] for size in range(longest, 0, -1) if rest[:size] in ids), None)
            if piece is not None:
                found.append(ids[piece])
            rest = rest[len(piece or b"?") :]
        return found

    return encode


LETTERS: list[bytes | None] = [bytes([byte]) for byte in b"ab \xc3\xa9"]
TARGET: list[bytes | None] = [None, None, *LETTERS, b"ab", b" a", b"ba", b" ab", "é".encode(), b"bb"]
"""Ids 0 and 1 are special: beginning and end."""
DRAFT: list[bytes | None] = [*LETTERS, b"abb", b" b", b"ab", None, b"aa", b" a", None]
"""Ids 8 and 11 are special: end and beginning."""
END, DRAFT_END, DRAFT_START = 1, 8, 11

target_encode = longest_match(TARGET)
draft_encode = longest_match(DRAFT)


def vocabulary_map() -> VocabularyMap:
    """The map of the two, with their end tokens paired."""
    return VocabularyMap(TARGET, DRAFT, special={END: DRAFT_END})


def spelled(ids: list[int], vocabulary: list[bytes | None]) -> bytes:
    """The bytes of ids, special ones left out."""
    return b"".join(vocabulary[token] or b"" for token in ids)
