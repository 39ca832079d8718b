"""`Engine`: the loop of draft, verify and commit, for a changing batch of sequences.

Plain decoding is this loop with nothing drafted. A round is ONE target forward over the committed and the
drafted tokens of up to `verify_batch_size` sequences.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence as List

import torch

from foredraft.drafters import EMPTY_PROPOSAL, Drafter, Proposal
from foredraft.drafters.base import LogitsObserver
from foredraft.engine.controller import DraftLengthController
from foredraft.engine.sequence import Request, Sequence, TokenLogprobs
from foredraft.engine.verification import Verdict, root_paths, verify
from foredraft.errors import ExecutionError, ParameterError, PromptError
from foredraft.execution import ModelRunner, PrefixRows, RowInput
from foredraft.laws import RejectionRule
from foredraft.params import MAX_DRAFT_TOKENS

logger = logging.getLogger(__name__)

DEFAULT_MAX_BATCH_SIZE = 32
DEFAULT_VERIFY_BATCH_SIZE = 8


class Engine:
    """Runs sequences to their end.

    Args:
        target: the model whose distribution the output has.
        drafter: guesses tokens; None decodes plainly.
        controller: decides how many tokens to draft.
        rule: rejection rule for proposals with draft laws; None verifies by match (seed-exact).
        max_batch_size: sequences that run at the same time; others wait.
        verify_batch_size: sequences in one target forward; a larger batch is verified in slices, which
            bounds the memory of logits and activations.
    """

    def __init__(
        self,
        target: ModelRunner,
        *,
        controller: DraftLengthController,
        drafter: Drafter | None = None,
        rule: RejectionRule | None = None,
        max_batch_size: int = DEFAULT_MAX_BATCH_SIZE,
        verify_batch_size: int = DEFAULT_VERIFY_BATCH_SIZE,
    ) -> None:
        for name, value in (("max_batch_size", max_batch_size), ("verify_batch_size", verify_batch_size)):
            if value < 1:
                raise ParameterError(f"{name} must be at least 1 (got {value})")
        self._target = target
        self._rows = PrefixRows(target)
        self._drafter = drafter
        self._controller = controller
        self._rule = rule
        self._max_batch_size = max_batch_size
        self._verify_batch_size = verify_batch_size
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    @property
    def has_unfinished(self) -> bool:
        return bool(self._waiting or self._running)

    def check_prompt(self, prompt: List[int]) -> None:
        """Raise PromptError if a prompt is empty, has ids outside the vocabulary, or fills the context."""
        context, vocab_size = self._target.context_length, self._target.vocab_size
        if not prompt:
            raise PromptError("the prompt has no tokens; give at least one")
        if len(prompt) >= context:
            raise PromptError(
                f"the prompt has {len(prompt)} tokens, but the target's context holds {context} "
                "with the new ones; shorten the prompt"
            )
        unknown = next((token for token in prompt if not 0 <= token < vocab_size), None)
        if unknown is not None:
            raise PromptError(f"the prompt has token id {unknown}, outside the vocabulary of {vocab_size}")

    def add(self, request: Request) -> Sequence:
        """Queue a request; raises as `check_prompt`."""
        self.check_prompt(request.prompt)
        sequence = Sequence(request, context_length=self._target.context_length)
        if not sequence.is_finished:
            self._waiting.append(sequence)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence where it stands."""
        if not sequence.is_finished:
            sequence.finish_reason = "cancelled"
            self._retire()

    @torch.inference_mode()
    def step(self) -> None:
        """One round: every running sequence gains at least one token, or ends."""
        self._admit()
        running = self._running
        for start in range(0, len(running), self._verify_batch_size):
            batch = running[start : start + self._verify_batch_size]
            try:
                self._round(batch)
            except BaseException as error:
                # What was generated so far stays with each sequence; other slices go on.
                self._abandon(batch, error)
                if not isinstance(error, ExecutionError):
                    raise
        self._retire()

    def _admit(self) -> None:
        while batch := self._next_waiting():
            self._running += batch
            try:
                self._prefill(batch)
            except BaseException as error:
                self._abandon(batch, error)
                if not isinstance(error, ExecutionError):
                    raise

    def _next_waiting(self) -> list[Sequence]:
        """Waiting sequences for which there is room, one prefill of them."""
        room = min(self._max_batch_size - len(self._running), self._verify_batch_size)
        batch: list[Sequence] = []
        while self._waiting and len(batch) < room:
            sequence = self._waiting.popleft()
            if not sequence.is_finished:
                sequence.started_at = time.perf_counter()
                batch.append(sequence)
        return batch

    def _prefill(self, batch: List[Sequence]) -> None:
        started = time.perf_counter()
        # Drafted tokens that will not fit are still fed before they are rejected.
        capacity = MAX_DRAFT_TOKENS + max(sequence.prompt_length + sequence.remaining for sequence in batch)
        self._rows.reserve(len(batch), capacity)
        # Of the samples of one prompt the first is computed, the others copy it.
        first = {tuple(sequence.tokens): sequence for sequence in reversed(batch)}
        computed = list(first.values())
        copied = [sequence for sequence in batch if sequence not in computed]
        for group in (computed, copied):
            for sequence in group:
                sequence.row = self._rows.acquire(sequence.tokens, capacity)
            self._rows.prefill({_row(sequence): sequence.tokens for sequence in group})
        seconds = time.perf_counter() - started
        for sequence in batch:
            sequence.stats.prefill_seconds += seconds / len(batch)

    def _round(self, batch: List[Sequence]) -> None:
        started = time.perf_counter()
        proposals = self._propose(batch)
        drafted = time.perf_counter()
        logits = self._forward(batch, proposals)
        verdicts = self._verify(batch, proposals, logits)
        if isinstance(self._drafter, LogitsObserver):
            for sequence, proposal, rows in zip(batch, proposals, logits, strict=True):
                self._drafter.observe_logits([sequence.tokens[-1], *proposal.tokens], rows)
        for sequence, proposal, verdict, rows in zip(batch, proposals, verdicts, logits, strict=True):
            if verdict is not None:
                self._commit(sequence, proposal, verdict, rows)
        self._controller.observe(
            batch, proposals, verdicts, draft_seconds=drafted - started,
            target_seconds=time.perf_counter() - drafted,
        )  # fmt: skip
        for sequence in batch:
            sequence.stats.draft_seconds += (drafted - started) / len(batch)
            sequence.stats.target_seconds += (time.perf_counter() - drafted) / len(batch)

    def _propose(self, batch: List[Sequence]) -> list[Proposal]:
        if self._drafter is None:
            return [EMPTY_PROPOSAL] * len(batch)
        budgets = [
            min(budget, sequence.remaining - 1)
            for budget, sequence in zip(self._controller.budgets(batch), batch, strict=True)
        ]
        try:
            return self._drafter.propose(batch, budgets)
        except ExecutionError as error:
            logger.warning("drafting stopped, decoding goes on without it: %s", error)
            self._drafter = None
            return [EMPTY_PROPOSAL] * len(batch)

    def _forward(self, batch: List[Sequence], proposals: List[Proposal]) -> list[torch.Tensor]:
        """The round's one target forward: logits `[1 + drafted, vocab]` of each sequence."""
        inputs: list[RowInput] = []
        for sequence, proposal in zip(batch, proposals, strict=True):
            row = _row(sequence)
            last = sequence.tokens[self._rows.cached_length(row) :]
            parents = None
            if proposal.parents is not None:
                parents = [-1, *(parent + 1 for parent in proposal.parents)]
            inputs.append(RowInput(row, [*last, *proposal.tokens], 1 + len(proposal.tokens), parents))
        logits = self._rows.step(inputs).logits
        return list(logits.split([row_input.num_logits for row_input in inputs]))

    def _verify(
        self, batch: List[Sequence], proposals: List[Proposal], logits: List[torch.Tensor]
    ) -> list[Verdict | None]:
        verdicts: list[Verdict | None] = []
        for sequence, proposal, rows in zip(batch, proposals, logits, strict=True):
            try:
                verdicts.append(verify(sequence, proposal, rows, self._rule))
            except ExecutionError as error:
                _fail(sequence, error)
                self._rows.truncate(_row(sequence), 0)
                verdicts.append(None)
        return verdicts

    def _commit(self, sequence: Sequence, proposal: Proposal, verdict: Verdict, logits: torch.Tensor) -> None:
        """Append what stands, forget the rest of the drafted tokens in the cache, count."""
        before = len(sequence.tokens)
        tokens = [*(proposal.tokens[node] for node in verdict.accepted), verdict.next_token]
        logits_rows = [0, *(node + 1 for node in verdict.accepted)]
        for token, logits_row in zip(tokens, logits_rows, strict=True):
            if sequence.params.logprobs is not None:
                sequence.logprobs.append(_logprobs(logits[logits_row], token, sequence.params.logprobs))
            sequence.append(token)
            if sequence.is_finished:
                break
        committed = len(sequence.tokens) - before
        accepted = min(committed, len(verdict.accepted))
        row = _row(sequence)
        if proposal.parents is None:
            self._rows.truncate(row, before + accepted)
        else:
            kept = [0, *(node + 1 for node in verdict.accepted[:accepted])]
            self._rows.keep(row, before - 1, kept)
        depths = [len(path) - 1 for path in root_paths(proposal)]
        sequence.stats.count_round(depths, accepted, committed)
        sequence.round_index += 1
        logger.debug(
            "sequence %d: drafted %s, accepted %s, then %d",
            sequence.id, proposal.tokens, verdict.accepted, verdict.next_token,
        )  # fmt: skip

    def _abandon(self, batch: List[Sequence], error: BaseException) -> None:
        """End the batch after an error (or Ctrl-C) that may have left its rows between two states."""
        for sequence in batch:
            if sequence.row is not None:
                self._rows.truncate(sequence.row, 0)
            _fail(sequence, error)
        self._retire()

    def _retire(self) -> None:
        finished = [sequence for sequence in self._running if sequence.is_finished]
        for sequence in finished:
            sequence.stats.total_seconds = time.perf_counter() - sequence.started_at
            if sequence.row is not None:
                self._rows.release(sequence.row)
                sequence.row = None
            if self._drafter is not None:
                self._drafter.forget(sequence)
        self._running = [sequence for sequence in self._running if not sequence.is_finished]


def _row(sequence: Sequence) -> int:
    assert sequence.row is not None, "running sequences have a row"
    return sequence.row


def _fail(sequence: Sequence, error: BaseException) -> None:
    if not sequence.is_finished:
        sequence.finish_reason = "error"
        sequence.error = error


def _logprobs(logits: torch.Tensor, token: int, count: int) -> TokenLogprobs:
    logprobs = torch.log_softmax(logits, dim=-1)
    values, token_ids = logprobs.topk(min(count, len(logprobs)))
    top = dict(zip(token_ids.tolist(), values.tolist(), strict=True))
    return TokenLogprobs(float(logprobs[token]), top)
