"""`ModelRunner`: the one protocol through which a model is executed.

A runner owns a KV cache with `num_rows` independent rows. Each row holds the keys and values of a
prefix of one token sequence. A step appends tokens to some rows and returns logits; `truncate` rolls a
row back in O(1) by forgetting its tail. Runners know nothing of sampling, drafting or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch


@dataclass(frozen=True)
class RowInput:
    """What one row is fed in one step."""

    row: int
    """Row of the cache."""
    tokens: Sequence[int]
    """Token ids to append after the row's current length; at least one."""
    num_logits: int
    """Logits are returned for the last `num_logits` of `tokens` (0 while prefilling)."""
    parents: Sequence[int] | None = None
    """For a tree: index into `tokens` of each token's parent, -1 for the row's last cached token.
    Parents come before children. None means a chain, each token the parent of the next."""


@dataclass(frozen=True)
class StepOutput:
    """Result of one forward."""

    logits: torch.Tensor
    """float32 `[sum of num_logits, vocab]`, rows in the order of the inputs, unprocessed."""
    hidden: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])
    """Hidden states `[sum of num_logits, hidden]` by layer index (0 is the embedding), if asked for."""


@runtime_checkable
class ModelRunner(Protocol):
    """Executes one causal language model over a cache of independent rows."""

    vocab_size: int
    """Width of the logits."""
    context_length: int
    """Tokens that a row may hold."""
    device: torch.device
    supports_tree: bool
    """Whether `RowInput.parents` is honoured."""

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of keys and values for one token of one row."""
        ...

    def reserve(self, num_rows: int, num_tokens: int) -> None:
        """Grow the cache, contents kept, so that `num_rows` rows can hold `num_tokens` tokens each.

        Raises:
            ExecutionError: if the memory for it cannot be had.
        """
        ...

    def length(self, row: int) -> int:
        """Tokens whose keys and values the row holds."""
        ...

    def step(self, inputs: Sequence[RowInput]) -> StepOutput:
        """ONE forward over all `inputs`; the rows grow by the tokens fed (every tree node included).

        A row appears at most once. Space must have been reserved.

        Raises:
            ExecutionError: if the forward fails; the rows are then as before the call.
        """
        ...

    def truncate(self, row: int, length: int) -> None:
        """Forget the row's tokens from `length` on. O(1): no tensor is touched."""
        ...

    def keep(self, row: int, start: int, kept: Sequence[int]) -> None:
        """After a tree step whose nodes were written from `start` on, keep only the nodes `kept`
        (ascending indices into that step's tokens, one root path), moved together, and forget the rest."""
        ...

    def copy(self, source: int, destination: int, length: int) -> None:
        """Make `destination` hold the first `length` tokens of `source`."""
        ...
