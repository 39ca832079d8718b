"""A runner with the tokens that each row ought to hold beside it, and steps checked without any cache."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from foredraft.execution import ReferenceRunner, RowInput
from tiny_models import VOCAB, uncached_logits

TOLERANCE = 2e-4


def close(measured: torch.Tensor, expected: torch.Tensor) -> None:
    """Raise AssertionError unless two tensors of logits agree up to the rounding of float32."""
    torch.testing.assert_close(measured, expected, rtol=1e-4, atol=TOLERANCE)


class ShadowRows:
    """Each operation is done to the runner and to plain lists; each step's logits are compared."""

    def __init__(self, runner: ReferenceRunner, model: PreTrainedModel, num_rows: int) -> None:
        self.runner = runner
        self.model = model
        self.rows: list[list[int]] = []
        self.grow(num_rows, 8)

    def grow(self, num_rows: int, num_tokens: int) -> None:
        self.runner.reserve(num_rows, num_tokens)
        self.rows += [[] for _ in range(num_rows - len(self.rows))]

    def step(self, inputs: Sequence[RowInput]) -> None:
        """Feed chains and trees; every logit asked for must be that of the token's own path."""
        logits = self.runner.step(inputs).logits
        expected: list[torch.Tensor] = []
        for row_input in inputs:
            expected += self._expected(row_input)
            self.rows[row_input.row] += row_input.tokens
        assert logits.shape[0] == len(expected)
        if expected:
            close(logits, torch.stack(expected))
        for row_input in inputs:
            assert self.runner.length(row_input.row) == len(self.rows[row_input.row])

    def _expected(self, row_input: RowInput) -> list[torch.Tensor]:
        prefix, tokens = self.rows[row_input.row], list(row_input.tokens)
        first = len(tokens) - row_input.num_logits
        if row_input.parents is None:
            return list(uncached_logits(self.model, prefix + tokens)[len(prefix) + first :])
        paths: list[list[int]] = []
        for node, parent in enumerate(row_input.parents):
            paths.append([*(paths[parent] if parent >= 0 else []), tokens[node]])
        return [uncached_logits(self.model, prefix + path)[-1] for path in paths[first:]]

    def truncate(self, row: int, length: int) -> None:
        self.runner.truncate(row, length)
        del self.rows[row][length:]

    def copy(self, source: int, destination: int, length: int) -> None:
        self.runner.copy(source, destination, length)
        self.rows[destination] = self.rows[source][:length]

    def keep(self, row: int, start: int, kept: Sequence[int]) -> None:
        self.runner.keep(row, start, kept)
        fed = self.rows[row][start:]
        self.rows[row][start:] = [fed[node] for node in kept]

    def random_operation(self, choose: random.Random, limit: int) -> None:
        """What an engine may do next: a ragged step, a rejection, a copy, growth, or a tree step."""
        kind = choose.choices(["step", "truncate", "copy", "grow", "tree"], [6, 3, 1, 1, 2])[0]
        row = choose.randrange(len(self.rows))
        if kind == "truncate":
            self.truncate(row, max(0, len(self.rows[row]) - choose.randrange(8)))
        elif kind == "copy":
            source = choose.randrange(len(self.rows))
            self.copy(source, row, choose.randint(0, len(self.rows[source])))
        elif kind == "grow":
            self.grow(min(6, len(self.rows) + 1), choose.randint(1, limit))
        else:
            self._random_step(choose, limit, kind == "tree")

    def _random_step(self, choose: random.Random, limit: int, with_tree: bool) -> None:
        rows = choose.sample(range(len(self.rows)), choose.randint(1, len(self.rows)))
        inputs: list[RowInput] = []
        for index, row in enumerate(rows):
            count = min(choose.choice([1, 2, 5, 9, 20]), limit - len(self.rows[row]))
            if count < 1:
                self.truncate(row, limit // 2)
                count = 1
            tokens = [choose.randrange(VOCAB) for _ in range(count)]
            parents = None
            if with_tree and index == 0:
                parents = random_parents(choose, count)
            inputs.append(RowInput(row, tokens, choose.randint(0, count), parents))
        self.step(inputs)
        if with_tree:
            tree = inputs[0]
            start = len(self.rows[tree.row]) - len(tree.tokens)
            self.keep(tree.row, start, random_path(choose, tree.parents or ()))


def random_parents(choose: random.Random, count: int) -> list[int]:
    """Parents of a random tree, each before its children."""
    return [choose.randint(-1, node - 1) for node in range(count)]


def random_path(choose: random.Random, parents: Sequence[int]) -> list[int]:
    """Nodes of a random root path, perhaps none."""
    path: list[int] = []
    node = -1
    while True:
        children = [child for child, parent in enumerate(parents) if parent == node]
        if not children or choose.random() < 0.2:
            return path
        node = choose.choice(children)
        path.append(node)


def assert_like_a_fresh_prefill(shadow: ShadowRows) -> None:
    """The keys and values of every row equal those of a prefill of the same tokens."""
    fresh = ReferenceRunner(shadow.model, context_length=shadow.runner.context_length)
    fresh.reserve(1, max(map(len, shadow.rows)) or 1)
    for row, tokens in enumerate(shadow.rows):
        fresh.truncate(0, 0)
        if not tokens:
            continue
        fresh.step([RowInput(0, tokens, 0)])
        for name in ("_keys", "_values"):
            pairs = zip(getattr(shadow.runner._cache, name), getattr(fresh._cache, name), strict=True)
            for measured, expected in pairs:
                close(measured[row, :, : len(tokens)], expected[0, :, : len(tokens)])
