"""PrefixRows: cached prefixes are reused and copied, and never taken for something they are not."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadow_rows import close

from foredraft.execution import PrefixRows, ReferenceRunner, RowInput, StepOutput
from foredraft.execution.prefix_rows import common_prefix_length
from tiny_models import family, random_tokens, uncached_logits


class _Interrupted(BaseException):
    """Ctrl-C, but never the real one."""


class _CountingRunner(ReferenceRunner):
    """Keeps what each row was fed, fails or is interrupted where told."""

    def __init__(self) -> None:
        super().__init__(family("llama"), context_length=256)
        self.fed: list[list[list[int]]] = []
        self.copies: list[tuple[int, int, int]] = []
        self.interrupt_after: str | None = None

    def step(self, inputs: Sequence[RowInput]) -> StepOutput:
        self.fed.append([list(row_input.tokens) for row_input in inputs])
        output = super().step(inputs)
        self._maybe_interrupt("step")
        return output

    def copy(self, source: int, destination: int, length: int) -> None:
        self.copies.append((source, destination, length))
        super().copy(source, destination, length)
        self._maybe_interrupt("copy")

    def truncate(self, row: int, length: int) -> None:
        super().truncate(row, length)
        self._maybe_interrupt("truncate")

    def keep(self, row: int, start: int, kept: Sequence[int]) -> None:
        super().keep(row, start, kept)
        self._maybe_interrupt("keep")

    def _maybe_interrupt(self, name: str) -> None:
        if self.interrupt_after == name:
            self.interrupt_after = None
            raise _Interrupted


def _fill(rows: PrefixRows, tokens: list[int]) -> int:
    row = rows.acquire(tokens, len(tokens) + 20)
    rows.prefill({row: tokens})
    return row


def _last_logits_are_right(rows: PrefixRows, row: int, tokens: list[int]) -> None:
    logits = rows.step([RowInput(row, tokens[rows.cached_length(row) :], 1)]).logits
    close(logits[0], uncached_logits(family("llama"), tokens)[-1])


def test_a_later_sequence_continues_a_row_that_was_given_back():
    """The next turn of a chat must not compute the whole chat again."""
    runner = _CountingRunner()
    rows = PrefixRows(runner)
    first = random_tokens(20, 1)
    row = _fill(rows, first)
    _last_logits_are_right(rows, row, first)
    rows.release(row)
    second = [*first, 5, 6, 7]
    runner.fed.clear()
    assert _fill(rows, second) == row
    assert runner.fed == [[[5, 6]]]
    _last_logits_are_right(rows, row, second)


def test_a_prefix_is_copied_from_a_running_row():
    """Samples of one prompt share its prefill, and the copy must not be tied to the original."""
    runner = _CountingRunner()
    rows = PrefixRows(runner)
    tokens = random_tokens(20, 1)
    first = _fill(rows, tokens)
    second = _fill(rows, tokens)
    assert runner.copies == [(first, second, 19)]
    assert len(runner.fed) == 1
    _last_logits_are_right(rows, first, tokens)
    rows.truncate(first, 3)
    _last_logits_are_right(rows, second, tokens)


def test_the_last_token_is_never_taken_over():
    """A step needs something to feed, even where the whole prompt is cached."""
    rows = PrefixRows(_CountingRunner())
    tokens = random_tokens(9, 1)
    row = _fill(rows, tokens)
    _last_logits_are_right(rows, row, tokens)
    rows.release(row)
    again = rows.acquire(tokens, 20)
    assert rows.cached_length(again) == len(tokens) - 1
    assert rows.cached_length(rows.acquire([tokens[0]], 20)) == 0


def test_a_row_in_use_is_never_handed_out():
    """Two sequences in one row would read each other's text."""
    rows = PrefixRows(_CountingRunner())
    tokens = random_tokens(9, 1)
    taken = {_fill(rows, tokens) for _ in range(4)}
    assert len(taken) == 4
    rows.release(2)
    assert _fill(rows, random_tokens(5, 2)) == 2


def test_reused_rows_forget_what_differs():
    """Stale keys behind a shared prefix would be attended to."""
    rows = PrefixRows(_CountingRunner())
    first = random_tokens(20, 1)
    rows.release(_fill(rows, first))
    second = [*first[:7], *random_tokens(9, 2)]
    row = _fill(rows, second)
    _last_logits_are_right(rows, row, second)
    third = [*second[:12], *random_tokens(4, 3)]
    rows.align(row, third)
    assert rows.cached_length(row) == 12
    _last_logits_are_right(rows, row, third)


@pytest.mark.parametrize("prefill_tokens", [1, 4, 7, 100])
def test_prefill_goes_in_pieces_and_leaves_the_last_token(prefill_tokens):
    """A piece lost or fed twice shifts everything after it."""
    runner = _CountingRunner()
    rows = PrefixRows(runner, prefill_tokens=prefill_tokens)
    prompts = [random_tokens(count, count) for count in (1, 2, 8, 15)]
    taken = [rows.acquire(prompt, 30) for prompt in prompts]
    rows.prefill(dict(zip(taken, prompts, strict=True)))
    assert all(len(tokens) <= prefill_tokens for step in runner.fed for tokens in step)
    assert [rows.cached_length(row) for row in taken] == [0, 1, 7, 14]
    assert len(runner.fed) == -(-14 // prefill_tokens)
    for row, prompt in zip(taken, prompts, strict=True):
        _last_logits_are_right(rows, row, prompt)


@pytest.mark.parametrize("where", ["step", "copy", "truncate", "keep"])
def test_an_interruption_leaves_no_stale_tokens(where):
    """What a row claims to hold must still be there after Ctrl-C between a change and its bookkeeping."""
    runner = _CountingRunner()
    rows = PrefixRows(runner)
    tokens, other = random_tokens(20, 1), random_tokens(20, 2)
    running, spare = _fill(rows, tokens), _fill(rows, other)
    rows.release(spare)
    runner.interrupt_after = where
    with pytest.raises(_Interrupted):
        if where == "step":
            rows.step([RowInput(running, [4, 5], 1)])
        elif where == "copy":
            rows.acquire(tokens, 30)
        elif where == "truncate":
            rows.truncate(spare, 4)
        else:
            rows.step([RowInput(running, [8, 9, 10], 1, [-1, 0, 0])])
            rows.keep(running, 19, [0, 2])
    rows.truncate(running, 0 if where == "keep" else min(19, rows.cached_length(running)))
    rows.release(running)
    for prompt in (other, tokens, [*tokens, 8, 10, 3]):
        row = _fill(rows, prompt)
        _last_logits_are_right(rows, row, prompt)


def test_tree_nodes_that_are_kept_are_recorded():
    """The record of a row decides what later sequences take over."""
    rows = PrefixRows(_CountingRunner())
    tokens = random_tokens(6, 1)
    row = _fill(rows, tokens)
    rows.step([RowInput(row, [tokens[-1], 8, 9, 10], 4, [-1, 0, 0, 2])])
    rows.keep(row, 5, [0, 2, 3])
    rows.release(row)
    following = [*tokens, 9, 10, 11, 12]
    runner = rows.runner
    assert isinstance(runner, _CountingRunner)
    runner.fed.clear()
    assert _fill(rows, following) == row
    assert runner.fed == [[[11]]]
    _last_logits_are_right(rows, row, following)


@pytest.mark.parametrize("seed", range(4))
def test_random_sequences_of_prompts_read_only_their_own_tokens(seed):
    """Any order of taking, growing, rejecting and giving back rows, with prompts that share prefixes."""
    choose = random.Random(seed)
    rows = PrefixRows(_CountingRunner(), prefill_tokens=5)
    trunk = random_tokens(30, seed)
    live: dict[int, list[int]] = {}
    for _ in range(40):
        if live and choose.random() < 0.6:
            row = choose.choice(sorted(live))
            if choose.random() < 0.3:
                rows.release(row)
                del live[row]
                continue
            drafted = random_tokens(choose.randint(0, 4), choose.randrange(1000))
            start = rows.cached_length(row)
            rows.step([RowInput(row, [*live[row][start:], *drafted], 1)])
            accepted = choose.randint(0, len(drafted))
            live[row] += [*drafted[:accepted], choose.randrange(3, 64)]
            rows.truncate(row, len(live[row]) - 1)
        elif len(live) < 5:
            tokens = [*trunk[: choose.randint(1, 30)], *random_tokens(choose.randint(0, 3), seed)]
            live[_fill(rows, tokens)] = tokens
    for row, tokens in live.items():
        _last_logits_are_right(rows, row, tokens)


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_prefix_length_is_that_of_a_plain_loop(left, right):
    """The bisection must agree with comparing one by one, tuples and lists alike."""
    expected = 0
    while expected < min(len(left), len(right)) and left[expected] == right[expected]:
        expected += 1
    assert common_prefix_length(left, right) == expected
    assert common_prefix_length(tuple(left), right) == expected
