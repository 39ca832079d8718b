"""ModelDrafter where models and requests are unusual: families, sampling options, overflow, lost ids."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from draft_contexts import Context
from transformers import PreTrainedModel

from foredraft.drafters import ModelDrafter
from foredraft.execution import ReferenceRunner
from foredraft.laws import NoiseStream, sample_one
from tiny_models import CONTEXT, VOCAB, family, llama, random_tokens, uncached_logits

SAMPLINGS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0},
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


def _drafter(model: PreTrainedModel, context_length: int = CONTEXT) -> ModelDrafter:
    return ModelDrafter(ReferenceRunner(model, context_length=context_length), vocab_size=VOCAB)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_laws_are_those_the_tokens_were_drawn_from(name):
    """Verified against any other law (raw, untruncated, of the wrong place) the output is biased."""
    context = Context(random_tokens(9, 1), **SAMPLINGS[name])
    [proposal] = _drafter(family("llama")).propose([context], [6])
    raw = uncached_logits(family("llama"), [*context.tokens, *proposal.tokens])[8:]
    assert proposal.laws is not None and len(proposal.tokens) == 6
    for index, token in enumerate(proposal.tokens):
        drawn = list(proposal.tokens[:index])
        expected = context.processor.laws(raw[index : index + 1], context.tokens, [drawn])[0]
        torch.testing.assert_close(proposal.laws[index], expected, rtol=1e-3, atol=1e-5)
        assert token == sample_one(proposal.laws[index], context.noise_key(NoiseStream.DRAFT, 9 + index))


@pytest.mark.parametrize("params", [{}, SAMPLINGS["penalties"]], ids=["greedy", "penalties"])
@pytest.mark.parametrize("name", ["gpt2", "mistral", "gemma3"])
def test_the_cache_follows_acceptance_and_rejection(name, params):
    """A stale or missing token in the draft's cache lowers acceptance for the rest of the text, unseen."""
    choose = random.Random(3)
    drafter, context = _drafter(family(name)), Context(random_tokens(5, 2), **params)
    for _ in range(8):
        budget = choose.randint(0, 6)
        [proposal] = drafter.propose([context], [budget])
        [fresh] = _drafter(family(name)).propose([context], [budget])
        assert len(proposal.tokens) == budget
        assert proposal.tokens == fresh.tokens
        accepted = choose.choice([0, budget, choose.randint(0, budget)])
        context.commit([*proposal.tokens[:accepted], choose.randrange(3, VOCAB)])


def test_a_text_with_an_id_that_the_draft_lacks_is_decoded_plainly():
    """It has no embedding in the draft, whose forward would fail for the whole batch."""
    drafter = _drafter(llama(vocab_size=56))
    beyond, other = Context([5, 60, 7]), Context([5, 55, 7])
    for _ in range(2):
        nothing, proposal = drafter.propose([beyond, other], [3, 3])
        assert nothing.tokens == () and len(proposal.tokens) == 3
    other.commit([56])
    assert drafter.propose([other], [3])[0].tokens == ()


@pytest.mark.parametrize("length", [27, 28, 29, 31, 32, 33, 100])
def test_a_prompt_near_or_over_the_drafts_context_steps_aside(length):
    """Drafting past the draft's positions crashes it; the rest of the batch must not notice."""
    drafter = _drafter(llama(max_position_embeddings=32), context_length=32)
    long, short = Context(random_tokens(length, 1)), Context(random_tokens(4, 2))
    aside, drafted = drafter.propose([long, short], [4, 4])
    assert len(aside.tokens) == (4 if length + 4 <= 32 else 0)
    assert len(drafted.tokens) == 4


def test_a_draft_that_overflows_leaves_clean_rows():
    """NaN keys in a masked place would turn the next sequence's logits into NaN."""
    model = llama()
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = torch.nan
    drafter = _drafter(model)
    poisoned = Context([5, 6, *[7] * 30])
    assert drafter.propose([poisoned], [3])[0].tokens == ()
    drafter.forget(poisoned)
    # In the row that was left behind, beside a longer one: up to its length the short row is read.
    clean, longer = Context([5, 6]), Context([5, *[9] * 40])
    proposals = drafter.propose([clean, longer], [3, 3])
    assert proposals[0].tokens == _drafter(llama()).propose([clean], [3])[0].tokens
    assert len(proposals[1].tokens) == 3


def test_rows_of_ended_sequences_are_used_again():
    """Rows that are never given back grow the draft's cache without end."""
    runner = ReferenceRunner(family("llama"), context_length=CONTEXT)
    drafter = ModelDrafter(runner, vocab_size=VOCAB)
    for seed in range(10):
        context = Context(random_tokens(5, seed))
        drafter.propose([context], [2])
        drafter.forget(context)
        drafter.forget(context)
    assert runner._cache.num_rows == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_draft_in_half_precision_gives_float32_laws(dtype):
    """A law rounded after its token was drawn is not the law that it was drawn from."""
    context = Context(random_tokens(9, 1), **SAMPLINGS["plain"])
    [proposal] = _drafter(llama().to(dtype)).propose([context], [5])
    assert proposal.laws is not None and proposal.laws.dtype == torch.float32
    for index, token in enumerate(proposal.tokens):
        assert token == sample_one(proposal.laws[index], context.noise_key(NoiseStream.DRAFT, 9 + index))
