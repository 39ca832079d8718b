"""Samples in batches: held-out ones set apart, the rest in an order determined by seed and epoch.

Rows are filled up on the right, behind everything that their tokens can attend to, so that a causal model
needs no mask; samples of like length share a batch, so that little is filled up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from foredraft.distill.corpus import Sample
from foredraft.errors import ParameterError

_POOL = 64
"""Samples among which those of like length are brought together; more would make batches less random."""


@dataclass(frozen=True)
class Batch:
    """Rows that one forward takes."""

    tokens: torch.Tensor
    """int64 `[rows, length]`, zeros behind the end of a row."""
    answered: torch.Tensor
    """bool `[rows, length]`: positions whose next token belongs to an answer. Only these are trained on."""

    @property
    def num_positions(self) -> int:
        """Positions that are trained on."""
        return int(self.answered.sum())

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return Batch(self.tokens.to(device), self.answered.to(device))


def take_tokens(samples: Iterable[Sample], tokens: int) -> list[Sample]:
    """The first samples that have `tokens` tokens together; all of them if they have fewer.

    Data may be drawn while a draft is trained: this part of them does not change.
    """
    taken: list[Sample] = []
    for sample in samples:
        if tokens <= 0:
            break
        taken.append(sample)
        tokens -= len(sample.tokens)
    return taken


def split_held_out(samples: Sequence[Sample], share: float = 0.05) -> tuple[list[Sample], list[Sample]]:
    """Samples to train on, and samples of prompts that occur in none of these.

    Which prompts are held out depends on the prompts alone.

    Raises:
        ParameterError: if there are fewer than two prompts.
    """
    by_prompt: dict[str, list[Sample]] = {}
    for sample in samples:
        prompt = sample.tokens[: sample.prompt_length]
        by_prompt.setdefault(hashlib.blake2b(repr(prompt).encode()).hexdigest(), []).append(sample)
    if len(by_prompt) < 2:
        raise ParameterError("training needs answers to at least two prompts; draw more tokens (--tokens)")
    count = min(max(1, round(share * len(by_prompt))), len(by_prompt) - 1)
    held = sorted(by_prompt)[:count]
    held_out = [sample for key in held for sample in by_prompt[key]]
    chosen = {sample.index for sample in held_out}
    return [sample for sample in samples if sample.index not in chosen], held_out


def epoch_batches(
    samples: Sequence[Sample], seed: int, epoch: int, *, batch_tokens: int, max_length: int
) -> list[Batch]:
    """All samples once, in an order of this epoch's own; see `batches`."""
    generator = torch.Generator().manual_seed(_mixed(seed, epoch))
    shuffled = [samples[index] for index in _permutation(len(samples), generator)]
    pools = [
        sorted(shuffled[start : start + _POOL], key=lambda sample: len(sample.tokens))
        for start in range(0, len(shuffled), _POOL)
    ]
    ordered = [sample for pool in pools for sample in pool]
    made = batches(ordered, batch_tokens=batch_tokens, max_length=max_length)
    return [made[index] for index in _permutation(len(made), generator)]


def batches(samples: Sequence[Sample], *, batch_tokens: int, max_length: int) -> list[Batch]:
    """Consecutive samples in batches of at most `batch_tokens` places (one sample at least).

    Args:
        samples: in the order in which they are taken.
        batch_tokens: rows times length of the longest row.
        max_length: tokens of a sample beyond this are dropped, and samples with no answer before it.
    """
    made: list[Batch] = []
    rows: list[Sample] = []
    for sample in samples:
        if not 0 < sample.prompt_length < min(len(sample.tokens), max_length):
            continue
        longest = max(min(len(row.tokens), max_length) for row in [*rows, sample])
        if rows and longest * (len(rows) + 1) > batch_tokens:
            made.append(_filled(rows, max_length))
            rows = []
        rows.append(sample)
    if rows:
        made.append(_filled(rows, max_length))
    return made


def _filled(rows: Sequence[Sample], max_length: int) -> Batch:
    cut = [(row.tokens[:max_length], row.prompt_length) for row in rows]
    shape = (len(cut), max(len(tokens) for tokens, _ in cut))
    filled, answered = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.bool)
    for row, (tokens, prompt_length) in enumerate(cut):
        filled[row, : len(tokens)] = torch.tensor(tokens)
        answered[row, prompt_length - 1 : len(tokens) - 1] = True
    return Batch(filled, answered)


def _permutation(count: int, generator: torch.Generator) -> list[int]:
    return torch.randperm(count, generator=generator).tolist()


def _mixed(seed: int, epoch: int) -> int:
    digest = hashlib.blake2b(f"{seed} epoch {epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
