"""The protocol of a drafter: something that guesses the next tokens cheaply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from foredraft.laws import LawProcessor, NoiseStream


class DraftContext(Protocol):
    """What a drafter may know of a sequence."""

    @property
    def id(self) -> int:
        """Unique for as long as the sequence lives."""
        ...

    @property
    def tokens(self) -> Sequence[int]:
        """Committed tokens, prompt included; only ever appended to."""
        ...

    @property
    def processor(self) -> LawProcessor:
        """The request's processed law, to be applied to a draft's logits as well."""
        ...

    def noise_key(self, stream: NoiseStream, position: int) -> int:
        """Key of the noise for a token at an absolute position, in the current round."""
        ...


@dataclass(frozen=True)
class Proposal:
    """Tokens drafted for one sequence."""

    tokens: tuple[int, ...] = ()
    """Drafted tokens, parents before children."""
    laws: torch.Tensor | None = None
    """float32 `[tokens, vocab]`: exactly the law each token was drawn from when it was sampled. None where
    tokens were not sampled for a rejection rule; such a proposal is verified by match."""
    parents: tuple[int, ...] | None = None
    """Index of each token's parent, -1 for the root; None means a chain. Trees carry no laws."""


EMPTY_PROPOSAL = Proposal()


class Drafter(Protocol):
    """Guesses tokens for several sequences at a time.

    A drafter may stop short of its budget, but only for reasons known before a token was drawn: throwing
    away a drawn token because of what it is would change the law it was drawn from.
    """

    name: str

    def propose(self, contexts: Sequence[DraftContext], budgets: Sequence[int]) -> list[Proposal]:
        """One proposal a sequence, of at most its budget of tokens (0 asks for an empty one)."""
        ...

    def forget(self, context: DraftContext) -> None:
        """The sequence has ended; drop what is kept for it. Unknown sequences are ignored."""
        ...


@runtime_checkable
class LogitsObserver(Protocol):
    """What a drafter has besides, if it learns from the target's logits."""

    def observe_logits(self, tokens: Sequence[int], logits: torch.Tensor) -> None:
        """Called once a round for each sequence, after its verification and before its tokens are committed.

        Args:
            tokens: the last committed token, then every drafted one, whether it will be accepted or not.
            logits: float32 `[tokens, vocab]`, the target's raw logits after each of them. Not to be changed.
        """
        ...
