"""How sequences end: end tokens, limits, cancellation and failures, in the middle of blocks as anywhere."""

from __future__ import annotations

import pytest
import torch
from engine_runs import (
    CountingRunner,
    FailingDrafter,
    FixedDrafter,
    drafter_for,
    engine_for,
    generated,
    hugging_face,
    run,
)

from foredraft.engine import Request, SpeculationStats
from foredraft.errors import ExecutionError
from foredraft.params import SamplingParams
from tiny_models import family, random_tokens, uncached_logits

PROMPT = random_tokens(5, 1)
PERIODIC = [5, 6, 7, 5, 6, 7, 5, 6]
COUNT = 16


def _params(**options) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": COUNT, **options})


@pytest.fixture(scope="module")
def reference() -> list[int]:
    return hugging_face(family("llama"), PROMPT, COUNT)


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("declared", ["eos", "stop_token_ids"])
def test_an_end_token_cuts_the_block_at_every_place(k, declared, reference):
    """Tokens behind an accepted end token were drafted by the same text and look right, but are not."""
    for place in range(COUNT):
        end = reference[place]
        expected = reference[: reference.index(end) + 1]
        params = _params(stop_token_ids=(end,)) if declared == "stop_token_ids" else _params()
        ends = {"end_token_ids": (end,)} if declared == "eos" else {}
        sequence = run(engine_for(family("llama"), drafter_for("copy"), k), [PROMPT], params, **ends)[0]
        assert (sequence.new_tokens, sequence.finish_reason) == (expected, "stop")
        assert sequence.stats.committed == len(expected)
        assert sequence.stats.accepted <= sequence.stats.drafted


def test_a_rejected_end_token_stops_nothing(reference):
    """Only the target may end the text."""
    end = next(token for token in range(3, 64) if token not in reference)
    for drafted in ([end], [end] * 4, [reference[0], end, end]):
        engine = engine_for(family("llama"), FixedDrafter(drafted), 4)
        sequence = run(engine, [PROMPT], _params(), end_token_ids=(end,))[0]
        assert (sequence.new_tokens, sequence.finish_reason) == (reference, "length")


@pytest.mark.parametrize("drafter", ["copy", "ngram"])
@pytest.mark.parametrize("limit", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("k", [1, 8, 32])
def test_limits_are_met_exactly(drafter, limit, k):
    """A block that overshoots the limit, or a limit that is reported as a stop."""
    prompt = PERIODIC
    expected = hugging_face(family("llama"), prompt, 5)[:limit]
    engine = engine_for(family("llama"), drafter_for(drafter), k)
    sequence = run(engine, [prompt], _params(max_new_tokens=limit))[0]
    assert (sequence.new_tokens, sequence.finish_reason) == (expected, "length")
    assert sequence.stats.drafted <= max(0, limit - 1) * max(1, limit)


def test_an_end_token_at_the_limit_is_a_stop(reference):
    """Both at once: the text is complete, and must be reported so."""
    end = reference[3]
    limit = reference.index(end) + 1
    engine = engine_for(family("llama"), drafter_for("copy"), 8)
    sequence = run(engine, [PROMPT], _params(max_new_tokens=limit), end_token_ids=(end,))[0]
    assert (sequence.new_tokens, sequence.finish_reason) == (reference[:limit], "stop")


@pytest.mark.parametrize("drafter", ["copy", "noise", "ngram"])
def test_no_end_token_before_the_minimum(drafter, reference):
    """Counted in rounds instead of tokens, the ban would last too long or end too early."""
    end = reference[2]
    for minimum in (1, 3, 8, 12):
        params = _params(min_new_tokens=minimum)
        expected = hugging_face(
            family("llama"), PROMPT, COUNT, min_new_tokens=minimum, eos_token_id=end, pad_token_id=0
        )
        engine = engine_for(family("llama"), drafter_for(drafter), 8)
        sequence = run(engine, [PROMPT], params, end_token_ids=(end,))[0]
        assert sequence.new_tokens == expected
        assert end not in sequence.new_tokens[:minimum]


def test_ignored_end_tokens_end_nothing(reference):
    """ignore_eos is for measuring, where every text must have the same length."""
    engine = engine_for(family("llama"), drafter_for("copy"), 4)
    sequence = run(engine, [PROMPT], _params(ignore_eos=True), end_token_ids=(reference[2],))[0]
    assert sequence.new_tokens == reference


class _StopsAt:
    def __init__(self, count: int) -> None:
        self.seen: list[int] = []
        self._count = count

    def push(self, token_id: int) -> bool:
        self.seen.append(token_id)
        return len(self.seen) == self._count


@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_a_listener_ends_a_sequence_inside_a_block(count, reference):
    """A stop string completed in the middle of a block: nothing after it may be committed or told."""
    listener = _StopsAt(count)
    engine = engine_for(family("llama"), drafter_for("copy"), 8)
    sequence = run(engine, [PROMPT], _params(), listener=listener)[0]
    assert sequence.new_tokens == listener.seen == reference[:count]
    assert sequence.finish_reason == "stop"


def test_a_cancelled_sequence_leaves_the_others_alone(reference):
    """Running or still waiting, its row and its place are free for others at once."""
    engine = engine_for(family("llama"), drafter_for("noise"), 3, max_batch_size=2)
    sequences = [engine.add(Request(PROMPT, _params())) for _ in range(5)]
    engine.step()
    partial = list(sequences[0].new_tokens)
    engine.cancel(sequences[0])
    engine.cancel(sequences[3])
    while engine.has_unfinished:
        engine.step()
    engine.cancel(sequences[1])
    assert (sequences[0].new_tokens, sequences[3].new_tokens) == (partial, [])
    assert [s.finish_reason for s in sequences] == ["cancelled", "length", "length", "cancelled", "length"]
    assert all(sequences[index].new_tokens == reference for index in (1, 2, 4))


class _FailingRunner(CountingRunner):
    """Fails, or gives unusable logits, in chosen forwards with logits."""

    def __init__(self, failing: dict[int, BaseException | float], row: int = 0) -> None:
        super().__init__(family("llama"))
        self._failing = failing
        self._row = row

    def step(self, inputs):
        output = super().step(inputs)
        event = self._failing.get(len(self.verifications)) if inputs[0].num_logits else None
        if isinstance(event, BaseException):
            for row_input in inputs:
                self.truncate(row_input.row, self.length(row_input.row) - len(row_input.tokens))
            raise event
        if event is not None:
            output.logits[self._row] = event
        return output


@pytest.mark.parametrize("drafter", [None, "copy", "ngram"])
def test_a_failing_slice_does_not_end_the_others(drafter, reference):
    """Texts so far are kept, the other slices and later requests go on with the right text."""
    runner = _FailingRunner({4: ExecutionError("injected")})
    engine = engine_for(runner, drafter_for(drafter) if drafter else None, 1, verify_batch_size=2)
    sequences = run(engine, [PROMPT] * 5, _params())
    failed = [sequence for sequence in sequences if sequence.finish_reason == "error"]
    assert len(failed) == 2
    assert all(str(s.error) == "injected" and s.new_tokens == reference[: len(s.new_tokens)] for s in failed)
    assert all(0 < len(sequence.new_tokens) < COUNT for sequence in failed)
    assert sum(sequence.new_tokens == reference for sequence in sequences) == 3
    assert generated(engine, [PROMPT] * 3, _params()) == [reference] * 3


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("drafter", [None, "copy"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_unusable_logits_end_their_sequence_alone(value, drafter, temperature):
    """A NaN taken for a token would be silent; taken for a failure of the batch, unfair."""
    runner = _FailingRunner({3: value})
    engine = engine_for(runner, drafter_for(drafter) if drafter else None, 2)
    params = _params(temperature=temperature, seed=1)
    sequences = run(engine, [PROMPT, random_tokens(7, 2)], params)
    assert [sequence.finish_reason for sequence in sequences] == ["error", "length"]
    assert isinstance(sequences[0].error, ExecutionError)
    alone = generated(engine_for(family("llama"), drafter_for(drafter) if drafter else None, 2),
                      [random_tokens(7, 2)], params)  # fmt: skip
    assert sequences[1].new_tokens == alone[0]


def test_an_interruption_ends_the_batch_and_nothing_after_it(reference):
    """Ctrl-C is raised on, and the engine must be usable afterwards."""

    class Interrupted(BaseException):
        pass

    runner = _FailingRunner({2: Interrupted()})
    engine = engine_for(runner, drafter_for("copy"), 2)
    sequences = [engine.add(Request(PROMPT, _params())) for _ in range(2)]
    with pytest.raises(Interrupted):
        while True:
            engine.step()
    assert not engine.has_unfinished
    assert [sequence.finish_reason for sequence in sequences] == ["error", "error"]
    assert generated(engine, [PROMPT], _params()) == [reference]


def test_an_interrupted_prefill_leaves_no_sequence_hanging(reference):
    """A sequence that is neither waiting nor running would never end, and would keep its row."""

    class Interrupted(BaseException):
        pass

    runner = CountingRunner(family("llama"))
    engine = engine_for(runner)
    sequence = engine.add(Request(PROMPT, _params()))
    real = runner.step

    def interrupted(inputs):
        real(inputs)
        raise Interrupted

    runner.step = interrupted
    with pytest.raises(Interrupted):
        engine.step()
    runner.step = real
    assert sequence.is_finished
    assert not engine.has_unfinished
    assert generated(engine, [PROMPT], _params()) == [reference]
    assert {row_input.row for inputs in runner.steps for row_input in inputs} == {0}


@pytest.mark.parametrize("rule", ["token", "block", "seed-exact"])
@pytest.mark.parametrize("failing_call", [0, 1, 3])
def test_a_failing_drafter_is_gone_on_without(rule, failing_call, reference):
    """Drafting is optional: its failure must cost time, never text."""
    drafter = FailingDrafter(drafter_for("noise", rule=rule), failing_call, ExecutionError("no memory"))
    engine = engine_for(family("llama"), drafter, 2, rule)
    sequences = run(engine, [PROMPT, PROMPT], _params())
    assert all(s.new_tokens == reference and s.finish_reason == "length" for s in sequences)
    assert all(s.stats.draft_rounds == failing_call for s in sequences)


@pytest.mark.parametrize("drafter", [None, "copy", "noise", "random"])
@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_logprobs_are_the_targets_at_every_place(drafter, temperature):
    """Of the draft, of a rejected place, or shifted by one they would be silently wrong."""
    params = _params(logprobs=4, temperature=temperature, seed=2)
    engine = engine_for(family("llama"), drafter_for(drafter) if drafter else None, 3)
    for sequence in run(engine, [PROMPT, random_tokens(9, 4)], params):
        expected = uncached_logits(family("llama"), sequence.tokens).log_softmax(-1)
        assert len(sequence.logprobs) == len(sequence.new_tokens)
        for index, reported in enumerate(sequence.logprobs):
            place = sequence.prompt_length + index
            law = expected[place - 1]
            assert reported.logprob == pytest.approx(float(law[sequence.tokens[place]]), abs=1e-4)
            best = law.topk(4)
            assert list(reported.top.values()) == pytest.approx(best.values.tolist(), abs=1e-4)
            assert set(reported.top) == set(best.indices.tolist())


@pytest.mark.parametrize("drafter", [None, "copy", "noise", "random", "ngram"])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_statistics_add_up(drafter, rule):
    """Numbers that users tune by: each is tied to the others and to the text."""
    engine = engine_for(family("llama"), drafter_for(drafter) if drafter else None, 3, rule)
    sequences = run(engine, [PROMPT, PERIODIC, random_tokens(2, 5)], _params(temperature=0.8, seed=4))
    total = SpeculationStats()
    for sequence in sequences:
        stats = sequence.stats
        assert stats.committed == len(sequence.new_tokens) == stats.accepted + stats.target_steps
        assert stats.accepted <= stats.drafted
        assert stats.draft_rounds <= stats.target_steps
        assert sum(stats.drafted_per_position) == stats.drafted
        assert sum(stats.accepted_per_position) == stats.accepted
        assert stats.accepted_per_position == sorted(stats.accepted_per_position, reverse=True)
        assert stats.prefill_seconds + stats.draft_seconds + stats.target_seconds > 0
        total.add(stats)
    assert total.drafted == sum(sequence.stats.drafted for sequence in sequences)
    assert sum(total.accepted_per_position) == total.accepted
    assert (total.drafted > 0) == (drafter is not None)
