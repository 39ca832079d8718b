"""ModelDrafter: its laws are those it draws from, and its cache follows what was accepted."""

from __future__ import annotations

import pytest
import torch
from draft_contexts import Context

from foredraft.drafters import EMPTY_PROPOSAL, ModelDrafter, Proposal
from foredraft.execution import ReferenceRunner
from foredraft.laws import NoiseStream, sample_one
from tiny_models import VOCAB, llama, random_tokens, uncached_logits

SAMPLED = {"temperature": 1.3, "top_k": 5}


class _CountingRunner(ReferenceRunner):
    def __init__(self, model, context_length: int = 256) -> None:
        super().__init__(model, context_length=context_length)
        self.forwards = 0

    def step(self, inputs):
        self.forwards += 1
        return super().step(inputs)


def _drafter(vocab: int = VOCAB, context_length: int = 256, **options):
    model = llama(seed=1, num_hidden_layers=1, vocab_size=vocab)
    runner = _CountingRunner(model, context_length)
    return ModelDrafter(runner, vocab_size=VOCAB, **options), model, runner


def _check(proposal: Proposal, context: Context, model, stream: NoiseStream = NoiseStream.DRAFT) -> None:
    """Each token is the draw of the context's processed law of an uncached forward, and that law is kept."""
    for index, token in enumerate(proposal.tokens):
        drawn = list(proposal.tokens[:index])
        logits = uncached_logits(model, context.tokens + drawn)[-1:]
        law = context.processor.laws(logits, context.tokens, [drawn])[0]
        assert token == sample_one(law, context.noise_key(stream, len(context.tokens) + index))
        if stream is NoiseStream.DRAFT:
            assert proposal.laws is not None
            torch.testing.assert_close(proposal.laws[index], law, rtol=0, atol=1e-5)
            assert proposal.laws[index, token] > 0


def test_the_laws_are_those_that_the_tokens_were_drawn_from():
    """Raw laws instead of processed ones bias every rejection rule, and look better doing so."""
    drafter, model, _ = _drafter()
    context = Context(random_tokens(6, 1), **SAMPLED, repetition_penalty=1.4)
    proposal = drafter.propose([context], [6])[0]
    assert len(proposal.tokens) == 6
    assert ((proposal.laws > 0).sum(-1) == 5).all()
    _check(proposal, context, model)


def test_coupled_drafts_use_the_targets_noise_and_keep_no_laws():
    """Seed-exact verification lives on shared noise; a law would send it to a rejection rule."""
    drafter, model, _ = _drafter(coupled=True)
    context = Context(random_tokens(6, 1), **SAMPLED)
    proposal = drafter.propose([context], [5])[0]
    assert proposal.laws is None
    _check(proposal, context, model, NoiseStream.TARGET)


@pytest.mark.parametrize("accepted", [0, 1, 3, 4])
def test_the_cache_is_right_after_any_number_of_accepted_tokens(accepted):
    """Rejected tokens must be forgotten, and after full acceptance the last drafted one is not cached yet."""
    drafter, model, runner = _drafter()
    context = Context(random_tokens(6, 1), **SAMPLED)
    for _ in range(4):
        proposal = drafter.propose([context], [4])[0]
        _check(proposal, context, model)
        context.commit([*proposal.tokens[:accepted], 9])
    before = runner.forwards
    drafter.propose([context], [4])
    assert runner.forwards - before == 4


def test_rounds_without_drafting_are_caught_up_with():
    """Tokens committed while the budget was zero must reach the draft's cache."""
    drafter, model, _ = _drafter()
    context = Context(random_tokens(6, 1), **SAMPLED)
    drafter.propose([context], [3])
    for token in (4, 5, 6, 7):
        context.commit([token])
        assert drafter.propose([context], [0]) == [EMPTY_PROPOSAL]
    _check(drafter.propose([context], [3])[0], context, model)


def test_a_batch_drafts_what_each_sequence_drafts_alone():
    """Neighbours, their lengths and their budgets must not change a draft."""
    prompts, budgets = [random_tokens(count, count) for count in (1, 9, 4, 20)], [3, 0, 5, 1]
    drafter, model, _ = _drafter()
    contexts = [Context(prompt, **SAMPLED) for prompt in prompts]
    for _ in range(3):
        proposals = drafter.propose(contexts, budgets)
        assert [len(proposal.tokens) for proposal in proposals] == budgets
        for context, proposal in zip(contexts, proposals, strict=True):
            _check(proposal, context, model)
            context.commit([*proposal.tokens[:1], 11])
    drafter.forget(contexts[0])
    later = Context(prompts[3], **SAMPLED)
    _check(drafter.propose([later], [4])[0], later, model)


def test_greedy_drafts_are_the_drafts_argmax():
    """A greedy request has no law to reject by; its draft is the most likely text."""
    drafter, model, _ = _drafter()
    context = Context(random_tokens(6, 1))
    proposal = drafter.propose([context], [4])[0]
    assert proposal.laws is None
    for index, token in enumerate(proposal.tokens):
        logits = uncached_logits(model, [*context.tokens, *proposal.tokens[:index]])[-1]
        assert token == int(logits.argmax())


@pytest.mark.parametrize("vocab", [56, 72])
def test_a_padded_vocabulary_gives_laws_as_wide_as_the_targets(vocab):
    """Ids that only one of the two has: never drawn, or of probability zero."""
    drafter, _, _ = _drafter(vocab=vocab)
    context = Context(random_tokens(6, 1, vocab=56), temperature=3.0)
    for _ in range(5):
        proposal = drafter.propose([context], [6])[0]
        assert proposal.laws.shape == (6, VOCAB)
        torch.testing.assert_close(proposal.laws.sum(-1), torch.ones(6))
        assert max(proposal.tokens) < min(vocab, VOCAB)
        assert (proposal.laws[:, min(vocab, VOCAB) :] == 0).all()
        context.commit([3])


def test_a_sequence_that_outgrows_the_drafts_context_gets_nothing():
    """One token too many would leave the draft's position table; the other sequences go on."""
    drafter, model, _ = _drafter(context_length=12)
    long, short = Context(random_tokens(8, 1), **SAMPLED), Context(random_tokens(3, 2), **SAMPLED)
    lengths = []
    for _ in range(6):
        proposals = drafter.propose([long, short], [2, 2])
        lengths.append(len(proposals[0].tokens))
        assert len(proposals[1].tokens) == 2
        _check(proposals[1], short, model)
        long.commit([7])
        short.commit([7])
    assert lengths == [2, 2, 2, 0, 0, 0]


def test_one_request_that_the_draft_cannot_serve_does_not_stop_the_others():
    """A bias that leaves no token of the draft's vocabulary is that request's affair."""
    drafter, *_ = _drafter(vocab=56)
    only = {token: -float("inf") for token in range(56)}
    impossible = Context(random_tokens(5, 1, vocab=56), **SAMPLED, logit_bias=only)
    possible = Context(random_tokens(5, 2, vocab=56), **SAMPLED)
    for _ in range(2):
        proposals = drafter.propose([impossible, possible], [3, 3])
        assert proposals[0].tokens == ()
        assert len(proposals[1].tokens) == 3
        impossible.commit([60])
        possible.commit([7])
