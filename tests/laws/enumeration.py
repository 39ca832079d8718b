"""The exact law of one round of drafting and rejection, by enumerating drafts and acceptances."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from table_models import Context, TableModel

from foredraft.laws import RejectionRule

Predicate = Callable[[Context, torch.Tensor], bool]
"""Of the tokens drafted so far and the draft's law after them."""


@dataclass
class Round:
    """One round: the draft draws up to `length` tokens from `drawn_from`, the rule verifies them.

    `claimed` is the law that the rule is told; a correct drafter claims what it draws from. `stop` is asked
    before a token is drawn. `drop` is asked after it and throws that token away, which no drafter may do.
    """

    rule: RejectionRule
    target: TableModel
    drawn_from: TableModel
    length: int
    claimed: TableModel | None = None
    stop: Predicate | None = None
    drop: Predicate | None = None
    dtype: torch.dtype = torch.float64

    def joint(self) -> torch.Tensor:
        """float64 `[vocab] * (length + 1)`: law of the emitted tokens, continued with the target's law."""
        total = self.length + 1
        joint = torch.zeros([self.target.vocab] * total, dtype=torch.float64)
        for probability, kept, next_law in self.outcomes():
            for token in range(self.target.vocab):
                emitted = (*kept, token)
                rest = self.target.joint(emitted, total - len(emitted))
                joint[emitted] += probability * next_law[token] * rest
        return joint

    def expected_length(self) -> float:
        """Expected number of accepted tokens."""
        return sum(probability * len(kept) for probability, kept, _ in self.outcomes())

    def outcomes(self) -> Iterator[tuple[float, Context, torch.Tensor]]:
        """Probability, kept tokens and law of the next one, of everything that can happen."""
        for probability, drafted in self._drafts((), 1.0):
            target_laws = self.target.laws(drafted, len(drafted) + 1).to(self.dtype)
            draft_laws = (self.claimed or self.drawn_from).laws(drafted, len(drafted)).to(self.dtype)
            tokens = torch.tensor(drafted, dtype=torch.int64)
            acceptance = self.rule.acceptance(target_laws, draft_laws, tokens)
            for weight, kept in accepted_lengths(self.rule, acceptance):
                law = self.rule.next_law(target_laws, draft_laws, tokens, kept).double()
                yield probability * weight, drafted[:kept], law / law.sum()

    def _drafts(self, prefix: Context, probability: float) -> Iterator[tuple[float, Context]]:
        law = self.drawn_from.law(prefix)
        if len(prefix) == self.length or (self.stop is not None and self.stop(prefix, law)):
            yield probability, prefix
            return
        for token, chance in enumerate(law.tolist()):
            if chance == 0:
                continue
            if self.drop is not None and self.drop((*prefix, token), law):
                yield probability * chance, prefix
            else:
                yield from self._drafts((*prefix, token), probability * chance)


def accepted_lengths(rule: RejectionRule, acceptance: torch.Tensor) -> Iterator[tuple[float, int]]:
    """Integrate `accepted_length` over the uniforms: it is constant where each stays on its side.

    For each pattern of successes its probability and the length, patterns of probability 0 left out.
    """
    thresholds = acceptance.tolist()
    for pattern in itertools.product((True, False), repeat=len(thresholds)):
        weight = 1.0
        uniforms: list[float] = []
        for threshold, success in zip(thresholds, pattern, strict=True):
            weight *= threshold if success else 1.0 - threshold
            uniforms.append(threshold / 2 if success else (1.0 + threshold) / 2)
        if weight > 0:
            yield weight, rule.accepted_length(acceptance, uniforms)
