"""ModelDrafter: laws that are exactly those drawn from, and a cache that follows what was accepted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hashed_model import Context
from transformers import PreTrainedModel

from foredraft.drafters import ModelDrafter, Proposal
from foredraft.execution import ReferenceRunner, RowInput, StepOutput
from foredraft.laws import LawProcessor, NoiseStream, sample_one
from foredraft.params import SamplingParams
from tiny_models import CONTEXT, VOCAB, family, llama, random_tokens, uncached_logits

PARAMS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0},
    "top_k": {"temperature": 1.3, "top_k": 3},
    "top_p": {"temperature": 0.7, "top_p": 0.6},
    "min_p": {"temperature": 1.5, "min_p": 0.2},
    "penalties": {
        "temperature": 1.0,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.3,
        "no_repeat_ngram_size": 2,
        "logit_bias": {5: 2.0},
    },
}


class _CountingRunner(ReferenceRunner):
    """Keeps the inputs of each forward."""

    def __init__(self, model: PreTrainedModel, context_length: int = CONTEXT) -> None:
        super().__init__(model, context_length=context_length)
        self.steps: list[list[RowInput]] = []

    def step(self, inputs: Sequence[RowInput]) -> StepOutput:
        self.steps.append(list(inputs))
        return super().step(inputs)


def _context(tokens: Sequence[int], context_id: int = 0, **params: Any) -> Context:
    processor = LawProcessor(SamplingParams(max_new_tokens=200, **params), prompt_length=len(tokens))
    return Context(list(tokens), id=context_id, processor=processor)


def _drafter(model: PreTrainedModel | ReferenceRunner | None = None, **options: Any) -> ModelDrafter:
    runner = model if isinstance(model, ReferenceRunner) else _CountingRunner(model or family("llama"))
    return ModelDrafter(runner, **{"vocab_size": VOCAB, **options})


def _assert_drawn_from_its_laws(context: Context, proposal: Proposal, model: PreTrainedModel) -> None:
    laws = proposal.laws
    assert laws is not None and laws.shape == (len(proposal.tokens), VOCAB)
    raw = uncached_logits(model, [*context.tokens, *proposal.tokens])[len(context.tokens) - 1 :]
    for index, token in enumerate(proposal.tokens):
        drafted = list(proposal.tokens[:index])
        expected = context.processor.laws(raw[index : index + 1], context.tokens, [drafted])[0]
        torch.testing.assert_close(laws[index], expected, rtol=1e-3, atol=1e-5)
        key = context.noise_key(NoiseStream.DRAFT, len(context.tokens) + index)
        assert token == sample_one(laws[index], key)


@pytest.mark.parametrize("name", PARAMS)
def test_laws_are_those_the_tokens_were_drawn_from(name):
    """Verified against any other law (raw, without top-k, of the wrong place) the output is biased."""
    context = _context(random_tokens(9, 1), **PARAMS[name])
    [proposal] = _drafter().propose([context], [6])
    assert len(proposal.tokens) == 6
    _assert_drawn_from_its_laws(context, proposal, family("llama"))


@pytest.mark.parametrize("params", [{}, PARAMS["top_k"], PARAMS["penalties"]])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "gemma3"])
def test_the_cache_follows_acceptance_and_rejection(name, params):
    """A stale or missing token in the draft's cache lowers acceptance for the rest of the text, unseen."""
    choose = random.Random(3)
    drafter, context = _drafter(family(name)), _context(random_tokens(5, 2), **params)
    for _ in range(12):
        budget = choose.randint(0, 6)
        [proposal] = drafter.propose([context], [budget])
        [fresh] = _drafter(family(name)).propose([context], [budget])
        assert len(proposal.tokens) == budget
        assert proposal.tokens == fresh.tokens
        accepted = choose.choice([0, budget, choose.randint(0, budget)])
        context.tokens += [*proposal.tokens[:accepted], choose.randrange(3, VOCAB)]


def test_each_drafted_token_costs_one_forward():
    """After full acceptance the draft lacks two tokens; a forward of its own for one would be wasted."""
    runner = _CountingRunner(family("llama"))
    drafter, context = _drafter(runner), _context(random_tokens(20, 1))
    for round_index in range(4):
        runner.steps.clear()
        [proposal] = drafter.propose([context], [5])
        assert len(runner.steps) == 5 + (round_index == 0)
        assert [len(inputs[0].tokens) for inputs in runner.steps[-4:]] == [1, 1, 1, 1]
        context.tokens += [*proposal.tokens, 7]


def test_a_batch_is_drafted_in_common_forwards_as_each_alone():
    """Rows that mix give proposals for another text; rows that wait for each other cost time."""
    runner = _CountingRunner(family("llama"))
    drafter = _drafter(runner)
    lengths, budgets = (3, 17, 1, 40), [4, 1, 6, 3]
    contexts = [_context(random_tokens(length, length), length, **PARAMS["top_p"]) for length in lengths]
    for _ in range(3):
        runner.steps.clear()
        together = drafter.propose(contexts, budgets)
        assert sum(any(row_input.num_logits for row_input in inputs) for inputs in runner.steps) == 6
        for context, proposal, budget in zip(contexts, together, budgets, strict=True):
            [alone] = _drafter().propose([context], [budget])
            assert proposal.tokens == alone.tokens
            assert proposal.laws is not None and alone.laws is not None
            torch.testing.assert_close(proposal.laws, alone.laws, rtol=1e-3, atol=1e-5)
            context.tokens += [*proposal.tokens[:2], 9]


@pytest.mark.parametrize("vocab_size", [56, 72])
@pytest.mark.parametrize("params", [{}, PARAMS["plain"], PARAMS["penalties"]])
def test_a_draft_with_another_padding_drafts_ids_of_the_target(vocab_size, params):
    """An id beyond the target's would crash it; laws of another width cannot be compared with its own."""
    torch.manual_seed(5)
    draft = llama(vocab_size=vocab_size)
    with torch.no_grad():
        # The padding would win every draw.
        draft.lm_head.weight[VOCAB:] *= 10.0
    context = _context(random_tokens(9, 1, 56), **params)
    [proposal] = _drafter(draft).propose([context], [8])
    assert len(proposal.tokens) == 8
    assert max(proposal.tokens) < min(vocab_size, VOCAB)
    if proposal.laws is not None:
        assert proposal.laws.shape == (8, VOCAB)
        torch.testing.assert_close(proposal.laws.sum(dim=-1), torch.ones(8))
        assert not proposal.laws[:, vocab_size:].any()


@pytest.mark.parametrize("length", [27, 28, 29, 31, 32, 33, 100])
def test_a_context_shorter_than_the_text_steps_aside(length):
    """Drafting past the draft's positions crashes it; the rest of the batch must not notice."""
    runner = _CountingRunner(llama(max_position_embeddings=32), context_length=32)
    drafter = _drafter(runner)
    long, short = _context(random_tokens(length, 1), 1), _context(random_tokens(4, 2), 2)
    aside, drafted = drafter.propose([long, short], [4, 4])
    assert len(aside.tokens) == (4 if length + 4 <= 32 else 0)
    assert len(drafted.tokens) == 4


def test_a_text_that_outgrows_the_drafts_context_is_decoded_plainly_from_there():
    """The last places of the draft's context are where an off-by-one would crash."""
    drafter, context = _drafter(ReferenceRunner(family("gpt2"), context_length=24)), _context([5, 6, 7])
    drafted = []
    while len(context.tokens) < 40:
        [proposal] = drafter.propose([context], [3])
        drafted.append(len(proposal.tokens))
        context.tokens += [*proposal.tokens, 8]
    assert drafted == [3] * 5 + [0] * (len(drafted) - 5)


def test_a_budget_of_zero_asks_for_nothing():
    """A sequence that is decoded plainly must cost no forward of the draft."""
    runner = _CountingRunner(family("llama"))
    contexts = [_context(random_tokens(4, 1), 1), _context(random_tokens(5, 2), 2)]
    assert [proposal.tokens for proposal in _drafter(runner).propose(contexts, [0, 0])] == [(), ()]
    assert not runner.steps
    one, other = _drafter(runner).propose(contexts, [0, 2])
    assert one.tokens == () and len(other.tokens) == 2


def test_greedy_proposals_are_the_drafts_argmax_and_carry_no_laws():
    """A law of an argmax is one-hot; a softmax in its place would be verified as if it had been sampled."""
    context = _context(random_tokens(6, 1))
    [proposal] = _drafter().propose([context], [5])
    assert proposal.laws is None
    raw = uncached_logits(family("llama"), [*context.tokens, *proposal.tokens])
    assert raw[5:10].argmax(dim=-1).tolist() == list(proposal.tokens)


def test_a_coupled_draft_draws_with_the_targets_noise():
    """Seed-exact acceptance comes from the common noise alone."""
    context = _context(random_tokens(6, 1), **PARAMS["top_k"])
    [proposal] = _drafter(coupled=True).propose([context], [5])
    assert proposal.laws is None
    raw = uncached_logits(family("llama"), [*context.tokens, *proposal.tokens])
    for index, token in enumerate(proposal.tokens):
        drafted = [list(proposal.tokens[:index])]
        law = context.processor.laws(raw[5 + index : 6 + index], context.tokens, drafted)[0]
        assert token == sample_one(law, context.noise_key(NoiseStream.TARGET, 6 + index))


def test_unusable_logits_end_drafting_for_that_sequence_alone():
    """One request's bans, or one overflow, must not end drafting for everybody else."""
    draft = llama(vocab_size=56)
    runner = _CountingRunner(draft)
    drafter = _drafter(runner)
    # The target has tokens left, the draft has none.
    banned = _context(random_tokens(5, 1, 56), 1, bad_words=tuple((token,) for token in range(56)))
    other = _context(random_tokens(7, 2, 56), 2)
    for _ in range(2):
        nothing, proposal = drafter.propose([banned, other], [3, 3])
        assert nothing.tokens == () and len(proposal.tokens) == 3
        other.tokens += [*proposal.tokens, 5]
    assert all(len(inputs) == 1 for inputs in runner.steps[-3:])
    drafter.forget(banned)
    again = _context(random_tokens(5, 1, 56), 1)
    assert len(drafter.propose([again], [3])[0].tokens) == 3


def test_a_draft_that_overflows_leaves_clean_rows():
    """NaN keys in a masked place would turn the next sequence's logits into NaN."""
    model = llama()
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = torch.nan
    runner = ReferenceRunner(model, context_length=CONTEXT)
    drafter = _drafter(runner)
    poisoned, clean = _context([5, 6, *[7] * 30], 1), _context([5, 6], 2)
    assert drafter.propose([poisoned], [3])[0].tokens == ()
    drafter.forget(poisoned)
    longer = _context([5, *[9] * 40], 3)
    proposals = drafter.propose([clean, longer], [3, 3])
    assert [len(proposal.tokens) for proposal in proposals] == [3, 3]
    assert proposals[0].tokens == _drafter(llama()).propose([clean], [3])[0].tokens


def test_rows_of_ended_sequences_are_used_again():
    """Rows that are never given back grow the draft's cache without end."""
    drafter = _drafter()
    for context_id in range(20):
        context = _context(random_tokens(5, context_id), context_id)
        drafter.propose([context], [2])
        drafter.forget(context)
        drafter.forget(context)
    assert drafter._runner._cache.num_rows == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_draft_in_half_precision_gives_float32_laws(dtype):
    """A law rounded after its token was drawn is not the law that it was drawn from."""
    draft = llama().to(dtype)
    context = _context(random_tokens(9, 1), **PARAMS["plain"])
    [proposal] = _drafter(draft).propose([context], [5])
    assert proposal.laws is not None and proposal.laws.dtype == torch.float32
    for index, token in enumerate(proposal.tokens):
        assert token == sample_one(proposal.laws[index], context.noise_key(NoiseStream.DRAFT, 9 + index))
