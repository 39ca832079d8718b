"""What is trained: the protocol between a kind of draft and the training loop, and draft models."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from foredraft.distill.batches import Batch
from foredraft.distill.losses import LossMix, acceptance
from foredraft.models.quiet import quiet


@dataclass
class Score:
    """Sums over positions, one entry for each step that the draft takes without the target."""

    positions: list[float]
    accepted: list[float]
    """Sum of the acceptance probabilities at temperature 1."""
    agreeing: list[float]
    """Positions where draft and target find the same token most likely."""

    @classmethod
    def zero(cls, depth: int) -> Score:
        """Nothing scored."""
        return cls([0.0] * depth, [0.0] * depth, [0.0] * depth)

    def add(self, other: Score) -> None:
        """Count another score in."""
        for mine, theirs in (
            (self.positions, other.positions),
            (self.accepted, other.accepted),
            (self.agreeing, other.agreeing),
        ):
            mine[:] = [one + two for one, two in zip(mine, theirs, strict=True)]

    def acceptance(self) -> list[float]:
        """Mean acceptance probability by draft position."""
        return [one / max(1.0, all_) for one, all_ in zip(self.accepted, self.positions, strict=True)]

    def agreement(self) -> list[float]:
        """Share of equal most likely tokens (acceptance of greedy decoding) by draft position."""
        return [one / max(1.0, all_) for one, all_ in zip(self.agreeing, self.positions, strict=True)]


class Objective(Protocol):
    """A draft in training."""

    @property
    def module(self) -> torch.nn.Module:
        """Holds the parameters; those that require gradients are trained."""
        ...

    @property
    def depth(self) -> int:
        """Draft positions that a batch is scored at."""
        ...

    def loss(self, batch: Batch) -> tuple[torch.Tensor, Score]:
        """Sum of the loss over the positions of `batch` that are trained on, and their score."""
        ...

    def save(self, folder: Path) -> None:
        """Write the draft as others load it."""
        ...


class DraftModelObjective:
    """Trains a causal language model on the target's laws, which are computed again for each batch.

    Args:
        target: frozen; on its own device and in its own dtype.
        student: trained in float32; see `make_student`.
        mix: the loss.
        tokenizer: saved with the draft; None saves none.
        save_dtype: dtype of the weights in the saved draft.
    """

    depth = 1

    def __init__(
        self,
        target: PreTrainedModel,
        student: PreTrainedModel,
        mix: LossMix,
        *,
        tokenizer: Any | None = None,
        save_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.module: PreTrainedModel = student
        self._target = target
        self._mix = mix
        self._tokenizer = tokenizer
        self._save_dtype = save_dtype

    def loss(self, batch: Batch) -> tuple[torch.Tensor, Score]:
        """See `Objective.loss`."""
        with torch.no_grad():
            p_logits = _logits(self._target, batch)
        q_logits = _logits(self.module, batch)
        total = mixed_loss(self._mix, q_logits, p_logits).sum()
        return total, score_laws(q_logits.detach(), p_logits)

    def save(self, folder: Path) -> None:
        """An ordinary Hugging Face folder: config, safetensors, tokenizer."""
        # Cast as a whole, so that tied weights stay tied and are written once.
        saved: Any = copy.deepcopy(self.module)
        with quiet():
            saved.to(self._save_dtype).save_pretrained(folder)
            if self._tokenizer is not None:
                self._tokenizer.save_pretrained(folder)


def mixed_loss(mix: LossMix, q_logits: torch.Tensor, p_logits: torch.Tensor) -> torch.Tensor:
    """The loss `[positions]` of two rows of logits over the same tokens."""
    return mix(
        torch.log_softmax(q_logits / mix.temperature, dim=-1),
        torch.log_softmax(p_logits / mix.temperature, dim=-1),
    )


def score_laws(q_logits: torch.Tensor, p_logits: torch.Tensor) -> Score:
    """Score of one draft position, both laws at temperature 1."""
    accepted = acceptance(torch.log_softmax(q_logits, dim=-1), torch.log_softmax(p_logits, dim=-1))
    agreeing = q_logits.argmax(-1) == p_logits.argmax(-1)
    return Score([float(len(q_logits))], [float(accepted.sum())], [float(agreeing.sum())])


def _logits(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """float32 `[positions, vocab]` where an answer follows."""
    return model(input_ids=batch.tokens, use_cache=False).logits[batch.answered].float()
