"""`AdaptiveDraftLength`: draft as many tokens as pay, none if none do.

The rate of a batch that drafts k tokens is the expected number of tokens over the expected time,

    R(k) = sum over rows of (1 + a_1 + a_1 a_2 + ... + a_1...a_k)  /  (draft(k) + step(1 + k)),

with a_j the running acceptance of each row and costs as measured (Leviathan et al. 2023, section 3.3, with
a measured step in place of a constant one). Every k from 0 up is evaluated, because a step's cost is not
convex in its tokens. Exploration is bounded: unless a gain is safe, what speculation has lost against
plain decoding over the last tokens, plus the worst that the choice can lose, must stay within `loss_bound`
of their plain time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as List
from dataclasses import dataclass

from foredraft.drafters import Proposal
from foredraft.engine.acceptance import AcceptanceEstimate
from foredraft.engine.costs import StepCosts
from foredraft.engine.sequence import Sequence
from foredraft.engine.verification import Verdict

_OPTIMISM = 0.6
"""First belief in a draft nobody has tried: high enough to try it, and one failure away from doubt."""
_FIRST_TOKENS = 4
"""Longest draft of the first round; each further round may draft one more."""
_CAUTION = 1.5
"""Standard errors below the mean at which a gain counts as safe; less safe ones need an allowance."""
_PROBE_TOKENS = 2
_FIRST_WAIT = 8
_LONGEST_WAIT = 128
_HOPELESS = 0.02
"""A row drafts no further once it gets there less often than this."""


@dataclass(frozen=True)
class Beliefs:
    """Why a length was chosen, in seconds and probabilities."""

    num_draft_tokens: int
    acceptance: tuple[float, ...]
    plain_step_seconds: float
    step_seconds: float
    draft_token_seconds: float
    expected_speedup: float
    saved_seconds: float
    """Saved against plain decoding over the last tokens; negative where speculation lost."""


class AdaptiveDraftLength:
    """A `DraftLengthController` that maximises believed tokens per second.

    Args:
        costs: believed seconds of steps and drafted tokens; updated by what is observed.
        max_draft_tokens: longest draft considered.
        loss_bound: share of plain time that may be lost over any `window` tokens.
        window: tokens over which losses are bounded.
    """

    def __init__(
        self,
        costs: StepCosts,
        *,
        max_draft_tokens: int = 16,
        loss_bound: float = 0.02,
        window: int = 256,
    ) -> None:
        self._costs = costs
        self._max_draft_tokens = max_draft_tokens
        self._loss_bound = loss_bound
        self._window = window
        self._pool = AcceptanceEstimate(decay=0.99, prior=_OPTIMISM)
        self._of_row: dict[int, AcceptanceEstimate] = {}
        self._account: deque[tuple[float, float]] = deque()
        self._tokens = 0.0
        self._saved = 0.0
        self._wait = _FIRST_WAIT
        self._rounds_with_draft = 0
        self._rounds_without_draft = 0
        self._chosen = 0
        self._beliefs: Beliefs | None = None

    @property
    def beliefs(self) -> Beliefs | None:
        """What the last choice rested on; None before the first."""
        return self._beliefs

    def budgets(self, sequences: List[Sequence]) -> list[int]:
        """See `DraftLengthController.budgets`."""
        self._chosen = self._choose(sequences)
        acceptance = [self._acceptance(sequence) for sequence in sequences]
        self._beliefs = self._explained(acceptance)
        if self._chosen <= _PROBE_TOKENS:
            return [self._chosen] * len(sequences)
        return [min(self._chosen, _useful(row)) for row in acceptance]

    def observe(
        self,
        sequences: List[Sequence],
        proposals: List[Proposal],
        verdicts: List[Verdict | None],
        *,
        draft_seconds: float,
        target_seconds: float,
    ) -> None:
        """See `DraftLengthController.observe`."""
        rows = len(sequences)
        drafted = max(len(proposal.tokens) for proposal in proposals)
        self._costs.observe_step(rows, 1 + drafted, target_seconds)
        # A drafter's first call for a sequence computes the prompt as well.
        if drafted and all(sequence.round_index > 1 for sequence in sequences):
            self._costs.observe_draft(drafted, draft_seconds)
        committed = 0
        for sequence, proposal, verdict in zip(sequences, proposals, verdicts, strict=True):
            accepted = len(verdict.accepted) if verdict is not None else 0
            committed += 1 + accepted
            if proposal.tokens and verdict is not None:
                self._pool.observe(_depth(proposal), accepted)
                self._estimate(sequence).observe(_depth(proposal), accepted)
            if sequence.is_finished:
                self._of_row.pop(sequence.id, None)
        self._settle(committed / rows, rows, drafted, draft_seconds)

    def _choose(self, sequences: List[Sequence]) -> int:
        """The length with the best believed rate among those that are safe or affordable."""
        rows = len(sequences)
        plain = self._costs.step(rows, 1)
        longest = min(self._max_draft_tokens, _FIRST_TOKENS + self._rounds_with_draft)
        expected = _expected_tokens([self._acceptance(sequence) for sequence in sequences], longest)
        at_least = _expected_tokens([self._acceptance(sequence, _CAUTION) for sequence in sequences], longest)
        best, best_rate = 0, rows / plain
        for length in range(1, longest + 1):
            seconds = self._costs.draft(length) + self._costs.step(rows, 1 + length)
            safe = at_least[length] / seconds > rows / plain
            if expected[length] / seconds > best_rate and (safe or self._may_lose(seconds - plain, plain)):
                best, best_rate = length, expected[length] / seconds
        return best or self._probe(rows, plain)

    def _probe(self, rows: int, plain: float) -> int:
        """Now and then draft although it seems not to pay, so that better times are noticed."""
        if self._rounds_without_draft < self._wait:
            return 0
        for length in range(min(_PROBE_TOKENS, self._max_draft_tokens), 0, -1):
            seconds = self._costs.draft(length) + self._costs.step(rows, 1 + length)
            if self._may_lose(seconds - plain, plain):
                return length
        return 0

    def _may_lose(self, worst: float, plain: float) -> bool:
        """Whether losing `worst` seconds now would keep every window that ends here within the bound.

        The worst window begins after the last gains, so what was gained before does not pay.
        """
        suffix = lowest = 0.0
        for _, saved in reversed(self._account):
            suffix += saved
            lowest = min(lowest, suffix)
        tokens = max(self._window / 2, min(self._tokens, self._window))
        return lowest - worst >= -self._loss_bound * tokens * plain

    def _settle(self, tokens: float, rows: int, drafted: int, draft_seconds: float) -> None:
        """Enter the round in the account of the last tokens.

        Steps count at believed cost, or the noise of the machine would be taken for losses.
        """
        plain = self._costs.step(rows, 1)
        saved = 0.0
        if drafted:
            saved = tokens * plain - draft_seconds - self._costs.step(rows, 1 + drafted)
            self._rounds_with_draft += 1
            self._rounds_without_draft = 0
            self._wait = _FIRST_WAIT if saved > 0 else min(_LONGEST_WAIT, 2 * self._wait)
        else:
            self._rounds_without_draft += 1
        self._account.append((tokens, saved))
        self._tokens += tokens
        self._saved += saved
        while self._tokens - self._account[0][0] > self._window:
            old_tokens, old_saved = self._account.popleft()
            self._tokens -= old_tokens
            self._saved -= old_saved

    def _acceptance(self, sequence: Sequence, caution: float = 0.0) -> list[float]:
        pooled = self._pool.probabilities(1)[0]
        return self._estimate(sequence).probabilities(self._max_draft_tokens, pooled, caution=caution)

    def _estimate(self, sequence: Sequence) -> AcceptanceEstimate:
        if sequence.id not in self._of_row:
            self._of_row[sequence.id] = AcceptanceEstimate(decay=0.95, prior=_OPTIMISM)
        return self._of_row[sequence.id]

    def _explained(self, acceptance: List[List[float]]) -> Beliefs:
        rows, length = len(acceptance), self._chosen
        mean = tuple(sum(column) / rows for column in zip(*acceptance, strict=True))
        plain, step = self._costs.step(rows, 1), self._costs.step(rows, 1 + length)
        expected = _expected_tokens([mean], length)[length]
        return Beliefs(
            num_draft_tokens=length,
            acceptance=mean,
            plain_step_seconds=plain,
            step_seconds=step,
            draft_token_seconds=self._costs.draft(1),
            expected_speedup=expected * plain / (step + self._costs.draft(length)),
            saved_seconds=self._saved,
        )


def _expected_tokens(acceptance: List[List[float]], longest: int) -> list[float]:
    """For each draft length from 0 to `longest`, the tokens that all rows together may expect."""
    survival = [1.0] * len(acceptance)
    expected = [float(len(acceptance))]
    for position in range(longest):
        survival = [s * row[position] for s, row in zip(survival, acceptance, strict=True)]
        expected.append(expected[-1] + sum(survival))
    return expected


def _depth(proposal: Proposal) -> int:
    """Length of the longest root path; a round can accept no more."""
    if proposal.parents is None:
        return len(proposal.tokens)
    depths: list[int] = []
    for parent in proposal.parents:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return max(depths, default=0)


def _useful(acceptance: List[float]) -> int:
    """How far a row gets with more than hopeless probability."""
    survival = 1.0
    for length, probability in enumerate(acceptance):
        survival *= probability
        if survival < _HOPELESS:
            return length
    return len(acceptance)
