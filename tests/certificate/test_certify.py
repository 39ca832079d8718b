"""The certificate must pass what is lossless and catch what is not."""

from __future__ import annotations

import pytest
import torch

from foredraft.certificate import Certificate, CertificateOptions, certify
from foredraft.drafters import draft_model
from foredraft.engine import Verdict, engine
from foredraft.errors import ExecutionError, ParameterError
from foredraft.execution import PrefixRows, ReferenceRunner
from foredraft.laws import REJECTION_RULES, BlockRule, TokenRule
from foredraft.laws.rejection import excess
from foredraft.params import SamplingParams, SpeculationConfig

PROMPTS = [[5, 6, 7, 5, 6], [9]]


def run(target, draft, *, rule="token", drafter="auto", samples=250, **sampling) -> Certificate:
    options = CertificateOptions(
        sampling=SamplingParams(temperature=1.0, **sampling),
        samples=samples,
        tokens_per_sample=6,
        greedy_tokens=24,
        verify_batch_size=64,
    )
    speculation = SpeculationConfig(rule=rule, drafter=drafter, num_draft_tokens=3)
    return certify(target, draft, speculation=speculation, prompts=PROMPTS, options=options)


def statuses(certificate: Certificate) -> dict[str, str]:
    return {check.name: check.status for check in certificate.checks}


@pytest.mark.parametrize("rule", ["token", "block", "seed-exact"])
def test_lossless_rules_pass(target, draft, rule):
    """A correct rule that fails its certificate would make the certificate useless."""
    certificate = run(target, draft, rule=rule)
    assert certificate.passed, certificate.as_dict()
    assert len(certificate.checks) == 6


def test_ngram_with_truncated_law_passes(target):
    """Lookup drafts under top-k and top-p are verified by match and must pass too."""
    certificate = run(target, None, drafter="ngram", top_k=6, top_p=0.9, repetition_penalty=1.1)
    assert certificate.passed, certificate.as_dict()


class UnnormalisedResidual(TokenRule):
    """(p - q)+ is taken for a law as it is; what it lacks of 1 falls to the target's own law."""

    def next_law(self, target_laws, draft_laws, drafted, accepted_length):
        p = target_laws[accepted_length].double()
        if accepted_length == len(drafted):
            return p
        residual = excess(p, draft_laws[accepted_length])
        return residual + (1 - residual.sum()) * p


class OtherTemperature(TokenRule):
    """The ratio uses q at another temperature than the token was drawn at."""

    def _other(self, draft_laws):
        return (draft_laws**0.5) / (draft_laws**0.5).sum(dim=-1, keepdim=True)

    def acceptance(self, target_laws, draft_laws, drafted):
        return super().acceptance(target_laws, self._other(draft_laws), drafted)

    def next_law(self, target_laws, draft_laws, drafted, accepted_length):
        return super().next_law(target_laws, self._other(draft_laws), drafted, accepted_length)


class FirstFailureBlock(BlockRule):
    """Block verification that stops at the first uniform above its threshold."""

    def accepted_length(self, acceptance, uniforms):
        return TokenRule().accepted_length(acceptance, uniforms)


@pytest.mark.parametrize(
    ("name", "broken"),
    [("token", UnnormalisedResidual()), ("token", OtherTemperature()), ("block", FirstFailureBlock())],
    ids=["residual not renormalised", "q at another temperature", "first-failure block rule"],
)
def test_broken_rules_fail_the_law(target, draft, monkeypatch, name, broken):
    """A biased rule that passes would be certified as lossless."""
    monkeypatch.setitem(REJECTION_RULES, name, broken)
    outcome = statuses(run(target, draft, rule=name, samples=600))
    laws = [status for check, status in outcome.items() if "law" in check]
    assert "failed" in laws, outcome


def test_argmax_draft_with_softmax_q_fails_the_law(target, draft, monkeypatch):
    """A draft that takes its argmax but reports its softmax as q must not be certified."""
    monkeypatch.setattr(draft_model, "sample", lambda law, keys: law.argmax(dim=-1))
    outcome = statuses(run(target, draft))
    assert "failed" in [status for check, status in outcome.items() if "law" in check], outcome


def test_dropped_bonus_token_fails_the_self_draft(target, draft, monkeypatch):
    """Without the bonus token the law still holds; only the count of steps shows the loss."""

    def without_bonus(sequence, proposal, logits, rule):
        verdict = real(sequence, proposal, logits, rule)
        if proposal.tokens and len(verdict.accepted) == len(proposal.tokens):
            return Verdict(verdict.accepted[:-1], proposal.tokens[-1])
        return verdict

    real = engine.verify
    monkeypatch.setattr(engine, "verify", without_bonus)
    outcome = statuses(run(target, draft))
    assert outcome["self-draft"] == "failed", outcome


def test_cache_that_keeps_rejected_tokens_fails_greedy(target, draft, monkeypatch):
    """Rejected tokens left in the KV cache change every later token; teacher forcing must see it."""

    def forget_only_the_names(self, row, length):
        del self._tokens[row][length:]

    monkeypatch.setattr(PrefixRows, "truncate", forget_only_the_names)
    outcome = statuses(run(target, draft))
    assert outcome["greedy equality"] == "failed", outcome


def test_nothing_drafted_is_not_a_pass(target, draft, monkeypatch):
    """A certificate for speculation that never ran would certify nothing."""
    monkeypatch.setattr(
        "foredraft.drafters.draft_model.ModelDrafter.propose",
        lambda self, contexts, budgets: [engine.EMPTY_PROPOSAL] * len(contexts),
    )
    certificate = run(target, draft, samples=20)
    assert set(statuses(certificate).values()) <= {"not exercised", "failed"}
    assert not certificate.passed


def test_failing_forward_is_a_failed_check(target, draft, monkeypatch):
    """An error while generating must not be read as losslessness, nor crash the certificate."""
    real = ReferenceRunner.step

    def failing(self, inputs):
        if any(self.length(row_input.row) > 12 for row_input in inputs):
            raise ExecutionError("injected")
        return real(self, inputs)

    monkeypatch.setattr(ReferenceRunner, "step", failing)
    certificate = run(target, draft, samples=20)
    assert not certificate.passed
    assert "injected" in str(certificate.as_dict())


def test_requests_that_prove_nothing_are_refused(target):
    """Greedy sampling or no drafter leaves the law untested; say so instead of passing."""
    with pytest.raises(ParameterError, match="nothing to certify"):
        certify(target, speculation=SpeculationConfig(drafter="none"), prompts=PROMPTS)
    with pytest.raises(ParameterError, match="temperature"):
        CertificateOptions(sampling=SamplingParams(temperature=0.0))
    with pytest.raises(ParameterError, match="samples"):
        CertificateOptions(samples=0)


def test_report_is_plain_data(target, draft):
    """`--json` prints the report, so it must hold nothing but plain data."""
    import json

    report = run(target, draft, samples=20).as_dict()
    assert json.loads(json.dumps(report))["checks"][0]["details"]["drafted"] > 0
    assert torch.is_tensor(report) is False
