"""`train`: the loop that fits a draft to its target, the same for every kind of draft."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from foredraft.distill.batches import Batch, batches, epoch_batches
from foredraft.distill.checkpoint import Log, restore_checkpoint, save_checkpoint
from foredraft.distill.corpus import Sample, fingerprint
from foredraft.distill.objective import Objective, Score
from foredraft.errors import ExecutionError, ParameterError

_CHECKPOINT_SECONDS = 60.0
_FINAL_RATE = 0.05
"""Share of the highest learning rate that remains at the end."""


@dataclass(frozen=True)
class TrainingOptions:
    """How a draft is fitted. With objective and data it determines the weights, on one kind of machine."""

    epochs: int = 3
    learning_rate: float = 5e-4
    """The highest: AdamW, linear warm-up, then a half cosine."""
    warmup: float = 0.05
    """Share of the run in which the rate rises."""
    weight_decay: float = 0.01
    max_gradient_norm: float = 1.0
    batch_tokens: int = 1024
    """Places in one forward: what bounds the memory."""
    batches_per_step: int = 4
    """Forwards whose gradients are added up for one step of the optimizer."""
    max_length: int = 512
    """Tokens of a sample beyond this are left out."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_tokens", "batches_per_step", "max_length"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} must be at least 1 (got {getattr(self, name)})")
        if not 0.0 < self.learning_rate <= 1.0:
            raise ParameterError(f"learning_rate must be above 0, at most 1 (got {self.learning_rate:g})")
        if not 0.0 <= self.warmup < 1.0:
            raise ParameterError(f"warmup must be at least 0, below 1 (got {self.warmup:g})")

    def rate(self, progress: float) -> float:
        """Learning rate after this share of the run."""
        if progress < self.warmup:
            return self.learning_rate * (progress / self.warmup)
        done = (progress - self.warmup) / (1.0 - self.warmup)
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
        return self.learning_rate * (_FINAL_RATE + (1.0 - _FINAL_RATE) * cosine)


@dataclass(frozen=True)
class StepReport:
    """What one step of the optimizer saw, before it changed the draft."""

    step: int
    progress: float
    """Share of the run that is done."""
    loss: float
    """Mean over the positions."""
    score: Score


def train(
    objective: Objective,
    training: Sequence[Sample],
    held_out: Sequence[Sample],
    folder: Path,
    options: TrainingOptions,
    *,
    identity: Mapping[str, Any],
    device: torch.device | None = None,
    on_step: Callable[[StepReport], None] = lambda report: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Score | None:
    """Fit a draft; a run that was killed goes on from its checkpoint and ends with the same weights.

    Args:
        objective: the draft in training.
        training, held_out: see `split_held_out`.
        folder: of checkpoint and log; made if it is not there.
        options: how to train.
        identity: whatever else determines the weights (target, kind, loss); JSON values. A folder with a
            run of another identity, other options or other data is refused.
        device: where the batches go; the CPU if not given.
        on_step: called after each step.
        cancelled: asked after each step; if true, the run stops with a checkpoint.

    Returns:
        Score of the held-out samples at the end; None if the run was cancelled.

    Raises:
        ParameterError: as above.
        ExecutionError: if the loss is not finite.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = {**asdict(options), **identity, "data": fingerprint([*training, *held_out])}
    run = _Run(objective, options, folder, settings, device or torch.device("cpu"))
    score: Score | None = None
    while run.place.epoch < options.epochs:
        order = epoch_batches(
            training, options.seed, run.place.epoch,
            batch_tokens=options.batch_tokens, max_length=options.max_length,
        )  # fmt: skip
        if not order:
            raise ParameterError("no sample has an answer within max_length; allow longer ones")
        steps = math.ceil(len(order) / options.batches_per_step)
        while run.place.step < steps:
            start = run.place.step * options.batches_per_step
            chosen = list(islice(order, start, start + options.batches_per_step))
            on_step(run.step(chosen, steps))
            if cancelled():
                run.save()
                return None
        score = _evaluate(objective, held_out, options, run.device)
        run.end_epoch(score)
    return score or _evaluate(objective, held_out, options, run.device)


class _Run:
    """Optimizer, place and log of one run."""

    def __init__(
        self,
        objective: Objective,
        options: TrainingOptions,
        folder: Path,
        settings: Mapping[str, Any],
        device: torch.device,
    ) -> None:
        self.device = device
        self._objective = objective
        self._options = options
        self._folder = folder
        self._settings = settings
        # Dropout would draw from a generator whose state a resumed run does not have.
        objective.module.eval()
        self._parameters = [value for value in objective.module.parameters() if value.requires_grad]
        self._optimizer = torch.optim.AdamW(
            [
                {"params": [value for value in self._parameters if value.dim() > 1]},
                {"params": [value for value in self._parameters if value.dim() <= 1], "weight_decay": 0.0},
            ],
            lr=options.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=options.weight_decay,
        )
        self.place = restore_checkpoint(folder, settings, objective.module, self._optimizer)
        self._log = Log(folder, self.place)
        self._saved_at = time.monotonic()

    def step(self, chosen: Sequence[Batch], steps: int) -> StepReport:
        """One step of the optimizer over all of `chosen`; the epoch has `steps`."""
        progress = (self.place.epoch + self.place.step / steps) / self._options.epochs
        for group in self._optimizer.param_groups:
            # A rate of exactly 0 would waste the first step.
            group["lr"] = self._options.rate(max(progress, 0.5 / steps / self._options.epochs))
        positions = sum(batch.num_positions for batch in chosen)
        total, score = 0.0, Score.zero(self._objective.depth)
        self._optimizer.zero_grad(set_to_none=True)
        for batch in chosen:
            loss, found = self._objective.loss(batch.to(self.device))
            (loss / positions).backward()
            total += float(loss.detach())
            score.add(found)
        if not math.isfinite(total):
            raise ExecutionError("training diverged (the loss is not finite); lower the learning rate")
        torch.nn.utils.clip_grad_norm_(self._parameters, self._options.max_gradient_norm)
        self._optimizer.step()
        self.place = replace(self.place, step=self.place.step + 1, total_steps=self.place.total_steps + 1)
        report = StepReport(
            self.place.total_steps,
            (self.place.epoch + self.place.step / steps) / self._options.epochs,
            total / positions,
            score,
        )
        self._log.write(
            {
                "step": report.step,
                "progress": report.progress,
                "loss": report.loss,
                "learning_rate": self._optimizer.param_groups[0]["lr"],
                "positions": positions,
                "acceptance": score.acceptance(),
                "agreement": score.agreement(),
            }
        )
        if time.monotonic() - self._saved_at > _CHECKPOINT_SECONDS:
            self.save()
        return report

    def end_epoch(self, held_out: Score) -> None:
        """Log the held-out score and begin the next epoch."""
        self._log.write(
            {
                "step": self.place.total_steps,
                "epoch": self.place.epoch,
                "held_out_acceptance": held_out.acceptance(),
                "held_out_agreement": held_out.agreement(),
            }
        )
        self.place = replace(self.place, epoch=self.place.epoch + 1, step=0)
        self.save()

    def save(self) -> None:
        """Write a checkpoint of the place where the run is."""
        save_checkpoint(self._folder, self.place, self._settings, self._objective.module, self._optimizer)
        self._saved_at = time.monotonic()


@torch.no_grad()
def _evaluate(
    objective: Objective, samples: Sequence[Sample], options: TrainingOptions, device: torch.device
) -> Score:
    score = Score.zero(objective.depth)
    ordered = sorted(samples, key=lambda sample: len(sample.tokens))
    for batch in batches(ordered, batch_tokens=options.batch_tokens, max_length=options.max_length):
        score.add(objective.loss(batch.to(device))[1])
    return score
