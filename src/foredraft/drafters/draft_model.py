"""Drafting with a smaller causal language model over the same token ids."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from foredraft.drafters.base import EMPTY_PROPOSAL, DraftContext, Proposal
from foredraft.errors import ExecutionError
from foredraft.execution import ModelRunner, PrefixRows, RowInput
from foredraft.laws import NoiseStream, sample

logger = logging.getLogger(__name__)

_FED_WHILE_DRAWING = 2
"""After full acceptance the draft has yet to see its own last token and the target's; more is prefilled."""


class ModelDrafter:
    """Draws tokens one after another from the draft's processed law, all sequences in one forward each.

    Args:
        runner: the draft. Its vocabulary may be padded differently from the target's: ids that the target
            lacks are never drawn, ids that the draft lacks have probability zero.
        vocab_size: width of the target's logits.
        coupled: draw with the target's own noise (seed-exact verification) instead of independent noise.
            Then no laws are kept, since verification is by match.

    A sequence that does not fit in the draft's context, with the tokens to draft, gets an empty proposal:
    the draft steps aside and the target decodes alone. So does a sequence with an id that the draft lacks,
    or for which it has given unusable logits.
    """

    name = "model"

    def __init__(self, runner: ModelRunner, *, vocab_size: int, coupled: bool = False) -> None:
        self._rows = PrefixRows(runner)
        self._runner = runner
        self._vocab_size = vocab_size
        self._stream = NoiseStream.TARGET if coupled else NoiseStream.DRAFT
        self._row_of: dict[int, int] = {}
        self._set_aside: set[int] = set()

    def propose(self, contexts: Sequence[DraftContext], budgets: Sequence[int]) -> list[Proposal]:
        """See `Drafter.propose`."""
        lengths = [
            budget if self._can_draft(context, budget) else 0
            for context, budget in zip(contexts, budgets, strict=True)
        ]
        active = [index for index, length in enumerate(lengths) if length]
        self._reserve([contexts[index] for index in active], max(lengths, default=0))
        for index in active:
            self._align(contexts[index], lengths[index])
        self._prefill([contexts[index] for index in active])
        drafts = {index: _Draft(contexts[index], lengths[index]) for index in active}
        while active:
            self._draw([drafts[index] for index in active])
            active = [index for index in active if not drafts[index].complete]
        return [
            drafts[index].proposal() if index in drafts else EMPTY_PROPOSAL for index in range(len(contexts))
        ]

    def forget(self, context: DraftContext) -> None:
        """See `Drafter.forget`."""
        self._set_aside.discard(context.id)
        row = self._row_of.pop(context.id, None)
        if row is not None:
            self._rows.release(row)

    def _can_draft(self, context: DraftContext, budget: int) -> bool:
        if context.id in self._set_aside or len(context.tokens) + budget > self._runner.context_length:
            return False
        # A smaller padding: the target may know ids that the draft has no embedding for.
        knows_all = self._runner.vocab_size >= self._vocab_size
        return knows_all or max(context.tokens) < self._runner.vocab_size

    def _reserve(self, contexts: Sequence[DraftContext], length: int) -> None:
        new = [context for context in contexts if context.id not in self._row_of]
        if new:
            self._rows.reserve(len(new), max(len(context.tokens) for context in new) + length)

    def _align(self, context: DraftContext, length: int) -> None:
        """Drop rejected tokens from the draft's cache, or take a row for a new sequence."""
        capacity = len(context.tokens) + length
        row = self._row_of.get(context.id)
        if row is None:
            self._row_of[context.id] = self._rows.acquire(context.tokens, capacity)
            return
        self._runner.reserve(0, capacity)
        self._rows.align(row, context.tokens)
        self._rows.truncate(row, len(context.tokens) - 1)

    def _prefill(self, contexts: Sequence[DraftContext]) -> None:
        rows = {self._row_of[context.id]: context.tokens for context in contexts}
        behind = {row: len(tokens) - self._rows.cached_length(row) for row, tokens in rows.items()}
        self._rows.prefill({row: rows[row] for row in rows if behind[row] > _FED_WHILE_DRAWING})

    def _draw(self, drafts: Sequence[_Draft]) -> None:
        """One forward of the draft and one drawn token for each sequence."""
        inputs: list[RowInput] = []
        for draft in drafts:
            row = self._row_of[draft.context.id]
            inputs.append(RowInput(row, draft.uncached(self._rows.cached_length(row)), 1))
        logits = self._fit_vocabulary(self._rows.step(inputs).logits)
        for draft, row_logits in zip(drafts, logits.split(1), strict=True):
            try:
                draft.draw(row_logits, self._stream)
            except ExecutionError as error:
                logger.warning("sequence %d goes on without the draft: %s", draft.context.id, error)
                self._give_up(draft)

    def _give_up(self, draft: _Draft) -> None:
        """One request's bias or bans, or one overflow, must not end drafting for every other sequence."""
        draft.stop()
        row = self._row_of.pop(draft.context.id)
        self._rows.truncate(row, 0)
        self._rows.release(row)
        self._set_aside.add(draft.context.id)

    def _fit_vocabulary(self, logits: torch.Tensor) -> torch.Tensor:
        missing = self._vocab_size - logits.shape[-1]
        if missing > 0:
            return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        return logits[:, : self._vocab_size]


class _Draft:
    """The tokens drawn so far for one sequence."""

    def __init__(self, context: DraftContext, length: int) -> None:
        self.context = context
        self._length = length
        self._tokens: list[int] = []
        self._laws: list[torch.Tensor] = []

    @property
    def complete(self) -> bool:
        return len(self._tokens) >= self._length

    def stop(self) -> None:
        """Draw nothing more; what was drawn stands."""
        self._length = len(self._tokens)

    def uncached(self, cached_length: int) -> list[int]:
        """Tokens, committed or drawn, that the draft's cache lacks."""
        committed = len(self.context.tokens)
        if cached_length < committed:
            return [*self.context.tokens[cached_length:], *self._tokens]
        return self._tokens[cached_length - committed :]

    def draw(self, logits: torch.Tensor, stream: NoiseStream) -> None:
        """Draw the next token from the processed law of `logits` `[1, vocab]`."""
        context, processor = self.context, self.context.processor
        if processor.params.is_greedy:
            self._tokens.append(int(processor.greedy_tokens(logits, context.tokens, [self._tokens])))
            return
        law = processor.laws(logits, context.tokens, [self._tokens])
        key = context.noise_key(stream, len(context.tokens) + len(self._tokens))
        self._tokens.append(int(sample(law, torch.tensor([key], device=law.device))))
        if stream is NoiseStream.DRAFT:
            self._laws.append(law)

    def proposal(self) -> Proposal:
        return Proposal(tuple(self._tokens), torch.cat(self._laws) if self._laws else None)
