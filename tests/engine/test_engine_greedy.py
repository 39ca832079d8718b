"""Greedy and seed-exact decoding: the text is that of plain decoding, whatever is drafted."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from engine_runs import (
    DRAFTERS,
    CountingRunner,
    FixedDrafter,
    TreeDrafter,
    drafter_for,
    engine_for,
    generated,
    hugging_face,
    model_drafter,
    run,
)

from foredraft.params import SamplingParams
from tiny_models import FAMILIES, SLIDING_FAMILIES, WINDOW, family, llama, noisy, random_tokens

GREEDY = SamplingParams(max_new_tokens=18, ignore_eos=True)
PROMPTS = [[10], random_tokens(2, 1), random_tokens(3, 2), random_tokens(17, 3)]


@cache
def _expected(name: str) -> list[list[int]]:
    return [hugging_face(family(name), prompt, GREEDY.max_new_tokens) for prompt in PROMPTS]


def _distinct_top(tokens: list[int]) -> bool:
    """Whether a text is more than one token repeated, so that a comparison can fail."""
    return len(set(tokens)) > 2


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_text_is_that_of_generate(name, drafter):
    """For every family, draft quality, draft length and prompt length (one token among them)."""
    model = family(name)
    expected = _expected(name)
    assert any(map(_distinct_top, expected))
    for k in (1, 3, 8):
        engine = engine_for(model, drafter_for(drafter, name), k)
        assert generated(engine, PROMPTS, GREEDY) == expected, k


@pytest.mark.parametrize("name", SLIDING_FAMILIES)
@pytest.mark.parametrize("drafter", ["noise", "ngram"])
def test_a_full_sliding_window_changes_nothing(name, drafter):
    """Long runs over the window, with blocks longer than it, where trimmed caches go wrong."""
    model = family(name)
    prompts = [random_tokens(count, count) for count in (4, 15, 16, 17, 40)]
    params = SamplingParams(max_new_tokens=45, ignore_eos=True)
    plain = generated(engine_for(model), prompts, params)
    assert plain[0] == hugging_face(model, prompts[0], 45)
    for k in (4, WINDOW + 4):
        assert generated(engine_for(model, drafter_for(drafter, name), k), prompts, params) == plain


@pytest.mark.parametrize("drafter", [None, "noise", "ngram"])
def test_slices_of_any_size_give_the_same_text_in_one_forward_each(drafter):
    """A slice is one target forward for all its rows; how rows are sliced must not show in the text."""
    prompts = [random_tokens(3 + 2 * index, index) for index in range(5)]
    params = SamplingParams(max_new_tokens=20, ignore_eos=True)
    expected = [hugging_face(family("llama"), prompt, 20) for prompt in prompts]
    for size in (1, 2, 3, 8):
        runner = CountingRunner(family("llama"))
        engine = engine_for(
            runner, drafter_for(drafter) if drafter else None, 4, verify_batch_size=size, max_batch_size=4
        )
        rounds: list[tuple[int, int]] = []

        def count(sequences, rounds=rounds, runner=runner):
            rounds.append((len(runner.verifications), sum(s.stats.target_steps for s in sequences)))

        sequences = run(engine, prompts, params, on_round=count)
        assert [sequence.new_tokens for sequence in sequences] == expected
        before = (0, 0)
        for forwards, row_steps in rounds:
            rows = row_steps - before[1]
            assert forwards - before[0] == -(-rows // size)
            before = (forwards, row_steps)
        assert max(len(inputs) for inputs in runner.verifications) == min(size, 4)


@pytest.mark.parametrize("style", ["random", "top", "adversarial"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
def test_trees_give_the_text_of_plain_decoding(style, temperature, name):
    """Whatever tree is drafted: siblings, repeats of the right token at wrong places, dead branches."""
    params = SamplingParams(max_new_tokens=24, ignore_eos=True, temperature=temperature, seed=5)
    prompts = PROMPTS[1:]
    plain = generated(engine_for(family(name)), prompts, params)
    texts = {tuple(prompt): text for prompt, text in zip(prompts, plain, strict=True)}
    for k in (1, 4, 9):
        engine = engine_for(family(name), TreeDrafter(texts, style), k, "seed-exact")
        sequences = run(engine, prompts, params)
        assert [sequence.new_tokens for sequence in sequences] == plain
        assert all(sequence.stats.accepted > 0 for sequence in sequences)
        assert all(sequence.stats.accepted < sequence.stats.drafted for sequence in sequences)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("sampling", [{}, {"top_k": 5, "temperature": 1.4}, {"repetition_penalty": 1.3}])
def test_seed_exact_text_is_that_of_plain_sampling(drafter, sampling):
    """With the target's own noise every draft must lead to the same sample."""
    params = SamplingParams(
        **{"temperature": 1.0, "max_new_tokens": 24, "seed": 3, "ignore_eos": True, **sampling}
    )
    plain = generated(engine_for(family("llama")), PROMPTS, params)
    for k in (1, 5):
        engine = engine_for(family("llama"), drafter_for(drafter, rule="seed-exact"), k, "seed-exact")
        assert generated(engine, PROMPTS, params) == plain


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.3},
        {"presence_penalty": 1.0},
        {"frequency_penalty": 0.7},
        {"no_repeat_ngram_size": 2},
        {"no_repeat_ngram_size": 3, "repetition_penalty": 1.1},
        {"bad_words": ((40,), (49, 21), (60, 11))},
        {"logit_bias": {20: 3.0, 40: -100.0}},
    ],
    ids=str,
)
@pytest.mark.parametrize("drafter", ["copy", "noise", "ngram"])
def test_penalties_and_bans_act_at_every_place_of_a_block(options, drafter):
    """Updated once a round, a penalty would get weaker the better the draft is."""
    params = SamplingParams(max_new_tokens=26, ignore_eos=True, **options)
    prompts = [[5, 6, 7, 5, 6, 7, 5, 6], random_tokens(5, 1)]
    plain = generated(engine_for(family("llama")), prompts, params)
    assert plain != generated(engine_for(family("llama")), prompts, GREEDY.replace(max_new_tokens=26))
    assert generated(engine_for(family("llama"), drafter_for(drafter), 8), prompts, params) == plain


@pytest.mark.parametrize("options", [{"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 2}], ids=str)
def test_penalised_text_is_that_of_generate(options):
    """Plain decoding itself must agree with the library that users compare with."""
    params = SamplingParams(max_new_tokens=30, ignore_eos=True, **options)
    prompt = random_tokens(5, 1)
    expected = hugging_face(family("llama"), prompt, 30, **options)
    assert generated(engine_for(family("llama"), drafter_for("noise"), 8), [prompt], params) == [expected]


@pytest.mark.parametrize("k", [1, 2, 4, 7])
@pytest.mark.parametrize("count", [1, 2, 5, 23, 24, 25])
def test_a_perfect_draft_needs_as_few_target_steps_as_possible(k, count):
    """N tokens take ceil(N / (k + 1)) forwards; more would be speed thrown away."""
    runner = CountingRunner(family("llama"))
    params = SamplingParams(max_new_tokens=count, ignore_eos=True)
    sequence = run(engine_for(runner, drafter_for("copy"), k), [random_tokens(5, 1)], params)[0]
    assert len(sequence.new_tokens) == count
    assert len(runner.verifications) == sequence.stats.target_steps == -(-count // (k + 1))
    assert sequence.stats.accepted == sequence.stats.drafted == count - sequence.stats.target_steps


@pytest.mark.parametrize(
    ("target_dtype", "draft_dtype"),
    [(torch.float32, torch.bfloat16), (torch.float32, torch.float16), (torch.bfloat16, torch.float32)],
)
def test_target_and_draft_may_differ_in_dtype(target_dtype, draft_dtype):
    """Laws are compared in float32; nothing may fail, and the text is the target's."""
    target, draft = llama().to(target_dtype), noisy(llama()).to(draft_dtype)
    prompts = PROMPTS[1:]
    for temperature in (0.0, 1.0):
        for rule in ("token", "block", "seed-exact"):
            params = GREEDY.replace(temperature=temperature, seed=1, repetition_penalty=1.1)
            engine = engine_for(target, model_drafter(draft, rule=rule), 4, rule)
            sequences = run(engine, prompts, params)
            assert all(s.error is None and s.stats.accepted > 0 for s in sequences)
            exact = target_dtype == torch.float32 and (rule == "seed-exact" or not temperature)
            if exact:
                plain = generated(engine_for(target), prompts, params)
                assert [sequence.new_tokens for sequence in sequences] == plain


def test_drafted_ids_that_the_target_would_never_choose_change_nothing():
    """A drafter that is always wrong costs time, not text."""
    prompts = PROMPTS[1:]
    plain = generated(engine_for(family("llama")), prompts, GREEDY)
    unused = [token for token in range(64) if not any(token in text for text in plain)][:6]
    sequences = run(engine_for(family("llama"), FixedDrafter(unused), 6), prompts, GREEDY)
    assert [sequence.new_tokens for sequence in sequences] == plain
    assert all(sequence.stats.accepted == 0 < sequence.stats.drafted for sequence in sequences)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", range(5))
def test_long_ragged_batches_give_the_text_of_generate(name, seed):
    """As the first test, with 150 tokens and eight prompts at a time."""
    model = family(name)
    prompts = [random_tokens(1 + (7 * index + seed) % 50, seed * 10 + index) for index in range(8)]
    expected = [hugging_face(model, prompt, 150) for prompt in prompts]
    params = SamplingParams(max_new_tokens=150, ignore_eos=True)
    for drafter in DRAFTERS:
        engine = engine_for(model, drafter_for(drafter, name), 1 + 3 * seed, verify_batch_size=3 + seed)
        assert generated(engine, prompts, params) == expected
