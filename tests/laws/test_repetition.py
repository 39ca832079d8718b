"""What the tokens so far forbid, against definitions written out in full."""

from __future__ import annotations

from collections import Counter

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.laws.repetition import RepeatedNgrams, banned_by_bad_words, output_counts

tokens = st.lists(st.integers(0, 2), max_size=10)


def completes_an_old_ngram(text: list[int], size: int, token: int) -> bool:
    """Whether `token` after `text` ends an n-gram that `text` already has."""
    ngrams = [text[start : start + size] for start in range(len(text) - size + 1)]
    longer = [*text, token]
    return len(longer) >= size and longer[-size:] in ngrams


@given(st.integers(1, 5), st.lists(st.tuples(tokens, tokens), min_size=1, max_size=4))
@settings(deadline=None, max_examples=300)
def test_repeated_ngrams(size: int, rounds: list[tuple[list[int], list[int]]]) -> None:
    """A growing index would miss n-grams across its seams, or keep those of drafts that were rejected."""
    ngrams, prefix = RepeatedNgrams(size), list[int]()
    for committed, continuation in rounds:
        prefix += committed
        expected = {
            token for token in range(3) if completes_an_old_ngram([*prefix, *continuation], size, token)
        }
        assert ngrams.banned(prefix, continuation) == expected
        assert ngrams.banned(prefix, continuation) == expected


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=4), tokens)
def test_bad_words(words: list[list[int]], text: list[int]) -> None:
    """A word would pass, or a token be forbidden that completes none."""
    expected = {word[-1] for word in words if [*text, word[-1]][-len(word) :] == word}
    assert banned_by_bad_words(words, text) == expected


@given(st.lists(st.integers(0, 9), max_size=20))
def test_output_counts(output: list[int]) -> None:
    """Frequency penalties would count a token twice or not at all."""
    token_ids, counts = output_counts(output, torch.zeros(6))
    assert counts.dtype == torch.float32
    expected = Counter(token for token in output if token < 6)
    assert dict(zip(token_ids.tolist(), counts.tolist(), strict=True)) == expected
