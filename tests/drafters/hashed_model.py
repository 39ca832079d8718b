"""A deterministic stand-in for a model, and the engine around it: fast enough for property tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from foredraft.drafters import Drafter, Proposal
from foredraft.engine import Engine, FixedDraftLength, Request
from foredraft.engine import Sequence as EngineSequence
from foredraft.execution import ModelRunner, RowInput, StepOutput
from foredraft.laws import LawProcessor, NoiseStream, RejectionRule, noise_key
from foredraft.params import SamplingParams

Logits = Callable[[Sequence[int]], torch.Tensor]


@dataclass
class Context:
    """A `DraftContext` without an engine."""

    tokens: list[int]
    id: int = 0
    processor: LawProcessor = field(default_factory=lambda: LawProcessor(SamplingParams(), prompt_length=0))
    seed: int = 0

    def noise_key(self, stream: NoiseStream, position: int) -> int:
        return noise_key(self.seed, self.id, stream, position)


class FunctionRunner:
    """A `ModelRunner` whose logits are a function of the whole prefix."""

    device = torch.device("cpu")
    supports_tree = True
    cache_bytes_per_token = 8

    def __init__(self, logits: Logits, vocab_size: int, context_length: int = 4096) -> None:
        self._logits = logits
        self.vocab_size = vocab_size
        self.context_length = context_length
        self._rows: list[list[int]] = []

    def reserve(self, num_rows: int, num_tokens: int) -> None:
        self._rows += [[] for _ in range(num_rows - len(self._rows))]

    def length(self, row: int) -> int:
        return len(self._rows[row])

    def step(self, inputs: Sequence[RowInput]) -> StepOutput:
        rows: list[torch.Tensor] = []
        for fed in inputs:
            cached = self._rows[fed.row]
            parents = fed.parents if fed.parents is not None else range(-1, len(fed.tokens) - 1)
            paths: list[list[int]] = []
            for token, parent in zip(fed.tokens, parents, strict=True):
                paths.append([*(paths[parent] if parent >= 0 else []), token])
            for path in paths[len(paths) - fed.num_logits :]:
                rows.append(self._logits([*cached, *path]))
            cached += fed.tokens
        return StepOutput(torch.stack(rows) if rows else torch.empty(0, self.vocab_size))

    def truncate(self, row: int, length: int) -> None:
        assert length <= len(self._rows[row])
        del self._rows[row][length:]

    def keep(self, row: int, start: int, kept: Sequence[int]) -> None:
        self._rows[row][start:] = [self._rows[row][start + node] for node in kept]

    def copy(self, source: int, destination: int, length: int) -> None:
        self._rows[destination] = self._rows[source][:length]


def hashed_logits(vocab_size: int, order: int = 2, seed: int = 0, scale: float = 2.0) -> Logits:
    """Logits that depend on the last `order` tokens."""
    table: dict[tuple[int, ...], torch.Tensor] = {}

    def logits(prefix: Sequence[int]) -> torch.Tensor:
        key = tuple(prefix[-order:])
        if key not in table:
            generator = torch.Generator().manual_seed(hash((seed, *key)) % (1 << 62))
            table[key] = torch.randn(vocab_size, generator=generator) * scale
        return table[key]

    return logits


def generate(
    runner: ModelRunner,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    drafter: Drafter | None = None,
    *,
    num_draft_tokens: int = 6,
    rule: RejectionRule | None = None,
    end_token_ids: Sequence[int] = (),
) -> list[EngineSequence]:
    """Run prompts to their end, all in one batch."""
    engine = Engine(
        runner, controller=FixedDraftLength(num_draft_tokens if drafter else 0), drafter=drafter, rule=rule
    )
    sequences = [engine.add(Request(list(prompt), params, end_token_ids)) for prompt in prompts]
    while engine.has_unfinished:
        engine.step()
    return sequences


def assert_unchanged(
    make_drafter: Callable[[], Drafter],
    runner: FunctionRunner,
    prompts: Sequence[Sequence[int]],
    end_token_ids: Sequence[int] = (),
) -> list[EngineSequence]:
    """Greedy and seed-exact output with the drafter is that of plain decoding; returns the greedy runs."""
    first: list[EngineSequence] = []
    for params in (
        SamplingParams(max_new_tokens=40),
        SamplingParams(max_new_tokens=40, temperature=0.8, seed=7),
        SamplingParams(max_new_tokens=40, temperature=1.2, top_k=4, repetition_penalty=1.1, seed=8),
    ):
        plain = generate(runner, prompts, params, end_token_ids=end_token_ids)
        drafted = generate(runner, prompts, params, make_drafter(), end_token_ids=end_token_ids)
        assert [sequence.error for sequence in drafted] == [None] * len(prompts)
        assert [sequence.tokens for sequence in drafted] == [sequence.tokens for sequence in plain]
        first = first or drafted
    return first


def check_within_budget(proposals: Sequence[Proposal], budgets: Sequence[int]) -> None:
    """A proposal never exceeds its budget and its parents precede their children."""
    for proposal, budget in zip(proposals, budgets, strict=True):
        assert len(proposal.tokens) <= budget
        if proposal.parents is not None:
            assert len(proposal.parents) == len(proposal.tokens)
            assert all(-1 <= parent < node for node, parent in enumerate(proposal.parents))
