"""`LawProcessor` against Hugging Face's processors, row by row, and at its edges."""

from __future__ import annotations

import hugging_face
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process

from foredraft.errors import ExecutionError, ParameterError
from foredraft.laws import LawProcessor, LogitsProcessor
from foredraft.params import SamplingParams

VOCAB = 24
END = [2, 5]

ALONE: dict[str, dict] = {
    "nothing": {},
    "temperature": {"temperature": 0.6},
    "high temperature": {"temperature": 3.5},
    "top_k": {"top_k": 4},
    "top_p": {"top_p": 0.73},
    "min_p": {"min_p": 0.11},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "repetition reward": {"repetition_penalty": 0.6},
    "presence_penalty": {"presence_penalty": 1.3},
    "frequency_penalty": {"frequency_penalty": -0.8},
    "no_repeat_ngram_size 1": {"no_repeat_ngram_size": 1},
    "no_repeat_ngram_size 2": {"no_repeat_ngram_size": 2},
    "no_repeat_ngram_size 3": {"no_repeat_ngram_size": 3},
    "bad_words": {"bad_words": ((3,), (1, 2), (0, 1, 2), (1, 1))},
    "logit_bias": {"logit_bias": {0: -100.0, 7: 3.5, 23: 100.0}},
    "min_new_tokens": {"min_new_tokens": 4},
    "stop_token_ids": {"min_new_tokens": 3, "stop_token_ids": (9,)},
}

# Ids from a small part of the vocabulary, so that n-grams repeat and bad words begin.
token_lists = st.lists(st.integers(0, 4), max_size=6)
prompts = st.lists(st.integers(0, 4), min_size=4, max_size=8)
blocks = st.lists(token_lists, min_size=1, max_size=4)
seeds = st.integers(0, 2**32)

settings_of = st.fixed_dictionaries(
    {"temperature": st.sampled_from([1.0, 0.31, 1.9])},
    optional={
        "top_k": st.sampled_from([2, 3, 11, 1000]),
        "top_p": st.sampled_from([0.137, 0.513, 0.871, 0.993]),
        "min_p": st.sampled_from([0.013, 0.117, 0.511]),
        "repetition_penalty": st.sampled_from([0.7, 1.3]),
        "presence_penalty": st.sampled_from([-1.1, 0.9]),
        "frequency_penalty": st.sampled_from([-0.4, 0.6]),
        "no_repeat_ngram_size": st.integers(1, 4),
        "bad_words": st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), min_size=1, max_size=3),
        "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-9.0, 9.0, width=16), max_size=3),
        "min_new_tokens": st.integers(1, 8),
        "stop_token_ids": st.lists(st.integers(8, 11), max_size=2),
    },
)


def random_logits(rows: int, seed: int, vocab: int = VOCAB) -> torch.Tensor:
    """float32 `[rows, vocab]` without ties."""
    return 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def check_against_hugging_face(
    params: SamplingParams, prompt: list[int], output: list[int], block: list[list[int]], seed: int
) -> None:
    """Every row of a block must be what Hugging Face gives for that row's own prefix."""
    raw = random_logits(len(block), seed)
    processor = LawProcessor(params, prompt_length=len(prompt), end_token_ids=END)
    laws = processor.laws(raw, prompt + output, block)
    greedy = processor.greedy_tokens(raw, prompt + output, block).tolist()
    assert laws.dtype == torch.float32
    for row, continuation in enumerate(block):
        tokens = [*prompt, *output, *continuation]
        penalties = hugging_face.penalties(params, len(prompt), END)
        expected = hugging_face.law([*penalties, *hugging_face.warpers(params)], tokens, raw[row])
        torch.testing.assert_close(laws[row], expected, atol=1e-6, rtol=1e-5)
        assert torch.equal(laws[row] > 0, expected > 0)
        assert greedy[row] == int(hugging_face.run(penalties, tokens, raw[row]).argmax())


@pytest.mark.parametrize("values", ALONE.values(), ids=ALONE.keys())
@given(prompt=prompts, output=token_lists, block=blocks, seed=seeds)
@settings(deadline=None, max_examples=25)
def test_each_parameter_alone(
    values: dict, prompt: list[int], output: list[int], block: list[list[int]], seed: int
) -> None:
    """A parameter would mean something else than in transformers, or see the wrong prefix in a block."""
    check_against_hugging_face(SamplingParams(**{"temperature": 1.0, **values}), prompt, output, block, seed)


@given(values=settings_of, prompt=prompts, output=token_lists, block=blocks, seed=seeds)
@settings(deadline=None, max_examples=250)
def test_parameters_together(
    values: dict, prompt: list[int], output: list[int], block: list[list[int]], seed: int
) -> None:
    """Processors would be applied in another order than in transformers."""
    check_against_hugging_face(SamplingParams(**values), prompt, output, block, seed)


@given(values=settings_of, prompt=prompts, output=token_lists, block=blocks, seed=seeds)
@settings(deadline=None, max_examples=60)
def test_rows_do_not_see_each_other(
    values: dict, prompt: list[int], output: list[int], block: list[list[int]], seed: int
) -> None:
    """Drafted tokens would be verified against another law than the one plain decoding samples from."""
    params = SamplingParams(**values)
    raw = random_logits(len(block), seed)
    together = LawProcessor(params, prompt_length=len(prompt), end_token_ids=END).laws(
        raw, prompt + output, block
    )
    for row, continuation in enumerate(block):
        alone = LawProcessor(params, prompt_length=len(prompt), end_token_ids=END).laws(
            raw[row : row + 1], [*prompt, *output, *continuation], [[]]
        )
        assert torch.equal(together[row], alone[0])


@given(st.integers(1, 4), prompts, st.lists(st.tuples(token_lists, st.integers(0, 6)), max_size=5), seeds)
@settings(deadline=None, max_examples=60)
def test_rejected_tokens_leave_no_trace(
    size: int, prompt: list[int], rounds: list[tuple[list[int], int]], seed: int
) -> None:
    """A rejected draft would stay in the n-gram index and ban tokens in plain text."""
    params = SamplingParams(temperature=1.0, no_repeat_ngram_size=size, repetition_penalty=1.2)
    lasting = LawProcessor(params, prompt_length=len(prompt))
    committed = list(prompt)
    for drafted, accepted in rounds:
        block = [drafted[:count] for count in range(len(drafted) + 1)]
        raw = random_logits(len(block), seed)
        fresh = LawProcessor(params, prompt_length=len(prompt))
        assert torch.equal(lasting.laws(raw, committed, block), fresh.laws(raw, committed, block))
        committed += [*drafted[:accepted], seed % 5]


def test_minimum_length_counts_drafted_tokens() -> None:
    """The end would be forbidden for longer than asked, once for each round instead of each token."""
    params = SamplingParams(temperature=1.0, min_new_tokens=3)
    processor = LawProcessor(params, prompt_length=2, end_token_ids=END)
    laws = processor.laws(random_logits(4, 0), [7, 7, 8], [[], [8], [8, 8], [8, 8, 8]])
    assert (laws[:, END] > 0).tolist() == [[False, False], [False, False], [True, True], [True, True]]


def test_bad_word_is_cut_inside_a_block() -> None:
    """A two-token word would pass when its first half is drafted in the same block."""
    processor = LawProcessor(SamplingParams(temperature=1.0, bad_words=((3, 4),)), prompt_length=1)
    laws = processor.laws(random_logits(3, 1), [0], [[], [3], [3, 4]])
    assert (laws[:, 4] > 0).tolist() == [True, False, True]


@pytest.mark.parametrize("values", [{"temperature": 0.0}, {"temperature": 1.0, "top_k": 1}, {"top_p": 0.0}])
def test_greedy_settings_give_one_hot_laws(values: dict) -> None:
    """Temperature 0, top_k 1 or top_p 0 would still sample."""
    raw = random_logits(3, 2)
    processor = LawProcessor(SamplingParams(**{"temperature": 0.7, **values}), prompt_length=1)
    laws = processor.laws(raw, [1], [[], [1], [1, 2]])
    assert torch.equal(laws, torch.nn.functional.one_hot(raw.argmax(-1), VOCAB).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_greedy_ties_go_to_the_lowest_id(dtype: torch.dtype) -> None:
    """Half-precision ties would be broken differently in a block than in plain decoding."""
    raw = torch.zeros(3, 50_000, dtype=dtype)
    raw[1, [40_000, 123, 9_999]] = 4.0
    raw[2, [49_999, 49_998]] = 0.5
    processor = LawProcessor(SamplingParams(), prompt_length=1)
    assert processor.greedy_tokens(raw, [1], [[]] * 3).tolist() == [0, 123, 49_998]
    assert processor.laws(raw, [1], [[]] * 3).argmax(-1).tolist() == [0, 123, 49_998]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_half_and_double_logits(dtype: torch.dtype) -> None:
    """Laws would be computed in half precision, where draft and target laws lose their small tokens."""
    raw = random_logits(2, 3).to(dtype)
    params = SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.3, logit_bias={4: 1.0})
    processor = LawProcessor(params, prompt_length=2)
    laws = processor.laws(raw, [1, 4, 4], [[], [4]])
    assert laws.dtype == torch.float32
    assert torch.equal(laws, processor.laws(raw.float(), [1, 4, 4], [[], [4]]))


@pytest.mark.parametrize("values", ALONE.values(), ids=ALONE.keys())
def test_model_logits_are_left_alone(values: dict) -> None:
    """Reported log-probabilities, which are those before processing, would be the processed ones."""
    raw = random_logits(2, 4)
    before = raw.clone()
    processor = LawProcessor(
        SamplingParams(**{"temperature": 1.0, **values}), prompt_length=3, end_token_ids=END
    )
    processor.laws(raw, [0, 1, 2, 1], [[], [1]])
    assert torch.equal(raw, before)


DEGENERATE: dict[str, dict] = {
    **{f"temperature {value}": {"temperature": value} for value in (5e-324, 1e-60, 1e-40, 1e-9, 1e-4, 100.0)},
    **{f"top_p {value}": {"temperature": 1.0, "top_p": value} for value in (0.0, 5e-324, 1e-9, 1.0)},
    **{f"top_k {value}": {"temperature": 1.0, "top_k": value} for value in (0, 1, VOCAB, 10**6)},
    **{f"min_p {value}": {"temperature": 1.0, "min_p": value} for value in (1e-300, 1.0)},
    "all at once": {"temperature": 1e-9, "top_k": 10**6, "top_p": 1e-9, "min_p": 1.0},
    "strong penalties": {
        "temperature": 1e-4,
        "repetition_penalty": 100.0,
        "presence_penalty": 100.0,
        "frequency_penalty": -100.0,
    },
}


@pytest.mark.parametrize("values", DEGENERATE.values(), ids=DEGENERATE.keys())
@pytest.mark.parametrize("size", [1e-6, 1.0, 3e4, 1e30])
def test_degenerate_values_give_a_law(values: dict, size: float) -> None:
    """Extreme but allowed values would give NaN, an empty support or a law that does not sum to one."""
    raw = random_logits(2, 5) * size
    processor = LawProcessor(SamplingParams(**values), prompt_length=2)
    laws = processor.laws(raw, [1, 3, 3], [[], [4]])
    assert bool((laws >= 0).all())
    torch.testing.assert_close(laws.sum(-1), torch.ones(2))
    if "penalty" not in str(values):
        assert torch.equal(laws.gather(-1, raw.argmax(-1, keepdim=True)), laws.amax(-1, keepdim=True))


@pytest.mark.parametrize(
    "values", [{"temperature": 1e-9}, {"temperature": 1.0, "top_p": 1e-9}, {"min_p": 1.0}]
)
def test_nearly_greedy_is_greedy(values: dict) -> None:
    """A temperature, top_p or min_p at its limit would leave a second token."""
    raw = random_logits(4, 6)
    laws = LawProcessor(SamplingParams(**{"temperature": 1.0, **values}), prompt_length=1).laws(
        raw, [1], [[]] * 4
    )
    assert torch.equal(laws, torch.nn.functional.one_hot(raw.argmax(-1), VOCAB).float())


@pytest.mark.parametrize(
    "values", [{"temperature": -1.0}, {"top_p": 1.5}, {"top_p": -1.0}, {"top_k": -1}, {"temperature": "0"}]
)
def test_values_out_of_range_are_refused(values: dict) -> None:
    """A value that has no law would reach the processor."""
    with pytest.raises(ParameterError, match=next(iter(values))):
        SamplingParams(**values)


@pytest.mark.parametrize("values", [{"temperature": 0.0}, {"temperature": 1.0, "top_p": 0.5}])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_unusable_logits_are_an_error(values: dict, bad: float) -> None:
    """A broken model would write token 0 for ever, or sample from NaN."""
    raw = random_logits(3, 7)
    raw[1, 20] = bad
    processor = LawProcessor(SamplingParams(**values), prompt_length=1)
    for method in (processor.laws, processor.greedy_tokens, processor.logits):
        with pytest.raises(ExecutionError, match="logits are NaN"):
            method(raw, [1], [[], [1], [1, 1]])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forbidding_every_token_is_an_error(temperature: float) -> None:
    """With nothing left to choose, a forbidden token would be chosen."""
    words = tuple((token,) for token in range(VOCAB))
    banned = LawProcessor(SamplingParams(temperature=temperature, bad_words=words), prompt_length=1)
    biased = LawProcessor(
        SamplingParams(temperature=temperature, logit_bias=dict.fromkeys(range(VOCAB), -float("inf"))),
        prompt_length=1,
    )
    for processor in (banned, biased):
        with pytest.raises(ExecutionError, match="forbid every token"):
            processor.laws(random_logits(1, 8), [1], [[]])


def test_ids_outside_the_vocabulary_are_ignored() -> None:
    """A draft with a smaller vocabulary would crash on the target's tokens, or penalise the wrong ones."""
    params = SamplingParams(
        temperature=1.0,
        bad_words=((99,), (1, 99)),
        logit_bias={99: 5.0, -1: 5.0},
        stop_token_ids=(99,),
        min_new_tokens=9,
        repetition_penalty=1.5,
        presence_penalty=1.0,
        no_repeat_ngram_size=2,
    )
    raw = random_logits(1, 9)
    laws = LawProcessor(params, prompt_length=1).laws(raw, [99, 99, 98], [[98, 99]])
    torch.testing.assert_close(laws, raw.softmax(-1))


def test_hugging_face_processors_are_run_for_every_row() -> None:
    """A caller's own processor would be ignored on drafted tokens, or see the wrong prefix."""
    seen: list[list[int]] = []

    def spy(input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        seen.append(input_ids[0].tolist())
        assert input_ids.shape[0] == scores.shape[0] == 1
        return scores

    own: list[LogitsProcessor] = [
        spy,
        logits_process.SuppressTokensLogitsProcessor([4, 6]),
        logits_process.NoRepeatNGramLogitsProcessor(2),
        logits_process.LogitsProcessorList([logits_process.ForcedEOSTokenLogitsProcessor(6, 2)]),
    ]
    raw, prefix, block = random_logits(3, 10), [1, 2, 1], [[], [2], [2, 3]]
    params = SamplingParams(temperature=0.7, top_k=5, repetition_penalty=1.4)
    laws = LawProcessor(params, prompt_length=2, logits_processors=own).laws(raw, prefix, block)
    assert seen == [[1, 2, 1], [1, 2, 1, 2], [1, 2, 1, 2, 3]]
    chain = [*hugging_face.penalties(params, 2, []), *own, *hugging_face.warpers(params)]
    for row, continuation in enumerate(block):
        expected = hugging_face.law(chain, prefix + continuation, raw[row])
        torch.testing.assert_close(laws[row], expected, atol=1e-6, rtol=1e-5)
    assert laws[2].argmax() == 2 and laws[2].count_nonzero() == 1


def test_one_continuation_for_each_row() -> None:
    """Rows would silently be processed with the continuation of another row, or be lost."""
    processor = LawProcessor(SamplingParams(temperature=1.0, repetition_penalty=1.1), prompt_length=1)
    with pytest.raises(ValueError, match="zip"):
        processor.laws(random_logits(2, 11), [1], [[]])
