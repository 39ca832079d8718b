"""Copying what followed an earlier occurrence: the draft of every lookup method."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def copied_continuation(
    tokens: Sequence[int],
    source: int,
    length: int,
    *,
    end_token_ids: Collection[int] = (),
    vocab_size: int | None = None,
) -> list[int]:
    """At most `length` tokens, copied from position `source` of `tokens` on.

    A copy that reaches the end of the sequence goes on with its own tokens: a period repeats. It ends with
    one of `end_token_ids`, since nothing after it can be accepted, and before an id of `vocab_size` or more.
    """
    # Whole slices are copied in C; only the rare cut looks at single tokens.
    copied = list(tokens[source : source + length])
    period = len(copied)
    while len(copied) < length:
        copied += copied[-period:][: length - len(copied)]
    return cut(copied, end_token_ids=end_token_ids, vocab_size=vocab_size)


def cut(
    tokens: list[int], *, end_token_ids: Collection[int] = (), vocab_size: int | None = None
) -> list[int]:
    """`tokens` up to the first of `end_token_ids`, included, or the first id of `vocab_size` or more."""
    for index, token in enumerate(tokens):
        if vocab_size is not None and token >= vocab_size:
            return tokens[:index]
        if token in end_token_ids:
            return tokens[: index + 1]
    return tokens
