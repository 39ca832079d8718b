"""check_rollback: models that fit the cache of ragged rows pass, those that do not are refused at load."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
)

from foredraft.errors import UnsupportedModelError
from foredraft.execution import ReferenceRunner, RowInput, StepOutput, check_rollback
from tiny_models import CONTEXT, FAMILIES, family, llama


@pytest.mark.parametrize("name", FAMILIES)
def test_families_that_fit_pass_and_leave_empty_rows(name):
    """A check with false alarms would refuse good models; tokens left behind would be read later."""
    runner = ReferenceRunner(family(name), context_length=CONTEXT)
    check_rollback(runner, family(name))
    assert [runner.length(row) for row in range(2)] == [0, 0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_passes(dtype):
    """Rounding is no fault of the cache."""
    model = llama().to(dtype)
    check_rollback(ReferenceRunner(model, context_length=CONTEXT), model)


@pytest.mark.parametrize("context_length", [3, 5, 12])
def test_a_short_context_can_be_checked(context_length):
    """The check must not need more places than the model has."""
    model = llama(max_position_embeddings=context_length)
    check_rollback(ReferenceRunner(model, context_length=context_length), model)


class _ForgetsToForget(ReferenceRunner):
    """Truncation changes nothing (a sliding cache that cannot be trimmed behaves like this)."""

    def truncate(self, row: int, length: int) -> None:
        if not length:
            super().truncate(row, length)


class _ShiftsPositions(ReferenceRunner):
    """Every row gets the positions of the longest one, as left padding done wrong gives."""

    def _padded(self, inputs):
        tokens, positions, lengths = super()._padded(inputs)
        return tokens, positions.amax(0, keepdim=True).expand_as(positions), lengths


class _SeesTheFuture(ReferenceRunner):
    """No causal mask inside a block."""

    def _masks(self, inputs, lengths, positions, width):
        return torch.zeros_like(super()._masks(inputs, lengths, positions, width))


class _SwapsRows(ReferenceRunner):
    """Logits come back in the order of the rows' lengths."""

    def step(self, inputs: list[RowInput]) -> StepOutput:
        output = super().step(inputs)
        return StepOutput(output.logits.flip(0)) if len(inputs) > 1 else output


class _GivesNaN(ReferenceRunner):
    def step(self, inputs: list[RowInput]) -> StepOutput:
        return StepOutput(super().step(inputs).logits * torch.nan)


@pytest.mark.parametrize(
    "broken", [_ForgetsToForget, _ShiftsPositions, _SeesTheFuture, _SwapsRows, _GivesNaN]
)
def test_a_wrong_runner_is_refused(broken):
    """Each of these would change texts without an error."""
    with pytest.raises(UnsupportedModelError, match="LlamaForCausalLM"):
        check_rollback(broken(family("llama"), context_length=CONTEXT), family("llama"))


def _bloom() -> PreTrainedModel:
    return BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4))


def _mamba() -> PreTrainedModel:
    return MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=32, state_size=8, num_hidden_layers=2))


@pytest.mark.parametrize("build", [_bloom, _mamba])
def test_models_whose_state_does_not_fit_are_refused_in_one_line(build: Callable[[], PreTrainedModel]):
    """Position biases and recurrent states are not rolled back with the rows."""
    torch.manual_seed(0)
    model = build().eval()
    with pytest.raises(UnsupportedModelError) as error:
        check_rollback(ReferenceRunner(model, context_length=64), model)
    assert "\n" not in str(error.value)
    assert type(model).__name__ in str(error.value)


def test_an_error_without_a_message_is_still_one_line(monkeypatch):
    """An exception whose text is only white space must not break the report of it."""
    runner = ReferenceRunner(family("llama"), context_length=CONTEXT)

    def step(inputs):
        raise ValueError(" \n ")

    monkeypatch.setattr(runner, "step", step)
    with pytest.raises(UnsupportedModelError, match="no message"):
        check_rollback(runner, family("llama"))
