"""ReferenceRunner: every cached, ragged, rolled-back step equals the model's forward without a cache."""

from __future__ import annotations

import random

import pytest
import torch
from shadow_rows import ShadowRows, assert_like_a_fresh_prefill, close, random_parents
from transformers import GPT2Config, GPT2LMHeadModel

from foredraft.errors import ExecutionError
from foredraft.execution import ModelRunner, ReferenceRunner, RowInput
from tiny_models import (
    CONTEXT,
    FAMILIES,
    SLIDING_FAMILIES,
    WINDOW,
    family,
    llama,
    random_tokens,
    uncached_logits,
)


def _runner(name: str, **options) -> ReferenceRunner:
    return ReferenceRunner(family(name), context_length=CONTEXT, **options)


def _shadow(name: str, num_rows: int = 3) -> ShadowRows:
    return ShadowRows(_runner(name), family(name), num_rows)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", range(2))
def test_random_traces_equal_uncached_forwards(name, seed):
    """Any order of ragged steps, rejections, copies, growth and trees must leave the true prefix visible."""
    choose = random.Random(seed)
    shadow = _shadow(name)
    for _ in range(25):
        shadow.random_operation(choose, limit=90)
    assert_like_a_fresh_prefill(shadow)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", range(100, 130))
def test_many_random_traces_equal_uncached_forwards(name, seed):
    """As above, longer and with more seeds: a fault that needs a rare order of operations."""
    choose = random.Random(seed)
    shadow = _shadow(name, num_rows=1 + seed % 5)
    for _ in range(60):
        shadow.random_operation(choose, limit=150)
    assert_like_a_fresh_prefill(shadow)


@pytest.mark.parametrize("name", SLIDING_FAMILIES)
@pytest.mark.parametrize("prompt_length", [4, 15, 16, 17, 40])
def test_a_sliding_window_is_crossed_and_rolled_back_over(name, prompt_length):
    """Keys that left the window must come back when a rejection moves the window back."""
    choose = random.Random(prompt_length)
    shadow = _shadow(name, num_rows=2)
    shadow.step([RowInput(0, random_tokens(prompt_length, 1), 1), RowInput(1, random_tokens(3, 2), 1)])
    while len(shadow.rows[0]) < prompt_length + 100:
        count = choose.choice([1, 5, 9, WINDOW, WINDOW + 4])
        tokens = random_tokens(count, len(shadow.rows[0]))
        shadow.step([RowInput(0, tokens, count), RowInput(1, tokens[:1], 1)])
        shadow.truncate(0, len(shadow.rows[0]) - choose.randrange(count))
    assert_like_a_fresh_prefill(shadow)


@pytest.mark.parametrize("name", SLIDING_FAMILIES)
def test_a_tree_deeper_than_the_window_sees_the_window_of_each_path(name):
    """In a tree a slot is no position; a window counted in slots would hide the wrong ancestors."""
    choose = random.Random(3)
    shadow = _shadow(name, num_rows=1)
    shadow.step([RowInput(0, random_tokens(14, 1), 1)])
    parents = [max(-1, node - choose.randint(1, 2)) for node in range(40)]
    shadow.step([RowInput(0, random_tokens(40, 2), 40, parents)])
    path = [39]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    assert len(path) > WINDOW
    shadow.keep(0, 14, path)
    shadow.step([RowInput(0, random_tokens(2, 4), 2)])
    assert_like_a_fresh_prefill(shadow)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_last_place_of_the_context_is_used_beside_a_longer_input(name):
    """Padding behind a full row must neither leave a position table nor change the row."""
    shadow = _shadow(name, num_rows=2)
    shadow.step([RowInput(0, random_tokens(CONTEXT - 1, 1), 1)])
    shadow.step([RowInput(0, [7], 1), RowInput(1, random_tokens(20, 2), 20)])
    assert shadow.runner.length(0) == CONTEXT
    shadow.truncate(0, CONTEXT - 3)
    shadow.step([RowInput(1, [9], 1), RowInput(0, [5, 6, 7], 3)])


def test_rows_in_any_order_and_with_gaps_are_told_apart():
    """Rows that are no contiguous slice take another way through the cache."""
    shadow = _shadow("llama", num_rows=5)
    for order in ([4, 0, 2], [1], [2, 3], [0, 2, 4], [3, 2, 1, 0], [0, 1, 2, 3, 4]):
        shadow.step([RowInput(row, random_tokens(3 + row, row), 2) for row in order])
    assert_like_a_fresh_prefill(shadow)


def test_trees_and_chains_share_a_step():
    """A tree's mask must not leak into the chains beside it, nor the other way round."""
    shadow = _shadow("qwen2", num_rows=3)
    shadow.step([RowInput(row, random_tokens(4 + row, row), 1) for row in range(3)])
    parents = [-1, 0, 0, 1, 2, 2]
    shadow.step(
        [
            RowInput(0, random_tokens(6, 5), 6, parents),
            RowInput(1, random_tokens(9, 6), 9),
            RowInput(2, random_tokens(4, 7), 4, random_parents(random.Random(1), 4)),
        ]
    )
    shadow.keep(0, 4, [0, 2, 5])
    shadow.truncate(2, 6)
    shadow.step([RowInput(0, [8], 1), RowInput(1, [8], 1)])
    assert_like_a_fresh_prefill(shadow)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
def test_a_failing_forward_leaves_rows_as_before(name, monkeypatch):
    """What a broken step half wrote must never be read."""
    shadow = _shadow(name)
    shadow.step([RowInput(row, random_tokens(5 + row, row), 1) for row in range(3)])
    layers = [m for m in family(name).modules() if type(m).__name__.endswith(("DecoderLayer", "GPT2Block"))]
    with monkeypatch.context() as patch:

        def broken(*args, **kwargs):
            raise RuntimeError("boom\nsecond line")

        patch.setattr(layers[-1], "forward", broken)
        with pytest.raises(ExecutionError, match="boom") as error:
            shadow.runner.step([RowInput(0, random_tokens(7, 9), 7), RowInput(2, [4], 1)])
        assert "\n" not in str(error.value)
    assert [shadow.runner.length(row) for row in range(3)] == [5, 6, 7]
    shadow.step([RowInput(row, random_tokens(2, row), 2) for row in range(3)])
    assert_like_a_fresh_prefill(shadow)


def test_an_error_without_a_message_is_reported_as_well(monkeypatch):
    """A MemoryError has no text; the report of it must not fail for that."""
    shadow = _shadow("llama")
    with monkeypatch.context() as patch:

        def exhausted(*args, **kwargs):
            raise MemoryError

        patch.setattr(family("llama").lm_head, "forward", exhausted)
        with pytest.raises(ExecutionError, match="MemoryError"):
            shadow.runner.step([RowInput(0, [4], 1)])
    shadow.step([RowInput(0, [4], 1)])


@pytest.mark.parametrize("failing_call", range(4))
def test_memory_that_runs_out_in_the_first_forward_leaves_a_usable_cache(failing_call, monkeypatch):
    """Keys that were allocated without their values would break every later step."""
    shadow = _shadow("llama")
    real, calls = torch.Tensor.new_zeros, iter(range(100))

    def scarce(*args, **kwargs):
        if next(calls) == failing_call:
            raise RuntimeError("out of memory")
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "new_zeros", scarce)
        with pytest.raises(ExecutionError, match="out of memory"):
            shadow.runner.step([RowInput(0, [4, 5], 1)])
    shadow.step([RowInput(0, [4, 5], 1)])


@pytest.mark.parametrize("failing_call", range(4))
def test_memory_that_runs_out_while_growing_leaves_a_usable_cache(failing_call, monkeypatch):
    """Half a cache grown and half not must neither lose contents nor refuse smaller requests."""
    shadow = _shadow("llama", num_rows=2)
    shadow.step([RowInput(row, random_tokens(6, row), 1) for row in range(2)])
    real, calls = torch.Tensor.new_zeros, iter(range(100))

    def scarce(*args, **kwargs):
        if next(calls) == failing_call:
            raise RuntimeError("out of memory")
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "new_zeros", scarce)
        with pytest.raises(ExecutionError, match="max_batch_size"):
            shadow.runner.reserve(8, 200)
    shadow.grow(3, 100)
    shadow.step([RowInput(row, random_tokens(70, row), 2) for row in range(3)])
    assert_like_a_fresh_prefill(shadow)


def test_hidden_layers_are_those_of_the_model():
    """A drafter that reads hidden states must get the layers and the places it asked for."""
    runner = _runner("llama", hidden_layers=(0, 1, 2))
    runner.reserve(2, 20)
    first, second = random_tokens(6, 1), random_tokens(9, 2)
    runner.step([RowInput(0, first[:3], 0), RowInput(1, second[:4], 0)])
    output = runner.step([RowInput(1, second[4:], 2), RowInput(0, first[3:], 3)])
    with torch.inference_mode():
        wholes = [
            family("llama")(input_ids=torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
            for tokens in (second, first)
        ]
    for layer in (0, 1, 2):
        expected = torch.cat([wholes[0].hidden_states[layer][0, -2:], wholes[1].hidden_states[layer][0, -3:]])
        close(output.hidden[layer], expected)


def test_truncation_beyond_what_a_row_holds_is_refused():
    """A row that claimed tokens it never saw would attend to garbage."""
    runner = _runner("llama")
    runner.reserve(1, 8)
    runner.step([RowInput(0, [5, 6], 0)])
    for length in (3, -1):
        with pytest.raises(ValueError, match="cannot truncate"):
            runner.truncate(0, length)
    assert runner.length(0) == 2


def test_a_prefill_without_logits_returns_none():
    """Logits for a whole prompt are the largest tensor of all; none were asked for."""
    runner = _runner("llama")
    runner.reserve(2, 16)
    output = runner.step([RowInput(0, [5, 6, 7], 0), RowInput(1, [8], 0)])
    assert output.logits.shape == (0, runner.vocab_size)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gives_float32_logits_near_the_models_own(dtype):
    """A mask or cache of another dtype would fail or lose the model's precision."""
    model = llama(dtype=dtype).to(dtype)
    runner = ReferenceRunner(model, context_length=64)
    runner.reserve(2, 40)
    tokens = random_tokens(12, 1)
    runner.step([RowInput(0, tokens[:5], 0), RowInput(1, tokens[:2], 0)])
    logits = runner.step([RowInput(1, tokens[2:], 1), RowInput(0, tokens[5:], 1)]).logits
    assert logits.dtype == torch.float32
    expected = uncached_logits(model, tokens)[-1]
    torch.testing.assert_close(logits, expected.expand(2, -1), rtol=0, atol=0.15)


@pytest.mark.parametrize("name", FAMILIES)
def test_bytes_per_token_are_known_before_the_first_step(name):
    """Memory planned from a wrong size would run out in the middle of a batch."""
    runner = _runner(name)
    assert isinstance(runner, ModelRunner)
    before = runner.cache_bytes_per_token
    runner.reserve(1, 4)
    runner.step([RowInput(0, [5], 0)])
    assert runner.cache_bytes_per_token == before > 0


def test_position_tables_shorter_than_the_reserved_room_do_not_fail():
    """The cache rounds its room up; positions must not follow it past the model's table."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=20, n_embd=16, n_layer=1, n_head=2)).eval()
    shadow = ShadowRows(ReferenceRunner(model, context_length=20), model, 2)
    shadow.step([RowInput(0, random_tokens(19, 1), 1)])
    shadow.step([RowInput(1, random_tokens(12, 2), 12), RowInput(0, [5], 1)])
