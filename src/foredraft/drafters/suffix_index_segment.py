"""`SuffixSegment`: an immutable block of documents, searchable by what a context ends with.

The block's text is kept backwards, newest document first, each document headed by a separator, as big-endian
32-bit ids in one `bytes` object. Its suffix array is then the order of all positions by the context that
leads up to them, comparing two contexts is comparing two slices of bytes in C, and the token which follows
an occurrence is the one stored before it. A token costs 16 bytes: 4 of text, 4 of suffix array, and 8 for the
last three tokens of its context packed into one number, on which the search begins.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from struct import pack, unpack_from

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import ParameterError

Ids = NDArray[np.int64]
Positions = NDArray[np.int32]

MIN_MATCH = 3
"""Tokens packed into one number; shorter matches are not looked for."""
MAX_MATCH = 32
"""Tokens of context that are compared; occurrences that agree in so many are not told apart."""
SEPARATOR = 0xFFFFFFFF
"""Heads each document. It is no token id, so no match runs across it."""

_ID_BITS = 21
_ID_LIMIT = (1 << _ID_BITS) - 2
"""Packed, this number stands for the separator."""
_TOKEN_BYTES = 4
_KEY_BYTES = MAX_MATCH * _TOKEN_BYTES


class SuffixSegment:
    """Documents and the sorted order of their contexts.

    Args:
        text: documents as `document` gives them, the newest first.
        order: int32 `[tokens]`, positions of `text` sorted by what is stored from them on. None sorts now.
    """

    def __init__(self, text: bytes, order: Positions | None = None) -> None:
        self.text = text
        packed = _packed(np.frombuffer(text, dtype=">u4"))
        self.order = sorted_contexts(packed) if order is None else order
        # numpy hands out single elements several times slower than a view of the same memory does.
        self._sorted = memoryview(self.order)  # pyright: ignore[reportArgumentType]
        self._heads = packed[self.order]

    def __len__(self) -> int:
        """Tokens held, separators included."""
        return len(self.order)

    @property
    def num_bytes(self) -> int:
        """Memory of the text and what is sorted by it."""
        return len(self.text) + self.order.nbytes + self._heads.nbytes

    def longest_match(self, context: SuffixKey) -> tuple[int, int]:
        """How many tokens of a context occur here (0 if fewer than `MIN_MATCH`), and where it would stand
        in the sorted order."""
        low = int(self._heads.searchsorted(context.head))
        if low == len(self._heads) or self._heads[low] != context.head:
            return 0, low
        high = int(self._heads.searchsorted(context.head, side="right"))
        place = bisect_left(self._sorted, context.key, low, high, key=self._key_at)
        match = 0
        for neighbour in (place - 1, place):
            if low <= neighbour < high:
                match = max(match, _shared_tokens(self._key_at(self._sorted[neighbour]), context.key))
        return match, place

    def continuations(
        self, context: SuffixKey, match: int, place: int, length: int, limit: int
    ) -> list[tuple[int, ...]]:
        """For occurrences of the last `match` tokens of a context, the `length` tokens that follow each; from
        a document's end on, `SEPARATOR` and arbitrary ones. Newest document first.

        Where there are more than `limit` occurrences, those next to `place` in the sorted order are taken.
        """
        prefix = context.key[: match * _TOKEN_BYTES]
        size = len(prefix)

        def key_at(position: int) -> bytes:
            return self.text[position * _TOKEN_BYTES : position * _TOKEN_BYTES + size]

        low, high = max(0, place - limit // 2), min(len(self.order), place + limit - limit // 2)
        low = bisect_left(self._sorted, prefix, low, place, key=key_at)
        # Keys are no longer than the prefix, so this is just behind the last one that equals it.
        high = bisect_left(self._sorted, prefix + b"\0", place, high, key=key_at)
        return [self._following(position, length) for position in sorted(self._sorted[low:high])]

    def _following(self, position: int, length: int) -> tuple[int, ...]:
        count = min(length, position)
        stored = unpack_from(f">{count}I", self.text, (position - count) * _TOKEN_BYTES)
        return stored[::-1]

    def _key_at(self, position: int) -> bytes:
        start = position * _TOKEN_BYTES
        return self.text[start : start + _KEY_BYTES]


class SuffixKey:
    """The end of a context, in the two forms in which segments are searched for it.

    Args:
        tokens: the context, of at least `MIN_MATCH` tokens.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        last = tokens[-MAX_MATCH:][::-1]
        self.key = pack(f">{len(last)}I", *last)
        self.head = 0
        for token in last[:MIN_MATCH]:
            self.head = (self.head << _ID_BITS) | (min(token, _ID_LIMIT) + 1)


def document(tokens: Sequence[int]) -> bytes:
    """A document as a segment stores it.

    Raises:
        ParameterError: if a token id is negative or does not fit in 21 bits.
    """
    if not 0 <= min(tokens) <= max(tokens) < _ID_LIMIT:
        raise ParameterError(f"token ids must be between 0 and {_ID_LIMIT - 1} to be indexed")
    return pack(f">{len(tokens) + 1}I", SEPARATOR, *tokens[::-1])


def sorted_contexts(packed: Ids) -> Positions:
    """int32 suffix array, exact to at least `MAX_MATCH` tokens.

    Prefix doubling (Manber & Myers 1993), ended as soon as the compared length suffices. A pass sorts only
    what the passes before left tied (Larsson & Sadakane 2007).

    Args:
        packed: `MIN_MATCH` tokens from each position on, as one number.
    """
    order = np.argsort(packed)
    rank = np.empty(len(packed), dtype=np.int64)
    places = np.arange(len(packed))
    values = packed[order]
    compared = MIN_MATCH
    while True:
        tied = _rank(rank, places, order[places], values)
        if compared >= MAX_MATCH or not len(tied):
            return order.astype(np.int32)
        places = tied
        positions = order[places]
        # Rank 0 is what lies behind the end, where there is nothing left to compare.
        second = np.where(
            positions + compared < len(rank), rank[np.minimum(positions + compared, len(rank) - 1)], 0
        )
        values = rank[positions] * (len(rank) + 1) + second
        resorted = np.argsort(values, kind="stable")
        order[places] = positions[resorted]
        values = values[resorted]
        compared *= 2


def _rank(rank: Ids, places: Ids, positions: Ids, values: Ids) -> Ids:
    """Set the rank of `positions` to the place, from 1, of the first that has the same value.

    Args:
        rank: rank of each position, changed here.
        places: ascending places in the sorted order.
        positions: what stands there.
        values: what they were sorted by, ascending.

    Returns:
        The places that share a value with another.
    """
    first = np.ones(len(values), dtype=np.bool_)
    first[1:] = values[1:] != values[:-1]
    starts = np.flatnonzero(first)
    group = np.cumsum(first) - 1
    rank[positions] = places[starts][group] + 1
    sizes = np.diff(np.append(starts, len(values)))
    return places[sizes[group] > 1]


def _packed(ids: NDArray[np.uint32]) -> Ids:
    """int64: each id and the two stored behind it in one number, of the same order as their bytes.

    Behind the end there is nothing, which sorts before everything: ids count from one here.
    """
    narrow = np.zeros(len(ids) + MIN_MATCH - 1, dtype=np.int64)
    narrow[: len(ids)] = np.minimum(ids, _ID_LIMIT) + 1
    packed = narrow[: len(ids)]
    for offset in range(1, MIN_MATCH):
        packed = (packed << _ID_BITS) | narrow[offset : offset + len(ids)]
    return packed


def _shared_tokens(left: bytes, right: bytes) -> int:
    """Leading 32-bit ids that two keys share."""
    low, high = 0, min(len(left), len(right)) // _TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if left[: middle * _TOKEN_BYTES] == right[: middle * _TOKEN_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
