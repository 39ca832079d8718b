"""Table language models: a law for every context, small enough that every text can be enumerated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

Context = tuple[int, ...]


@dataclass
class TableModel:
    """Float64 laws, one for each context, made on demand and kept."""

    vocab: int
    make: Callable[[Context], torch.Tensor]
    _laws: dict[Context, torch.Tensor] = field(default_factory=dict)
    _joints: dict[tuple[Context, int], torch.Tensor] = field(default_factory=dict)

    def law(self, context: Context) -> torch.Tensor:
        """float64 `[vocab]`, summing to one."""
        if context not in self._laws:
            law = self.make(context).double()
            self._laws[context] = law / law.sum()
        return self._laws[context]

    def laws(self, drafted: Context, count: int) -> torch.Tensor:
        """float64 `[count, vocab]`: row i is conditioned on the first i of `drafted`."""
        if not count:
            return torch.empty(0, self.vocab, dtype=torch.float64)
        return torch.stack([self.law(drafted[:index]) for index in range(count)])

    def joint(self, context: Context, length: int) -> torch.Tensor:
        """float64 `[vocab] * length`: law of the next `length` tokens after `context`."""
        if length == 0:
            return torch.ones((), dtype=torch.float64)
        key = (context, length)
        if key not in self._joints:
            law = self.law(context)
            rest = [self.joint((*context, token), length - 1) for token in range(self.vocab)]
            self._joints[key] = torch.stack([law[token] * rest[token] for token in range(self.vocab)])
        return self._joints[key]


def generator(seed: int, context: Context) -> torch.Generator:
    """Randomness of a context, independent of the order in which contexts are visited."""
    mixed = seed
    for token in context:
        mixed = (mixed * 1_000_003 + token + 1) % (1 << 61)
    return torch.Generator().manual_seed(mixed)


def random_logits(vocab: int, seed: int, context: Context) -> torch.Tensor:
    """float64 `[vocab]`, some nearly flat and some peaked."""
    noise = generator(seed, context)
    scale = 0.3 + 2.5 * torch.rand((), generator=noise, dtype=torch.float64)
    return scale * torch.randn(vocab, generator=noise, dtype=torch.float64)


def dense(vocab: int, seed: int) -> TableModel:
    """Every token has positive probability."""
    return TableModel(vocab, lambda context: random_logits(vocab, seed, context).softmax(-1))


def top_k(vocab: int, seed: int, k: int) -> TableModel:
    """Support of the k best tokens, different in every context."""

    def make(context: Context) -> torch.Tensor:
        logits = random_logits(vocab, seed, context)
        return logits.masked_fill(logits < logits.topk(k).values[-1], -torch.inf).softmax(-1)

    return TableModel(vocab, make)


def top_p(vocab: int, seed: int, mass: float) -> TableModel:
    """Support of the best tokens up to `mass`, of different size in every context."""

    def make(context: Context) -> torch.Tensor:
        law, order = random_logits(vocab, seed, context).softmax(-1).sort(descending=True)
        kept = torch.where(law.cumsum(-1) - law < mass, law, 0.0)
        return torch.zeros(vocab, dtype=torch.float64).scatter(0, order, kept)

    return TableModel(vocab, make)


def one_hot(model: TableModel) -> TableModel:
    """All mass on the most likely token of `model`: a greedy or n-gram drafter, or a greedy target."""
    eye = torch.eye(model.vocab, dtype=torch.float64)
    return TableModel(model.vocab, lambda context: eye[int(model.law(context).argmax())])


def restricted(vocab: int, seed: int, parity: int) -> TableModel:
    """Support on ids of one parity, flipping with the context's length: two parities are disjoint."""

    def make(context: Context) -> torch.Tensor:
        law = random_logits(vocab, seed, context).softmax(-1)
        return torch.where((torch.arange(vocab) + len(context)) % 2 == parity, law, 0.0)

    return TableModel(vocab, make)


def tempered(model: TableModel, temperature: float) -> TableModel:
    """`model` at another temperature."""
    return TableModel(model.vocab, lambda context: model.law(context) ** (1 / temperature))


def perturbed(model: TableModel, seed: int, size: float) -> TableModel:
    """`model` up to a relative error: residuals vanish up to rounding."""

    def make(context: Context) -> torch.Tensor:
        noise = torch.rand(model.vocab, generator=generator(seed, context), dtype=torch.float64)
        return model.law(context) * (1 + size * noise)

    return TableModel(model.vocab, make)


def total_variation(first: torch.Tensor, second: torch.Tensor) -> float:
    """Half the sum of absolute differences."""
    return float((first - second).abs().sum() / 2)
