"""Verification by match: the target's token is drawn first, and the draft only has to guess it.

The committed tokens are those that plain decoding would have drawn with the same noise, whatever was
drafted, so this family is lossless for any drafter, tree, draft length or early stop. It covers greedy
decoding, drafts that are not sampled (n-gram lookup: accepting with probability p(x) is the same law) and
seed-exact sampling (Daliri, Musco & Suresh 2024, arXiv 2408.07978).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Match:
    """Where the drafted tokens agree with the target's."""

    accepted: tuple[int, ...]
    """Indices of the accepted nodes, from the root down."""
    next_token: int
    """The target's token after the last accepted node."""


def match(
    drafted: Sequence[int], target_token: Callable[[int], int], parents: Sequence[int] | None = None
) -> Match:
    """Follow the target's tokens through the drafted ones.

    Args:
        drafted: drafted tokens, parents before children.
        target_token: target's token after a node; -1 asks for the one after the committed prefix. Called
            once for each accepted node and once more, never for a node that was not reached.
        parents: index of each node's parent, -1 for the root; None for a chain.
    """
    children: dict[tuple[int, int], int] = {}
    for node, token in enumerate(drafted):
        parent = node - 1 if parents is None else parents[node]
        children.setdefault((parent, token), node)
    accepted: list[int] = []
    node = -1
    while True:
        token = target_token(node)
        child = children.get((node, token))
        if child is None:
            return Match(tuple(accepted), token)
        accepted.append(child)
        node = child
