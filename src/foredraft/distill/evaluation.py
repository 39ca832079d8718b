"""What a finished draft is worth: the engine itself decodes held-out prompts with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from foredraft.distill.corpus import Sample
from foredraft.engine import SpeculationStats, StepCosts
from foredraft.inferencer import RunnerName, SpeculativeInferencer
from foredraft.models import LoadedModel
from foredraft.params import SamplingParams


@dataclass(frozen=True)
class DraftWorth:
    """Acceptance on held-out prompts at one temperature, and what it gains at measured costs."""

    temperature: float
    acceptance_per_position: tuple[float, ...]
    """Share of rounds in which the drafted token at this position was accepted, and so all before it."""
    mean_accepted_length: tuple[float, ...]
    """Tokens a round when drafting 1, 2, ... tokens, the target's own token included."""
    speedup: tuple[float, ...]
    """Plain seconds a token over speculative ones, when drafting 1, 2, ... tokens."""
    draft_cost: float
    """Cost of a drafted token, in plain steps of the target."""

    @property
    def best_num_draft_tokens(self) -> int | None:
        """Draft length of the largest speedup; None if nothing was drafted."""
        if not self.speedup:
            return None
        return 1 + max(range(len(self.speedup)), key=lambda index: self.speedup[index])

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "best_num_draft_tokens": self.best_num_draft_tokens}


def measure_draft(
    target: LoadedModel,
    draft: Path,
    held_out: Sequence[Sample],
    *,
    num_draft_tokens: int = 5,
    temperatures: Sequence[float] = (0.0, 1.0),
    max_prompts: int = 16,
    max_new_tokens: int = 96,
    seed: int = 0,
    runner: RunnerName = "reference",
) -> list[DraftWorth]:
    """Decode prompts that the draft was not trained on, one at a time, at each temperature.

    Args:
        target: the model that the draft was made for.
        draft: folder of the draft.
        held_out: samples whose prompts are used.
        num_draft_tokens: tokens drafted a round.
        temperatures: each gives one `DraftWorth`.
        max_prompts: prompts decoded at most.
        max_new_tokens: tokens generated for each.
        seed: of the sampling.
        runner: which runs target and draft.
    """
    inferencer = SpeculativeInferencer(
        target, draft, num_draft_tokens=num_draft_tokens, runner=runner, max_batch_size=1
    )
    costs = inferencer.measure_step_costs()
    prompts = list(dict.fromkeys(sample.tokens[: sample.prompt_length] for sample in held_out))
    worths: list[DraftWorth] = []
    for temperature in temperatures:
        sampling = SamplingParams(temperature=temperature, seed=seed, max_new_tokens=max_new_tokens)
        total = SpeculationStats()
        for prompt in prompts[:max_prompts]:
            total.add(inferencer.inference(prompt, sampling)[0].stats)
        worths.append(_worth(temperature, total, costs))
    return worths


def _worth(temperature: float, stats: SpeculationStats, costs: StepCosts) -> DraftWorth:
    rates = stats.acceptance_per_position()
    lengths = [1.0 + sum(rates[:count]) for count in range(1, len(rates) + 1)]
    if stats.drafted:
        costs.observe_draft(stats.drafted, stats.draft_seconds)
    plain = costs.step(1, 1)
    speedups = [
        length * plain / (costs.step(1, 1 + count) + costs.draft(count))
        for count, length in enumerate(lengths, start=1)
    ]
    return DraftWorth(temperature, tuple(rates), tuple(lengths), tuple(speedups), costs.draft(1) / plain)
