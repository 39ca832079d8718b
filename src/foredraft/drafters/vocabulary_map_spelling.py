"""From a tokenizer's spelling of its tokens ("Ġthe", "▁the", "<0x0A>") to the bytes they stand for."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MIN_BYTE_LEVEL_SHARE = 0.99


def token_bytes(spellings: Sequence[str | None], *, special_ids: Collection[int] = ()) -> list[bytes | None]:
    """Bytes of each token of one vocabulary, for `VocabularyMap`.

    Two families are told apart by their alphabet: byte-level BPE writes every byte as one printable
    character (Radford et al. 2019), SentencePiece writes a space as "▁" and single bytes as "<0xNN>".

    Args:
        spellings: the vocabulary in id order, None for ids without a token.
        special_ids: tokens that stand for no text.

    Returns:
        None for special and missing tokens, and for a byte token whose byte an ordinary token spells too:
        the tokenizer never writes that text with the byte token.
    """
    special = frozenset(special_ids)
    texts = [None if token_id in special else spelling for token_id, spelling in enumerate(spellings)]
    if _is_byte_level(texts):
        return [_byte_level_bytes(text) for text in texts]
    result = [_sentencepiece_bytes(text) for text in texts]
    ordinary = {
        token
        for token, text in zip(result, texts, strict=True)
        if token is not None and text is not None and not _BYTE_TOKEN.fullmatch(text)
    }
    for token_id, text in enumerate(texts):
        if text is not None and _BYTE_TOKEN.fullmatch(text) and result[token_id] in ordinary:
            result[token_id] = None
    return result


def byte_level_alphabet() -> dict[str, int]:
    """The byte that each of GPT-2's 256 printable characters stands for."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet


_ALPHABET = byte_level_alphabet()


def _is_byte_level(texts: Sequence[str | None]) -> bool:
    present = [text for text in texts if text]
    spelled = sum(all(character in _ALPHABET for character in text) for text in present)
    # SentencePiece vocabularies of plain ASCII would pass as well, but for their "▁".
    return bool(present) and spelled >= _MIN_BYTE_LEVEL_SHARE * len(present)


def _byte_level_bytes(text: str | None) -> bytes | None:
    if not text:
        return None
    if any(character not in _ALPHABET for character in text):
        # Added tokens are written as plain text.
        return text.encode("utf-8")
    return bytes(_ALPHABET[character] for character in text)


def _sentencepiece_bytes(text: str | None) -> bytes | None:
    if not text:
        return None
    byte = _BYTE_TOKEN.fullmatch(text)
    if byte is not None:
        return bytes([int(byte.group(1), 16)])
    return text.replace("▁", " ").encode("utf-8", errors="surrogatepass")
