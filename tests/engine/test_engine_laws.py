"""The law of what the engine samples, whole: chi-square against the target's own enumerated law."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest
import torch
from engine_runs import engine_for, model_drafter
from scipy import stats
from transformers import PreTrainedModel

from foredraft.drafters import Drafter, NgramDrafter, Proposal
from foredraft.engine import Request, Sequence
from foredraft.laws import REJECTION_RULES, LawProcessor
from foredraft.params import SamplingParams
from tiny_models import llama, noisy

VOCAB = 8
PROMPT = (5, 6, 7, 5, 6)
SAMPLES = 800
PASSES = 1e-6
"""A right engine falls below it once in a million; seeds are fixed, so it does so always or never."""

SAMPLINGS = {
    "plain": {},
    "top_k": {"top_k": 3, "temperature": 1.3},
    "top_p": {"top_p": 0.6},
    "min_p": {"min_p": 0.2},
    "penalties": {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.5},
}


@cache
def _target() -> PreTrainedModel:
    return llama(vocab_size=VOCAB, hidden_size=16, intermediate_size=32)


@cache
def _draft(kind: str) -> PreTrainedModel:
    if kind == "noise":
        return noisy(_target(), 0.3)
    return llama(seed=1, num_hidden_layers=1, vocab_size=VOCAB, hidden_size=16, intermediate_size=32)


def _params(name: str, **changes) -> SamplingParams:
    options = {"temperature": 1.0, "max_new_tokens": 3, "ignore_eos": True, "seed": 17, **SAMPLINGS[name]}
    return SamplingParams(**{**options, **changes})


@torch.inference_mode()
def _joint(params: SamplingParams) -> dict[tuple[int, ...], float]:
    """Probability of every pair of first two tokens, by the model's own forward."""
    processor = LawProcessor(params, prompt_length=len(PROMPT))
    contexts = [PROMPT, *((*PROMPT, token) for token in range(VOCAB))]
    laws = []
    for context in contexts:
        logits = _target()(input_ids=torch.tensor([context]), use_cache=False).logits[0, -1:]
        laws.append(processor.laws(logits, context, [()])[0].double().tolist())
    pairs = itertools.product(range(VOCAB), repeat=2)
    return {(first, second): laws[0][first] * laws[1 + first][second] for first, second in pairs}


def _sample(drafter: Drafter, rule: str, params: SamplingParams, k: int = 2) -> list[Sequence]:
    engine = engine_for(_target(), drafter, k, rule, max_batch_size=SAMPLES, verify_batch_size=SAMPLES)
    sequences = [engine.add(Request(PROMPT, params, sample_index=index)) for index in range(SAMPLES)]
    while engine.has_unfinished:
        engine.step()
    return sequences


def _p_value(sequences: list[Sequence], params: SamplingParams) -> float:
    """Of the first two tokens; cells that expect fewer than five samples are merged."""
    counts = Counter(tuple(sequence.new_tokens[:2]) for sequence in sequences)
    joint = _joint(params)
    assert all(joint[pair] > 0 for pair in counts), "a pair of probability zero was generated"
    common = [pair for pair, probability in joint.items() if probability * len(sequences) >= 5]
    observed = [counts[pair] for pair in common]
    expected = [joint[pair] * len(sequences) for pair in common]
    rest = len(sequences) - sum(expected)
    if rest > 1e-6 * len(sequences):
        observed.append(len(sequences) - sum(observed))
        expected.append(rest)
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in zip(observed, expected, strict=True))
    return float(stats.chi2.sf(statistic, len(observed) - 1))


def _drafter(kind: str, rule: str) -> Drafter:
    if kind == "ngram":
        return NgramDrafter(min_ngram=1, vocab_size=VOCAB)
    return model_drafter(_draft(kind), rule=rule, vocab_size=VOCAB)


@pytest.mark.parametrize(
    ("kind", "rule", "sampling"),
    [
        ("noise", "token", "plain"),
        ("noise", "block", "plain"),
        ("noise", "seed-exact", "plain"),
        ("ngram", "token", "plain"),
        ("random", "token", "top_k"),
        ("random", "block", "top_p"),
        ("random", "token", "min_p"),
        ("noise", "block", "penalties"),
    ],
)
def test_the_first_two_tokens_have_the_targets_law(kind, rule, sampling):
    """The promise of speculative sampling, through drafter, forward, rule, commit and cache."""
    params = _params(sampling)
    sequences = _sample(_drafter(kind, rule), rule, params)
    assert sum(sequence.stats.drafted for sequence in sequences) > 0
    assert _p_value(sequences, params) > PASSES


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize(
    ("kind", "rule"), itertools.product(("noise", "random"), (*REJECTION_RULES, "seed-exact"))
)
@pytest.mark.parametrize("seed", range(5))
def test_the_law_holds_for_more_seeds_and_lengths(kind, rule, k, sampling, seed):
    """As above, many times over."""
    params = _params(sampling, seed=1000 + seed, max_new_tokens=5)
    assert _p_value(_sample(_drafter(kind, rule), rule, params, k), params) > PASSES


class _Tampering:
    """A model drafter whose proposals are changed before they are verified: the injected bugs."""

    name = "tampering"

    def __init__(self, drafter: Drafter, change: Callable[[Proposal], Proposal]) -> None:
        self._drafter = drafter
        self._change = change

    def propose(self, contexts, budgets):
        return [self._change(proposal) for proposal in self._drafter.propose(contexts, budgets)]

    def forget(self, context):
        self._drafter.forget(context)


def _smoothed(proposal: Proposal) -> Proposal:
    """Claims to have drawn from a law before truncation: mass where nothing can be drawn."""
    if proposal.laws is None:
        return proposal
    return Proposal(proposal.tokens, 0.4 * proposal.laws + 0.6 / VOCAB)


def _argmax(proposal: Proposal) -> Proposal:
    """Proposes the most likely tokens but claims to have drawn them."""
    if proposal.laws is None:
        return proposal
    return Proposal(tuple(proposal.laws.argmax(-1).tolist()), proposal.laws)


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("change", [_smoothed, _argmax])
def test_a_draft_that_lies_about_its_law_is_seen(rule, change):
    """A test that passes with a wrong law proves nothing (power of the tests above)."""
    params = _params("top_k" if change is _smoothed else "plain")
    sequences = _sample(_Tampering(_drafter("random", rule), change), rule, params)
    assert _p_value_of_any(sequences, params) < PASSES


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_bonus_token_from_the_wrong_row_is_seen(rule, monkeypatch):
    """Off by one in the rows of the target's laws (power of the tests above)."""
    verifier = REJECTION_RULES[rule]
    real = type(verifier).next_law

    def shifted(self, target_laws, draft_laws, drafted, accepted_length):
        if accepted_length == len(drafted):
            return target_laws[accepted_length - 1]
        return real(self, target_laws, draft_laws, drafted, accepted_length)

    monkeypatch.setattr(type(verifier), "next_law", shifted)
    params = _params("plain")
    assert _p_value_of_any(_sample(_drafter("noise", rule), rule, params, k=1), params) < PASSES


def _p_value_of_any(sequences: list[Sequence], params: SamplingParams) -> float:
    """As `_p_value`, but a pair of probability zero is a finding, not an error."""
    try:
        return _p_value(sequences, params)
    except AssertionError:
        return 0.0


@pytest.mark.parametrize("sampling", ["plain", "top_k"])
def test_the_first_drafted_token_is_accepted_as_often_as_the_laws_overlap(sampling):
    """Accepting more (or always) is the mark of a wrong ratio, accepting less of lost speed."""
    params = _params(sampling, max_new_tokens=2)
    processor = LawProcessor(params, prompt_length=len(PROMPT))
    with torch.inference_mode():
        p, q = (
            processor.laws(model(input_ids=torch.tensor([PROMPT])).logits[0, -1:], PROMPT, [()])[0].double()
            for model in (_target(), _draft("random"))
        )
    expected = float(torch.minimum(p, q).sum())
    sequences = _sample(_drafter("random", "token"), "token", params, k=1)
    # The first round drafts one token, and nothing is left to draft after it.
    accepted = sum(sequence.stats.accepted for sequence in sequences)
    assert sum(sequence.stats.drafted for sequence in sequences) == SAMPLES
    assert stats.binomtest(accepted, SAMPLES, expected).pvalue > PASSES
