"""How many tokens to draft: the protocol, and the fixed choice."""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import Protocol

from foredraft.drafters import Proposal
from foredraft.engine.sequence import Sequence
from foredraft.engine.verification import Verdict


class DraftLengthController(Protocol):
    """Chooses the budget of every sequence before each round, and learns from the outcome.

    A choice may depend on anything seen in earlier rounds, never on the tokens about to be drawn.
    """

    def budgets(self, sequences: List[Sequence]) -> list[int]:
        """Most tokens to draft for each sequence; 0 decodes plainly."""
        ...

    def observe(
        self,
        sequences: List[Sequence],
        proposals: List[Proposal],
        verdicts: List[Verdict | None],
        *,
        draft_seconds: float,
        target_seconds: float,
    ) -> None:
        """What the round drafted, what was accepted (None: the sequence failed), and what it cost."""
        ...


class FixedDraftLength:
    """The same number of tokens for every sequence and round (gamma in the literature)."""

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens

    def budgets(self, sequences: List[Sequence]) -> list[int]:
        """See `DraftLengthController.budgets`."""
        return [self._num_draft_tokens] * len(sequences)

    def observe(
        self,
        sequences: List[Sequence],
        proposals: List[Proposal],
        verdicts: List[Verdict | None],
        *,
        draft_seconds: float,
        target_seconds: float,
    ) -> None:
        """Nothing to learn."""
