"""What the tokens so far say about the next one: counts, repeated n-grams, bad words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch


def output_counts(output: Sequence[int], like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Distinct token ids int64 `[m]` of `output` and their counts `[m]`, on the device of `like`."""
    tokens = torch.tensor(output, dtype=torch.int64, device=like.device)
    tokens = tokens[tokens < like.shape[-1]]
    token_ids, counts = tokens.unique(return_counts=True)
    return token_ids, counts.to(like.dtype)


def banned_by_bad_words(bad_words: Sequence[Sequence[int]], tokens: Sequence[int]) -> set[int]:
    """Token ids that would complete one of `bad_words` after `tokens`."""
    banned: set[int] = set()
    for word in bad_words:
        head, last = list(word[:-1]), word[-1]
        if not head or list(tokens[-len(head) :]) == head:
            banned.add(last)
    return banned


class RepeatedNgrams:
    """Tokens that would repeat an n-gram; the committed prefix is indexed once, as it grows."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._followers: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)
        self._indexed = 0

    def banned(self, prefix: Sequence[int], continuation: Sequence[int]) -> set[int]:
        """Token ids that after `prefix + continuation` would complete an n-gram already in it.

        `prefix` must extend the prefix of the call before; `continuation` is hypothetical.
        """
        self._index(prefix)
        head = self._size - 1
        recent = [*prefix[max(0, len(prefix) - head) :], *continuation]
        if len(prefix) + len(continuation) < self._size:
            return set()
        key = tuple(recent[len(recent) - head :])
        banned = set(self._followers.get(key, ()))
        # n-grams that end inside the continuation are not in the index.
        for end in range(len(recent) - len(continuation), len(recent)):
            if end >= head and tuple(recent[end - head : end]) == key:
                banned.add(recent[end])
        return banned

    def _index(self, prefix: Sequence[int]) -> None:
        head = self._size - 1
        for end in range(max(self._indexed, head), len(prefix)):
            self._followers[tuple(prefix[end - head : end])].add(prefix[end])
        self._indexed = max(self._indexed, len(prefix))
