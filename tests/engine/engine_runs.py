"""Engines over tiny models, and what they generate."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from foredraft.drafters import Drafter, ModelDrafter, NgramDrafter, Proposal
from foredraft.drafters.base import DraftContext
from foredraft.engine import Engine, FixedDraftLength, Request
from foredraft.engine import Sequence as EngineSequence
from foredraft.execution import ReferenceRunner, RowInput, StepOutput
from foredraft.laws import REJECTION_RULES
from foredraft.params import SamplingParams
from tiny_models import CONTEXT, VOCAB, family_draft

DRAFTERS = ("ngram", "copy", "noise", "random")


class CountingRunner(ReferenceRunner):
    """Keeps the rows of each forward, and whether it verified (gave logits) or prefilled."""

    def __init__(self, model: PreTrainedModel, context_length: int = CONTEXT) -> None:
        super().__init__(model, context_length=context_length)
        self.steps: list[list[RowInput]] = []

    @property
    def verifications(self) -> list[list[RowInput]]:
        return [inputs for inputs in self.steps if any(row_input.num_logits for row_input in inputs)]

    def step(self, inputs: Sequence[RowInput]) -> StepOutput:
        self.steps.append(list(inputs))
        return super().step(inputs)


def drafter_for(name: str, family_name: str = "llama", rule: str = "token", **options: Any) -> Drafter:
    """One of DRAFTERS, for a family's tiny model."""
    if name == "ngram":
        return NgramDrafter(min_ngram=1, vocab_size=VOCAB, **options)
    return model_drafter(family_draft(family_name, name), rule=rule, **options)


def model_drafter(model: PreTrainedModel, *, rule: str = "token", vocab_size: int = VOCAB) -> ModelDrafter:
    runner = ReferenceRunner(model, context_length=CONTEXT)
    return ModelDrafter(runner, vocab_size=vocab_size, coupled=rule == "seed-exact")


def engine_for(
    target: PreTrainedModel | ReferenceRunner,
    drafter: Drafter | None = None,
    k: int = 4,
    rule: str = "token",
    **options: Any,
) -> Engine:
    runner = target if isinstance(target, ReferenceRunner) else CountingRunner(target)
    return Engine(
        runner,
        controller=FixedDraftLength(k),
        drafter=drafter,
        rule=REJECTION_RULES.get(rule),
        **options,
    )


def run(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    on_round: Callable[[list[EngineSequence]], None] | None = None,
    **request: Any,
) -> list[EngineSequence]:
    """All prompts together, to their end."""
    sequences = [engine.add(Request(prompt, params, **request)) for prompt in prompts]
    while engine.has_unfinished:
        engine.step()
        if on_round is not None:
            on_round(sequences)
    return sequences


def generated(*args: Any, **options: Any) -> list[list[int]]:
    """New tokens of every sequence of `run`."""
    return [sequence.new_tokens for sequence in run(*args, **options)]


@torch.inference_mode()
def hugging_face(model: PreTrainedModel, prompt: Sequence[int], count: int, **options: Any) -> list[int]:
    """The new tokens of plain greedy `generate`."""
    output = model.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=count,
        do_sample=False,
        **{"eos_token_id": None, "pad_token_id": 0, **options},
    )
    return output[0, len(prompt) :].tolist()


class TreeDrafter:
    """Proposes trees: the tokens that plain decoding gave, hidden among others.

    Args:
        texts: by prompt, the tokens that plain decoding appends.
        style: `random` branches anywhere, `top` offers the right token and its neighbours at each depth,
            `adversarial` repeats the right token at wrong places and beside itself.
    """

    name = "tree"

    def __init__(self, texts: dict[tuple[int, ...], list[int]], style: str, seed: int = 0) -> None:
        self._texts = texts
        self._style = style
        self._choose = random.Random(seed)

    def propose(self, contexts: Sequence[DraftContext], budgets: Sequence[int]) -> list[Proposal]:
        return [self._tree(context, budget) for context, budget in zip(contexts, budgets, strict=True)]

    def forget(self, context: DraftContext) -> None:
        """Nothing is kept."""

    def _tree(self, context: DraftContext, budget: int) -> Proposal:
        if budget < 1:
            return Proposal()
        tokens = tuple(context.tokens)
        prompt = next(prompt for prompt in self._texts if tokens[: len(prompt)] == prompt)
        right = self._texts[prompt][len(tokens) - len(prompt) :][:budget]
        drafted: list[int] = []
        parents: list[int] = []
        depth: list[int] = []
        on_path = -1
        for node in range(2 * budget):
            next_right = depth[on_path] + 1 if on_path >= 0 else 0
            parent = self._choose.randint(-1, node - 1) if self._style == "random" else on_path
            level = depth[parent] + 1 if parent >= 0 else 0
            if level >= budget:
                continue_at = [
                    other for other in range(-1, len(drafted)) if other < 0 or depth[other] < budget - 1
                ]
                parent = self._choose.choice(continue_at)
                level = depth[parent] + 1 if parent >= 0 else 0
            correct = parent == on_path and next_right < len(right) and self._choose.random() < 0.6
            if correct:
                token = right[next_right]
            elif self._style == "adversarial" and right:
                token = right[min(self._choose.randrange(len(right)), len(right) - 1)]
            else:
                token = self._choose.randrange(VOCAB)
            drafted.append(token)
            parents.append(parent)
            depth.append(level)
            if correct:
                on_path = len(drafted) - 1
        return Proposal(tuple(drafted), parents=tuple(parents))


class FailingDrafter:
    """Works until it does not."""

    name = "failing"

    def __init__(self, drafter: Drafter, failing_call: int, error: Exception) -> None:
        self._drafter = drafter
        self._calls_left = failing_call
        self._error = error

    def propose(self, contexts: Sequence[DraftContext], budgets: Sequence[int]) -> list[Proposal]:
        if not self._calls_left:
            raise self._error
        self._calls_left -= 1
        return self._drafter.propose(contexts, budgets)

    def forget(self, context: DraftContext) -> None:
        self._drafter.forget(context)


class FixedDrafter:
    """Always proposes the same tokens."""

    name = "fixed"

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tuple(tokens)

    def propose(self, contexts: Sequence[DraftContext], budgets: Sequence[int]) -> list[Proposal]:
        return [Proposal(self._tokens[:budget]) for budget in budgets]

    def forget(self, context: DraftContext) -> None:
        """Nothing is kept."""
