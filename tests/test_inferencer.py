"""The Python API: prompts of every kind, streaming, threads, ends and errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.generation.logits_process import SuppressTokensLogitsProcessor

from foredraft import Inferencer, LoadedModel, SamplingParams, SpeculativeInferencer
from foredraft.errors import (
    ExecutionError,
    IncompatibleDraftError,
    ParameterError,
    PromptError,
    UnsupportedModelError,
)
from foredraft.execution import ReferenceRunner
from foredraft.models.in_memory import loaded_from
from text.tiny_tokenizers import byte_level, word_level

CHAT = [{"role": "user", "content": "hello"}]


def _llama(vocab_size: int, *, seed: int = 0, context: int = 256, layers: int = 2) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    tokenizer = byte_level()
    return loaded_from(_llama(len(tokenizer)), tokenizer)


@pytest.fixture(scope="module")
def draft(target: LoadedModel) -> LoadedModel:
    tokenizer = byte_level()
    model = _llama(len(tokenizer))
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * parameter.std() * torch.randn(parameter.shape, generator=noise))
    return loaded_from(model, tokenizer)


@pytest.fixture(scope="module")
def plain(target: LoadedModel) -> Inferencer:
    return Inferencer(target)


@pytest.fixture(scope="module")
def speculative(target: LoadedModel, draft: LoadedModel) -> SpeculativeInferencer:
    return SpeculativeInferencer(target, draft, num_draft_tokens=4, rule="seed-exact")


def test_text_ids_and_chat_are_one_prompt_or_several(plain):
    """Each kind of prompt must be told apart, alone and in a list."""
    ids = plain.encode("hello there")
    chat_ids = plain.encode(CHAT)
    alone = [plain.inference(prompt, max_new_tokens=5) for prompt in ("hello there", ids, CHAT)]
    assert [len(outputs) for outputs in alone] == [1, 1, 1]
    assert alone[0][0].prompt_token_ids == alone[1][0].prompt_token_ids == tuple(ids)
    assert alone[2][0].prompt_token_ids == tuple(chat_ids)
    together = plain.inference(["hello there", ids, CHAT], max_new_tokens=5)
    assert [output.token_ids for output in together] == [outputs[0].token_ids for outputs in alone]


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 1.0, "top_p": 0.9, "seed": 11}], ids=["greedy", "sampled"]
)
@pytest.mark.parametrize("gamma", [1, 4, 8])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_speculation_does_not_change_the_text(target, draft, plain, sampling, gamma, batch):
    """Greedy and seed-exact texts must not depend on drafter, gamma or batch."""
    prompts = ["hello", "the quick brown fox", "1, 2, 3, 1, 2, 3, 1,", "café"]
    expected = [plain.inference(prompt, max_new_tokens=24, **sampling)[0] for prompt in prompts]
    for options in ({"draft": draft}, {"drafter": "ngram"}):
        fast = SpeculativeInferencer(
            target,
            num_draft_tokens=gamma,
            rule="seed-exact",
            max_batch_size=batch,
            verify_batch_size=batch,
            **options,
        )
        outputs = fast.inference(prompts, max_new_tokens=24, **sampling)
        assert [o.token_ids for o in outputs] == [e.token_ids for e in expected]
        assert [o.text for o in outputs] == [e.text for e in expected]


@pytest.mark.parametrize("rule", ["token", "block", "seed-exact"])
def test_same_seed_same_text_alone_or_among_others(target, draft, rule):
    """A seed that meant something else in a batch, or next to other requests, would be no seed."""
    fast = SpeculativeInferencer(target, draft, num_draft_tokens=3, rule=rule)
    sampling = SamplingParams(temperature=1.5, seed=42, max_new_tokens=16)
    alone = fast.inference("hello", sampling)[0]
    among = fast.inference(["a b c", "hello", "xyz", "hello"], sampling)
    assert among[1].token_ids == among[3].token_ids == alone.token_ids
    assert fast.inference("hello", sampling.replace(seed=43))[0].token_ids != alone.token_ids


def test_the_callers_random_state_is_left_alone(speculative):
    """Library calls must not move the global generator."""
    before = torch.random.get_rng_state()
    speculative.inference("hello", temperature=1.0, seed=1, max_new_tokens=8)
    assert torch.equal(before, torch.random.get_rng_state())


def test_n_samples_are_independent_and_indexed(plain):
    """n identical texts, or samples that share noise, would make n useless."""
    outputs = plain.inference(["hello", "xyz"], temperature=2.0, seed=7, n=4, max_new_tokens=10)
    indices = [(output.prompt_index, output.sample_index) for output in outputs]
    assert indices == [(prompt, sample) for prompt in range(2) for sample in range(4)]
    assert len({output.token_ids for output in outputs[:4]}) == 4
    assert (
        outputs[0].token_ids
        == plain.inference("hello", temperature=2.0, seed=7, max_new_tokens=10)[0].token_ids
    )


def test_stream_joins_to_the_text(speculative):
    """Every chunk in order, nothing lost, the whole sample in the last one."""
    prompts = ["hello", "🙂🙂 naïve", "1, 2, 3"]
    texts: dict[int, str] = dict.fromkeys(range(3), "")
    tokens: dict[int, tuple[int, ...]] = dict.fromkeys(range(3), ())
    finished = {}
    for chunk in speculative.stream(prompts, temperature=1.0, seed=3, max_new_tokens=40):
        assert chunk.prompt_index not in finished
        texts[chunk.prompt_index] += chunk.text
        tokens[chunk.prompt_index] += chunk.token_ids
        if chunk.generation is not None:
            finished[chunk.prompt_index] = chunk.generation
    for index, generation in finished.items():
        assert (texts[index], tokens[index]) == (generation.text, generation.token_ids)
        assert generation.text == speculative.tokenizer.decode(generation.token_ids)


def test_closing_a_stream_cancels_it(plain):
    """An abandoned stream must not go on costing steps."""
    stream = plain.stream("hello", max_new_tokens=200, ignore_eos=True)
    next(stream)
    stream.close()
    assert not plain._engine.has_unfinished


def test_an_unread_stream_costs_nothing(plain):
    """A stream that nobody iterates must not sit in the queue."""
    plain.stream("hello", max_new_tokens=200)
    assert not plain._engine.has_unfinished


def test_async_streams_run_together(speculative):
    """Two tasks get the texts they would get alone."""

    async def collect(prompt: str) -> str:
        pieces = [chunk.text async for chunk in speculative.astream(prompt, max_new_tokens=20)]
        return "".join(pieces)

    async def both() -> list[str]:
        return await asyncio.gather(collect("hello"), collect("the quick"))

    expected = [speculative.inference(p, max_new_tokens=20)[0].text for p in ("hello", "the quick")]
    assert asyncio.run(both()) == expected


def test_a_cancelled_task_ends_its_request(speculative):
    """A client that goes away must not leave its sample running."""

    async def cancelled() -> None:
        async def consume() -> None:
            async for _ in speculative.astream("hello", max_new_tokens=200, ignore_eos=True):
                pass

        task = asyncio.create_task(consume())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert not speculative._engine.has_unfinished


def test_threads_share_one_model_and_keep_their_texts(speculative):
    """Answers must not be mixed up between threads."""
    prompts = [
        f"{word} {number}" for number, word in enumerate(["hello", "quick", "naïve", "漢字", "1, 2"] * 3)
    ]
    expected = [speculative.inference(p, max_new_tokens=8 + len(p))[0].text for p in prompts]
    outputs: dict[int, str] = {}

    def work(index: int) -> None:
        outputs[index] = speculative.inference(prompts[index], max_new_tokens=8 + len(prompts[index]))[0].text

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert [outputs[index] for index in range(len(prompts))] == expected


def test_every_stop_string_cuts_where_it_first_occurs(speculative):
    """Stops across token borders and inside accepted drafts, wherever they start."""
    text = speculative.inference("1, 2, 3", max_new_tokens=30, ignore_eos=True)[0].text
    for start in range(0, len(text) - 4, 3):
        stop = text[start : start + 4]
        output = speculative.inference("1, 2, 3", max_new_tokens=30, ignore_eos=True, stop=stop)[0]
        assert output.text == text[: text.find(stop)]
        assert output.finish_reason == "stop"
        streamed = speculative.stream("1, 2, 3", max_new_tokens=30, ignore_eos=True, stop=stop)
        assert "".join(chunk.text for chunk in streamed) == output.text


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_small_limits_are_kept(speculative, limit):
    """0, 1 and 2 tokens are where loops overshoot."""
    output = speculative.inference("1, 2, 3", max_new_tokens=limit, ignore_eos=True)[0]
    assert (len(output.token_ids), output.finish_reason) == (limit, "length")


def test_logits_processors_act_at_every_verified_position(speculative, plain):
    """A processor that saw only the last token of a block would let banned tokens through."""
    banned = plain.inference("hello", max_new_tokens=20)[0].token_ids[::2]
    processor = SuppressTokensLogitsProcessor(list(banned))
    outputs = [
        inferencer.inference("hello", max_new_tokens=20, logits_processors=[processor])[0]
        for inferencer in (plain, speculative)
    ]
    assert outputs[0].token_ids == outputs[1].token_ids
    assert not set(outputs[0].token_ids) & set(banned)


def test_what_came_before_a_failure_is_delivered(target, monkeypatch):
    """An error in the middle must cost neither the text so far nor the inferencer."""
    inferencer = Inferencer(target)
    expected = inferencer.inference("hello", max_new_tokens=20, ignore_eos=True)[0]
    real, calls = ReferenceRunner.step, iter(range(100))

    def failing(self, inputs):
        if next(calls) == 8:
            raise ExecutionError("injected")
        return real(self, inputs)

    monkeypatch.setattr(ReferenceRunner, "step", failing)
    broken = inferencer.inference("hello there", max_new_tokens=20, ignore_eos=True)[0]
    assert (broken.finish_reason, broken.error) == ("error", "injected")
    assert 0 < len(broken.token_ids) < 20
    again = inferencer.inference("hello", max_new_tokens=20, ignore_eos=True)[0]
    assert again.token_ids == expected.token_ids


def test_an_interrupted_round_leaves_the_inferencer_usable(target, monkeypatch):
    """Ctrl-C between a forward and its bookkeeping must not poison the cache."""
    inferencer = SpeculativeInferencer(target, drafter="ngram", num_draft_tokens=4)
    prompt = "1, 2, 3, 1, 2, 3, 1, 2"
    expected = inferencer.inference(prompt, max_new_tokens=20)[0].token_ids
    real = ReferenceRunner.step
    calls = iter(range(100))

    def interrupted(self, inputs):
        output = real(self, inputs)
        if next(calls) == 5:
            raise KeyboardInterrupt
        return output

    with monkeypatch.context() as patch:
        patch.setattr(ReferenceRunner, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            inferencer.inference(prompt, max_new_tokens=20)
    assert inferencer.inference(prompt, max_new_tokens=20)[0].token_ids == expected


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "no prompt"),
        ([[]], "empty"),
        ([""], None),
        (["x" * 3000], "context"),
        ([[5, 10**6]], "outside the vocabulary"),
        ([["a", "b"]], "must be a text"),
        ([[{"role": "user"}]], "content"),
    ],
)
def test_bad_prompts_are_refused_in_one_line(plain, prompt, message):
    """Before anything is generated, with what would be right."""
    if message is None:
        assert plain.inference(prompt, max_new_tokens=2)[0].prompt_token_ids == (0,)
        return
    with pytest.raises(PromptError, match=message) as error:
        plain.inference(prompt)
    assert "\n" not in str(error.value)


def test_one_bad_prompt_among_good_ones_is_named(plain):
    """Which of the prompts was wrong must be in the message."""
    with pytest.raises(PromptError, match="prompt 2 of 3"):
        plain.inference(["hello", [10**6], "hello"])


def test_a_model_without_tokenizer_takes_token_ids_only(target):
    """Text for a model that cannot read text is an error, ids are not."""
    inferencer = Inferencer(target.model)
    assert inferencer.inference([5, 6, 7], max_new_tokens=3)[0].text == ""
    with pytest.raises(PromptError, match="token ids"):
        inferencer.inference("hello")
    with pytest.raises(ParameterError, match="stop_token_ids"):
        inferencer.inference([5, 6], stop=["a"])


def test_drafts_that_do_not_fit_are_refused(target):
    """Different tokenizers, and options that contradict each other, in one line at load."""
    other = word_level()
    stranger = loaded_from(_llama(len(other)), other)
    with pytest.raises(IncompatibleDraftError, match="different tokenizers"):
        SpeculativeInferencer(target, stranger)
    with pytest.raises(ParameterError, match="needs a draft model"):
        SpeculativeInferencer(target, drafter="model")
    with pytest.raises(ParameterError, match="does not use it"):
        SpeculativeInferencer(target, stranger, drafter="ngram")


@pytest.mark.parametrize("difference", [-7, 9])
@pytest.mark.parametrize("rule", ["token", "block", "seed-exact"])
def test_padded_vocabularies_are_no_mismatch(target, plain, difference, rule):
    """A draft with fewer or more embedding rows than the target still drafts, and never strange ids."""
    vocab = target.model.config.vocab_size + difference
    fast = SpeculativeInferencer(target, _llama(vocab, seed=5), num_draft_tokens=3, rule=rule)
    greedy = fast.inference("hello", max_new_tokens=16)[0]
    assert greedy.token_ids == plain.inference("hello", max_new_tokens=16)[0].token_ids
    sampled = fast.inference("hello", temperature=1.0, seed=1, max_new_tokens=30, ignore_eos=True)[0]
    assert sampled.stats.drafted > 0
    assert max(sampled.token_ids) < target.model.config.vocab_size


@pytest.mark.parametrize("length", [4, 20, 21, 22, 60])
def test_a_draft_with_a_short_context_steps_aside(target, plain, length):
    """Past the draft's context the target goes on alone; nothing crashes and nothing changes."""
    torch.manual_seed(3)
    config = GPT2Config(
        vocab_size=target.model.config.vocab_size, n_positions=24, n_embd=16, n_layer=1, n_head=2
    )
    fast = SpeculativeInferencer(target, GPT2LMHeadModel(config).eval(), num_draft_tokens=4)
    prompt = [7 + position % 40 for position in range(length)]
    output = fast.inference([prompt], max_new_tokens=30)[0]
    assert output.token_ids == plain.inference([prompt], max_new_tokens=30)[0].token_ids
    assert (output.stats.drafted > 0) == (length <= 20)


def test_text_goes_on_to_the_end_of_the_context(plain):
    """The last place of the context is used, and the finish reason says so."""
    prompt = [7] * 250
    output = plain.inference([prompt], max_new_tokens=100, ignore_eos=True)[0]
    assert (len(output.token_ids), output.finish_reason) == (6, "length")


def test_a_model_in_training_mode_is_refused(target):
    """Dropout would change the text."""
    model = _llama(40)
    model.train()
    with pytest.raises(UnsupportedModelError, match="eval"):
        Inferencer(model)


def test_the_models_generation_config_is_left_alone(target, draft):
    """The caller's models must come back as they went in."""
    before = (target.model.generation_config.to_dict(), target.model.config.to_dict())
    SpeculativeInferencer(target, draft, num_draft_tokens=2).inference(
        "hello", temperature=0.5, max_new_tokens=4
    )
    assert before == (target.model.generation_config.to_dict(), target.model.config.to_dict())


def test_gamma_changes_the_rounds(target):
    """An option that is parsed but not passed on shows as equal round counts."""
    steps = []
    for gamma in (1, 8):
        fast = SpeculativeInferencer(target, target, num_draft_tokens=gamma)
        steps.append(fast.inference("hello", max_new_tokens=27, ignore_eos=True)[0].stats.target_steps)
    assert steps == [14, 3]
