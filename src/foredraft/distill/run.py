"""`distill`: from a target to a draft in a folder, in the steps data, training, evaluation, card."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from foredraft.distill.batches import split_held_out, take_tokens
from foredraft.distill.card import CardFacts, write_card
from foredraft.distill.checkpoint import read_log
from foredraft.distill.corpus import SETTINGS_NAME, Sample, read_samples
from foredraft.distill.curves import plot_training
from foredraft.distill.evaluation import DraftWorth, measure_draft
from foredraft.distill.losses import LossMix
from foredraft.distill.objective import DraftModelObjective, Objective
from foredraft.distill.student import make_student, spread_layers
from foredraft.distill.training import StepReport, TrainingOptions, train
from foredraft.errors import ForedraftError, ParameterError
from foredraft.inferencer import RunnerName
from foredraft.models import LoadedModel

logger = logging.getLogger(__name__)

DraftKind: TypeAlias = Literal["model"]
DRAFT_KINDS: tuple[DraftKind, ...] = ("model",)
DEFAULT_LOSS = "forward-kl=1,tv=1"
_TRAINING_NAME = "training"
_RESULTS_NAME = "acceptance.json"


@dataclass(frozen=True)
class DistillOptions:
    """What is made of the data."""

    kind: DraftKind = "model"
    """"model" is a causal language model of the target's family."""
    tokens: int = 300_000
    """Of the data; more are not looked at."""
    layers: int | tuple[int, ...] = 2
    """A draft model begins as these layers of the target, or as so many evenly spaced ones."""
    loss: LossMix = field(default_factory=lambda: LossMix.parse(DEFAULT_LOSS))
    training: TrainingOptions = field(default_factory=TrainingOptions)
    save_dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.kind not in DRAFT_KINDS:
            raise ParameterError(f"kind: must be one of {', '.join(DRAFT_KINDS)} (got {self.kind!r})")


@dataclass(frozen=True)
class Distilled:
    """A finished draft."""

    folder: Path
    worths: list[DraftWorth]
    written: list[Path]
    """Card, results and plots."""


def distill(
    target: LoadedModel,
    data: Path,
    out: Path,
    options: DistillOptions,
    *,
    command: str,
    runner: RunnerName = "reference",
    on_step: Callable[[StepReport], None] = lambda report: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Distilled | None:
    """Train a draft on data that are there, save it, and measure what it is worth.

    Args:
        target: in memory; its weights are not changed.
        data: folder that `generate_data` filled.
        out: folder of the draft; checkpoint and log go into its subfolder `training`.
        options: what to make.
        command: for the card.
        runner: runs target and draft in the evaluation.
        on_step, cancelled: see `train`.

    Returns:
        None if it was cancelled; the same call goes on where it stopped.

    Raises:
        ParameterError: if the data do not suffice, or `out` holds a run with other options.
    """
    samples = take_tokens(read_samples(data), options.tokens)
    training, held_out = split_held_out(samples)
    objective = make_objective(target, options)
    identity = {
        "target": target.name,
        "kind": options.kind,
        "layers": options.layers,
        "loss": str(options.loss),
        "loss_temperature": options.loss.temperature,
    }
    work = out / _TRAINING_NAME
    score = train(
        objective, training, held_out, work, options.training,
        identity=identity, device=target.device, on_step=on_step, cancelled=cancelled,
    )  # fmt: skip
    if score is None:
        return None
    objective.save(out)
    worths = measure_draft(target, out, held_out, seed=options.training.seed, runner=runner)
    facts = CardFacts(
        target=target,
        kind=options.kind,
        command=command,
        seed=options.training.seed,
        data=_data_sentence(samples, len(held_out), data),
        training=_training_sentence(options),
    )
    results = out / _RESULTS_NAME
    results.write_text(
        json.dumps(
            {
                "held_out_acceptance": score.acceptance(),
                "held_out_agreement": score.agreement(),
                "decoding": [worth.as_dict() for worth in worths],
            },
            indent=2,
        )
        + "\n",
        encoding="utf-8",
    )
    written = [write_card(out, facts, worths), results, *_plots(work)]
    return Distilled(out, worths, written)


def make_objective(target: LoadedModel, options: DistillOptions) -> Objective:
    """The untrained draft of `options.kind`; the same one each time."""
    layers = options.layers
    if isinstance(layers, int):
        layers = spread_layers(int(target.model.config.num_hidden_layers), layers)
    student = make_student(target.model, layers)
    return DraftModelObjective(
        target.model, student, options.loss, tokenizer=target.tokenizer, save_dtype=options.save_dtype
    )


def _plots(work: Path) -> list[Path]:
    try:
        return plot_training(read_log(work), work / "training")
    except ForedraftError as error:
        logger.warning("no plot of the training: %s", error)
        return []


def _data_sentence(samples: Sequence[Sample], num_held_out: int, data: Path) -> str:
    settings = json.loads((data / SETTINGS_NAME).read_text(encoding="utf-8"))
    tokens = sum(len(sample.tokens) for sample in samples)
    source = "questions that the target wrote itself" if settings["prompts"] is None else "given prompts"
    temperatures = ", ".join(f"{value:g}" for value in settings["temperatures"])
    return (
        f"{len(samples)} answers of the target to {source}, {tokens} tokens, at temperatures {temperatures} "
        f"(seed {settings['seed']}); {num_held_out} of them held out."
    )


def _training_sentence(options: DistillOptions) -> str:
    training = options.training
    return (
        f"loss {options.loss} at temperature {options.loss.temperature:g}, {training.epochs} epochs, "
        f"AdamW with learning rate {training.learning_rate:g}, warm-up and cosine."
    )
