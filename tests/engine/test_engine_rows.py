"""The engine's rows: prompts computed once, rows used again, and drafts that differ from the target."""

from __future__ import annotations

import pytest
import torch
from engine_runs import CountingRunner, drafter_for, engine_for, generated, hugging_face, model_drafter, run

from foredraft.drafters import ModelDrafter
from foredraft.engine import Engine, Request
from foredraft.errors import ExecutionError
from foredraft.execution import ReferenceRunner
from foredraft.params import SamplingParams
from tiny_models import CONTEXT, VOCAB, WINDOW, family, llama, random_tokens

GREEDY = SamplingParams(max_new_tokens=20, ignore_eos=True)
SAMPLED = SamplingParams(max_new_tokens=12, ignore_eos=True, temperature=1.0, seed=3)


def _fed_to_prefill(runner: CountingRunner) -> int:
    return sum(len(fed.tokens) for inputs in runner.steps for fed in inputs if not fed.num_logits)


def _samples(engine: Engine, prompt: list[int], params: SamplingParams, count: int) -> list[list[int]]:
    sequences = [engine.add(Request(prompt, params, sample_index=index)) for index in range(count)]
    while engine.has_unfinished:
        engine.step()
    return [sequence.new_tokens for sequence in sequences]


@pytest.mark.parametrize("slices", [1, 3, 8])
@pytest.mark.parametrize("rule", ["token", "block", "seed-exact"])
def test_samples_of_a_prompt_compute_it_once_and_are_as_each_alone(slices, rule):
    """n samples must neither cost n prefills nor know of each other."""
    prompt = random_tokens(30, 1)
    runner = CountingRunner(family("llama"))
    engine = engine_for(runner, drafter_for("noise", rule=rule), 3, rule, verify_batch_size=slices)
    together = _samples(engine, prompt, SAMPLED, 6)
    assert _fed_to_prefill(runner) == len(prompt) - 1
    assert len(set(map(tuple, together))) == 6
    for index in (0, 5):
        engine = engine_for(family("llama"), drafter_for("noise", rule=rule), 3, rule)
        sequence = engine.add(Request(prompt, SAMPLED, sample_index=index))
        while engine.has_unfinished:
            engine.step()
        assert sequence.new_tokens == together[index]


def test_prompts_in_a_batch_that_differ_are_all_computed():
    """Copying from a prompt that is only similar would answer the wrong question."""
    one = random_tokens(12, 1)
    prompts = [one, [*one[:-2], 9, 9], one, [*one, 4], random_tokens(12, 2), one[:5]]
    texts = generated(engine_for(family("llama"), drafter_for("noise"), 3), prompts, GREEDY)
    assert texts == [hugging_face(family("llama"), prompt, 20) for prompt in prompts]


@pytest.mark.parametrize("drafter", [None, "noise", "ngram"])
def test_the_next_turn_reuses_the_last_and_gives_the_same_text(drafter):
    """A chat must not be computed again each turn, nor read what was rejected in the turn before."""
    runner = CountingRunner(family("llama"))
    engine = engine_for(runner, drafter_for(drafter) if drafter else None, 4)
    prompt = random_tokens(9, 1)
    for turn in range(4):
        runner.steps.clear()
        [text] = generated(engine, [prompt], GREEDY)
        assert text == hugging_face(family("llama"), prompt, 20)
        assert _fed_to_prefill(runner) == (8 if not turn else 3)
        prompt = [*prompt, *text, *random_tokens(3, turn)]


def test_requests_that_share_only_a_beginning_give_their_own_text():
    """A row taken over must forget where the new prompt differs."""
    engine = engine_for(family("gpt2"), drafter_for("noise", "gpt2"), 4)
    trunk = random_tokens(20, 1)
    for length in (20, 11, 3, 15, 20):
        prompt = [*trunk[:length], 7, length]
        assert generated(engine, [prompt], GREEDY) == [hugging_face(family("gpt2"), prompt, 20)]


def test_rows_for_a_batch_are_allocated_at_once():
    """Growing by one row copies the whole cache each time: quadratic in the batch."""
    shapes: list[int] = []

    class Runner(CountingRunner):
        def reserve(self, num_rows: int, num_tokens: int) -> None:
            super().reserve(num_rows, num_tokens)
            if not shapes or self._cache.num_rows != shapes[-1]:
                shapes.append(self._cache.num_rows)

    engine = engine_for(Runner(family("llama")), max_batch_size=16, verify_batch_size=8)
    run(engine, [random_tokens(5, index) for index in range(20)], GREEDY.replace(max_new_tokens=3))
    assert shapes == [8, 16]


@pytest.mark.parametrize("drafter", [None, "copy"])
def test_a_sequence_of_nan_does_not_poison_the_row_that_it_leaves(drafter):
    """A masked place weighs nothing, but nothing times NaN is NaN in the next sequence."""
    model = llama()
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = torch.nan
    params = GREEDY.replace(bad_words=((7,),))
    engine = engine_for(model, model_drafter(model) if drafter else None, 2)
    failed, long = (engine.add(Request(prompt, params)) for prompt in ([5, 6, *[7] * 40], [5, *[9] * 50]))
    engine.step()
    assert failed.finish_reason == "error" and isinstance(failed.error, ExecutionError)
    # In the row that was left behind; beside the longer row it is read up to that one's length.
    short = engine.add(Request([5, 6], params))
    while engine.has_unfinished:
        engine.step()
    for sequence in (long, short):
        alone = generated(engine_for(llama()), [sequence.request.prompt], params)
        assert [sequence.new_tokens] == alone


def test_a_failing_prefill_ends_its_slice_alone():
    """Sequences that were admitted with it but not in its forward go on."""

    class Runner(CountingRunner):
        def step(self, inputs):
            if len(self.steps) == 0 and not inputs[0].num_logits:
                self.steps.append(list(inputs))
                raise ExecutionError("injected")
            return super().step(inputs)

    prompts = [random_tokens(5, index) for index in range(5)]
    sequences = run(engine_for(Runner(family("llama")), verify_batch_size=2), prompts, GREEDY)
    assert [s.finish_reason for s in sequences] == ["error", "error", "length", "length", "length"]
    for sequence, prompt in zip(sequences[2:], prompts[2:], strict=True):
        assert sequence.new_tokens == hugging_face(family("llama"), prompt, 20)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("length", [27, 30, 31, 32, 33, 100])
def test_a_draft_with_a_short_context_changes_nothing(length, temperature):
    """Past the draft's positions the target decodes alone; a short request beside it is drafted on."""
    draft = ReferenceRunner(llama(max_position_embeddings=32), context_length=32)
    drafter = ModelDrafter(draft, vocab_size=VOCAB, coupled=True)
    prompts = [random_tokens(length, 1), [5, 6]]
    params = GREEDY.replace(max_new_tokens=40, temperature=temperature, seed=1)
    plain = generated(engine_for(family("llama")), prompts, params)
    long, short = run(engine_for(family("llama"), drafter, 4, "seed-exact"), prompts, params)
    assert [long.new_tokens, short.new_tokens] == plain
    assert short.stats.drafted > 0
    assert (long.stats.drafted > 0) == (length + 4 <= 32)


@pytest.mark.parametrize("vocab_size", [56, 72])
@pytest.mark.parametrize("rule", ["token", "block", "seed-exact"])
def test_a_draft_of_another_padding_changes_nothing(vocab_size, rule):
    """Ids that only one of the two has must neither be proposed nor crash the comparison of laws."""
    draft = llama(vocab_size=vocab_size)
    shared = min(vocab_size, VOCAB)
    with torch.no_grad():
        for mine, theirs in zip(draft.parameters(), family("llama").parameters(), strict=True):
            same = tuple(slice(min(sizes)) for sizes in zip(mine.shape, theirs.shape, strict=True))
            mine[same] = theirs[same]
        draft.lm_head.weight[shared:] *= 10.0
    prompts = [random_tokens(5, 1, shared), random_tokens(9, 2, shared)]
    plain = generated(engine_for(family("llama")), prompts, GREEDY)
    engine = engine_for(family("llama"), model_drafter(draft, rule=rule), 4, rule)
    sequences = run(engine, prompts, GREEDY)
    assert [sequence.new_tokens for sequence in sequences] == plain
    assert all(sequence.stats.accepted > 0 for sequence in sequences)
    assert vocab_size > VOCAB or any(token >= vocab_size for text in plain for token in text)
    # An id that the draft lacks must not have ended drafting for later requests.
    sampled = run(engine, prompts, SAMPLED)
    assert all(sequence.stats.drafted > 0 for sequence in sampled)


@pytest.mark.parametrize(("target", "draft"), [("llama", "mistral"), ("mistral", "llama")])
@pytest.mark.parametrize("k", [4, WINDOW + 4])
def test_a_sliding_window_on_one_side_alone_changes_nothing(target, draft, k):
    """Target and draft keep caches of different kinds; each must follow the same text."""
    prompts = [random_tokens(length, length) for length in (4, 15, 16, 17, 40)]
    params = GREEDY.replace(max_new_tokens=30)
    plain = generated(engine_for(family(target)), prompts, params)
    sequences = run(engine_for(family(target), model_drafter(family(draft)), k), prompts, params)
    assert [sequence.new_tokens for sequence in sequences] == plain
    assert any(sequence.stats.accepted for sequence in sequences)


@pytest.mark.parametrize("drafter", [None, "copy", "ngram"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
def test_the_end_of_the_context_ends_the_text(name, drafter):
    """Blocks drafted over the last place would leave the position table; the text must fill the context."""
    prompts = [random_tokens(CONTEXT - 1, 1), random_tokens(CONTEXT - 12, 2), random_tokens(4, 3)]
    engine = engine_for(family(name), drafter_for(drafter, name) if drafter else None, 8)
    sequences = run(engine, prompts, GREEDY.replace(max_new_tokens=40))
    assert [sequence.finish_reason for sequence in sequences] == ["length"] * 3
    assert [len(sequence.new_tokens) for sequence in sequences] == [1, 12, 40]
    for sequence, prompt in zip(sequences, prompts, strict=True):
        assert sequence.new_tokens == hugging_face(family(name), prompt, len(sequence.new_tokens))
