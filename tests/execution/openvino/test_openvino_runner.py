"""The OpenVINO runner against the models' own forward."""

from __future__ import annotations

import copy
import functools
import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_decoders import FAMILIES, VOCABULARY, full_forward, tiny_model

from foredraft.errors import ExecutionError
from foredraft.execution import ModelRunner, ReferenceRunner, RowInput, check_rollback

# Not "openvino": this folder answers to that name where the package is missing.
pytest.importorskip("openvino.opset13")
OpenVinoRunner: Any = importlib.import_module("foredraft.execution.openvino").OpenVinoRunner
torch.set_num_threads(1)

_ROWS = 3
_TOLERANCE = {"f32": 1e-3, "f16": 3e-2, "bf16": 2e-1, "int8": 4e-1}
"""Largest difference of a logit from the float32 model's; the logits reach about 5."""


@functools.cache
def _runner(family: str, **options: Any) -> Any:
    """One compiled runner a family and set of options, shared by the tests."""
    return OpenVinoRunner.from_model(tiny_model(family), **({"precision": "f32", "num_threads": 1} | options))


def _emptied(runner: Any, num_tokens: int = 160) -> Any:
    runner.reserve(_ROWS, num_tokens)
    for row in range(_ROWS):
        runner.truncate(row, 0)
    return runner


def _tokens(count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def _difference(measured: torch.Tensor, expected: torch.Tensor) -> float:
    assert measured.dtype == torch.float32
    assert measured.shape == expected.shape
    return float((measured - expected).abs().max())


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_traces_give_the_logits_of_a_full_forward(family: str, data: st.DataObject) -> None:
    """If this failed, some mix of ragged steps, rollbacks and copies would corrupt a row."""
    model, runner = tiny_model(family), _emptied(_runner(family))
    held: list[list[int]] = [[] for _ in range(_ROWS)]
    for _ in range(data.draw(st.integers(2, 5))):
        rows = data.draw(st.lists(st.integers(0, _ROWS - 1), min_size=1, max_size=_ROWS, unique=True))
        inputs: list[RowInput] = []
        for row in rows:
            fed = data.draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30))
            inputs.append(RowInput(row, fed, data.draw(st.integers(0, len(fed)))))
            held[row] = held[row] + fed
        measured = runner.step(inputs).logits
        expected = [
            full_forward(model, held[row_input.row]).logits[
                0, len(held[row_input.row]) - row_input.num_logits :
            ]
            for row_input in inputs
        ]
        assert _difference(measured, torch.cat(expected)) < _TOLERANCE["f32"] if len(measured) else True
        row = data.draw(st.integers(0, _ROWS - 1))
        del held[row][data.draw(st.integers(0, len(held[row]))) :]
        runner.truncate(row, len(held[row]))
        source, destination = data.draw(st.permutations(range(_ROWS)))[:2]
        if data.draw(st.booleans()):
            held[destination] = held[source][: data.draw(st.integers(0, len(held[source])))]
            runner.copy(source, destination, len(held[destination]))
        assert [runner.length(row) for row in range(_ROWS)] == [len(tokens) for tokens in held]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("precision", ["f16", "bf16", "int8"])
def test_smaller_weights_stay_within_their_tolerance(family: str, precision: str) -> None:
    """If this failed, a precision would be stored or scaled wrongly."""
    runner, tokens = _emptied(_runner(family, precision=precision)), _tokens(100)
    runner.step([RowInput(0, tokens[:70], 0)])
    measured = runner.step([RowInput(0, tokens[70:], 30)]).logits
    difference = _difference(measured, full_forward(tiny_model(family), tokens).logits[0, 70:])
    assert 0 < difference < _TOLERANCE[precision]


def test_8_bit_cache_is_close_and_refuses_trees() -> None:
    """If this failed, the rounded cache would be laid out wrongly, or trees moved within it."""
    runner, tokens = _emptied(_runner("llama", cache_precision="u8")), _tokens(100)
    runner.step([RowInput(0, tokens[:70], 0)])
    measured = runner.step([RowInput(0, tokens[70:], 30)]).logits
    assert _difference(measured, full_forward(tiny_model("llama"), tokens).logits[0, 70:]) < 0.3
    assert not runner.supports_tree
    assert runner.cache_bytes_per_token < _runner("llama").cache_bytes_per_token


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "mistral"])
def test_trees_beside_chains_equal_the_reference_runner(family: str) -> None:
    """If this failed, a tree's nodes would see their siblings, or `keep` would move the wrong nodes."""
    runner = _emptied(_runner(family))
    reference = ReferenceRunner(tiny_model(family), context_length=200)
    reference.reserve(_ROWS, 160)
    prefill = [RowInput(0, _tokens(60), 0), RowInput(1, _tokens(31, seed=1), 0)]
    tree = RowInput(0, _tokens(7, seed=2), 7, [-1, 0, 0, 1, 2, -1, 5])
    steps = [
        prefill,
        [RowInput(1, [1, 2, 3], 2), tree, RowInput(2, [4, 5, 6], 2, [-1, 0, 0])],
    ]
    for step in steps:
        measured, expected = (each.step(step).logits for each in (runner, reference))
    assert _difference(measured, expected) < _TOLERANCE["f32"]
    for each in (runner, reference):
        each.keep(0, 60, [0, 2, 4])
        each.copy(0, 2, 63)
    last = [RowInput(2, [7, 8], 2), RowInput(0, [9], 1)]
    measured, expected = (each.step(last).logits for each in (runner, reference))
    assert _difference(measured, expected) < _TOLERANCE["f32"]


def test_sliding_windows_refuse_trees() -> None:
    """If this failed, a tree would be run under windows that count its nodes wrongly."""
    runner = _emptied(_runner("mistral"))
    assert not runner.supports_tree
    with pytest.raises(ExecutionError, match="chains only"):
        runner.step([RowInput(0, [1, 2], 2, [-1, -1])])
    assert runner.length(0) == 0


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_hidden_states_are_those_of_the_model(family: str) -> None:
    """If this failed, heads trained on hidden states would read the wrong layer or row."""
    runner = _emptied(_runner(family, hidden_layers=(0, 2, 3)))
    tokens, other = _tokens(50), _tokens(20, seed=1)
    output = runner.step([RowInput(0, tokens, 3), RowInput(1, other, 2)])
    hidden = [full_forward(tiny_model(family), sequence).hidden_states for sequence in (tokens, other)]
    for layer in (0, 2, 3):
        expected = torch.cat([hidden[0][layer][0, -3:], hidden[1][layer][0, -2:]])
        assert _difference(output.hidden[layer], expected) < _TOLERANCE["f32"]


def test_growing_the_cache_keeps_its_contents() -> None:
    """If this failed, a row would forget its text when another one arrives."""
    runner, tokens = OpenVinoRunner.from_model(tiny_model("llama"), precision="f32"), _tokens(300)
    runner.reserve(1, 40)
    runner.step([RowInput(0, tokens[:40], 0)])
    runner.reserve(2, 130)
    runner.step([RowInput(1, tokens[:130], 0), RowInput(0, tokens[40:120], 0)])
    runner.reserve(4, 300)
    measured = runner.step([RowInput(0, tokens[120:], 180)]).logits
    assert (
        _difference(measured, full_forward(tiny_model("llama"), tokens).logits[0, 120:]) < _TOLERANCE["f32"]
    )


def test_a_step_beyond_the_reservation_changes_nothing() -> None:
    """If this failed, a refused step would leave the rows longer than their text."""
    runner = OpenVinoRunner.from_model(tiny_model("llama"), precision="f32")
    runner.reserve(2, 32)
    runner.step([RowInput(0, _tokens(20), 0)])
    with pytest.raises(ExecutionError, match="32 are reserved"):
        runner.step([RowInput(1, _tokens(5), 1), RowInput(0, _tokens(20), 1)])
    assert (runner.length(0), runner.length(1)) == (20, 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_passes_the_check_at_load(family: str) -> None:
    """If this failed, the loader would refuse the runner for this family."""
    runner = _emptied(_runner(family))
    assert isinstance(runner, ModelRunner)
    check_rollback(runner, tiny_model(family))


def test_takes_numpy_tensors_and_reads_each_once() -> None:
    """If this failed, mapped files could not be given, or would be read again and again."""
    reads: list[str] = []

    class Recorded(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            reads.append(name)
            return super().__getitem__(name)

    model = tiny_model("llama")
    tensors = Recorded({name: tensor.numpy() for name, tensor in model.state_dict().items()})
    runner = _emptied(OpenVinoRunner(model.config, tensors, precision="f32"))
    assert sorted(reads) == sorted(set(reads))
    measured = runner.step([RowInput(0, _tokens(10), 10)]).logits
    assert _difference(measured, full_forward(model, _tokens(10)).logits[0]) < _TOLERANCE["f32"]


def test_compiled_models_are_found_again(tmp_path: Path) -> None:
    """If this failed, every start would compile, or a kept model would compute something else."""
    logits: list[torch.Tensor] = []
    for _ in range(2):
        runner = OpenVinoRunner.from_model(
            tiny_model("llama"), precision="int8", compiled_folder=tmp_path, hidden_layers=(1,)
        )
        logits.append(_emptied(runner).step([RowInput(0, _tokens(40), 40)]).logits)
        files = sorted(path.name for path in tmp_path.rglob("*.blob"))
        assert len(files) == 1
    assert torch.equal(*logits)


@pytest.mark.parametrize(
    ("dtype", "precision"), [(torch.float32, "f32"), (torch.float16, "f16"), (torch.bfloat16, "bf16")]
)
def test_auto_keeps_the_type_of_the_weights(dtype: torch.dtype, precision: str) -> None:
    """If this failed, the runner would round a model that the user asked for as it is."""
    model = copy.deepcopy(tiny_model("llama")).to(dtype)
    assert OpenVinoRunner.from_model(model).precision == precision
