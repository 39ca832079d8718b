"""The checks of the certificate. Each is told what to generate with, and judges the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from foredraft.certificate.oracle import Oracle
from foredraft.certificate.report import CheckResult
from foredraft.certificate.statistics import chi_square_of_law, probability_transform, uniformity
from foredraft.inferencer import Generation, Inferencer
from foredraft.laws import LawProcessor
from foredraft.params import SamplingParams

SIGNIFICANCE = 1e-6
"""A check fails below this p-value: about one false alarm in a million."""

_NEAR_TIE = {torch.float32: 2e-5, torch.float16: 8e-3, torch.bfloat16: 4e-2}
"""Logits closer than this, relative to the largest, may change places when a forward has another shape."""


def check_greedy(
    plain: Inferencer,
    speculative: Inferencer,
    prompts: Sequence[list[int]],
    sampling: SamplingParams,
) -> CheckResult:
    """At temperature 0 every token must be the target's own argmax, near-ties aside.

    Judged by teacher forcing: an uncached forward of the target over the generated text. Equality with
    plain decoding is reported too; the two may part only at a near-tie.
    """
    greedy = sampling.replace(temperature=0.0, n=1)
    outputs = speculative.inference(prompts, greedy)
    if failure := _failure("greedy equality", outputs):
        return failure
    expected = plain.inference(prompts, greedy)
    oracle = Oracle(speculative.target)
    tolerance = _NEAR_TIE.get(speculative.target.dtype, 4e-2)
    wrong: list[dict[str, float | int]] = []
    near_ties = 0
    for output in outputs:
        logits = _processed(oracle, speculative, output, greedy)
        best, second = logits.topk(2, dim=-1).values.unbind(dim=-1)
        chosen = logits.gather(1, torch.tensor(output.token_ids)[:, None].to(logits.device)).squeeze(1)
        margin = tolerance * logits.where(logits.isfinite(), 0.0).abs().amax(dim=-1)
        near_ties += int((best - second < margin).sum())
        for position in (best - chosen > margin).nonzero().flatten().tolist():
            gap = float(best[position] - chosen[position])
            wrong.append({"prompt": output.prompt_index, "position": position, "logit_gap": gap})
    equal = sum(a.token_ids == b.token_ids for a, b in zip(outputs, expected, strict=True))
    tokens = sum(len(output.token_ids) for output in outputs)
    details = {
        "tokens": tokens,
        "near_ties": near_ties,
        "wrong_tokens": wrong[:20],
        "equal_to_plain": f"{equal}/{len(outputs)}",
        **_drafting(outputs),
    }
    summary = (
        f"{tokens - len(wrong)}/{tokens} tokens are the target's argmax ({near_ties} near-ties), "
        f"{equal}/{len(outputs)} texts equal plain decoding"
    )
    return _judged("greedy equality", not wrong, summary, details, outputs)


def check_seed_exact(
    plain: Inferencer,
    speculative: Inferencer,
    prompts: Sequence[list[int]],
    sampling: SamplingParams,
    seed: int,
) -> CheckResult:
    """Under the seed-exact rule the same seed must give the same tokens with and without speculation."""
    outputs: list[Generation] = []
    expected: list[Generation] = []
    for index, prompt in enumerate(prompts):
        seeded = sampling.replace(seed=seed + index, n=1)
        outputs += speculative.inference([prompt], seeded)
        expected += plain.inference([prompt], seeded)
    differing = [
        index
        for index, (a, b) in enumerate(zip(outputs, expected, strict=True))
        if a.token_ids != b.token_ids
    ]
    # A race between two tokens can be as close as a tie of logits; more than a rare one is a bug.
    allowed = max(1, len(prompts) // 20) if speculative.target.dtype != torch.float32 else 0
    summary = f"{len(outputs) - len(differing)}/{len(outputs)} sampled texts equal plain decoding"
    details = {"differing_prompts": differing, **_drafting(outputs)}
    return _judged("seed-exact equality", len(differing) <= allowed, summary, details, outputs)


def check_distribution(
    speculative: Inferencer,
    prompts: Sequence[list[int]],
    sampling: SamplingParams,
    *,
    samples: int,
    seed: int,
    draft_oracle: Oracle | None = None,
) -> list[CheckResult]:
    """Sampled tokens must have the target's law.

    Two tests: chi-square of the first new token of each prompt over many seeds, and the pooled
    probability transform of every token of every sample, ranked by the target's law and, with a draft
    model, by target minus draft (which sets apart what a biased rule would favour).
    """
    oracle = Oracle(speculative.target)
    generator = torch.Generator().manual_seed(seed)
    first_token: list[float] = []
    transforms: dict[str, list[torch.Tensor]] = {}
    outputs: list[Generation] = []
    for index, prompt in enumerate(prompts):
        params = sampling.replace(seed=seed + index, n=samples)
        generated = speculative.inference([prompt], params)
        outputs += generated
        if failure := _failure("next-token law", generated):
            return [failure]
        laws = _laws(oracle, speculative, generated, params)
        tokens = torch.cat([torch.tensor(output.token_ids) for output in generated])
        first = np.array([output.token_ids[0] for output in generated])
        first_token.append(chi_square_of_law(first, laws[0].double().cpu().numpy()).p_value)
        orders = {"target law": laws}
        if draft_oracle is not None:
            orders["target minus draft law"] = laws - _laws(draft_oracle, speculative, generated, params)
        for name, order in orders.items():
            uniforms = torch.rand(len(tokens), dtype=torch.float64, generator=generator)
            values = probability_transform(laws, tokens.to(laws.device), order, uniforms)
            transforms.setdefault(name, []).append(values.cpu())
    worst = min(first_token)
    # With several prompts the smallest p-value is judged against the level of one (Bonferroni).
    results = [
        _judged(
            "next-token law",
            worst * len(first_token) > SIGNIFICANCE,
            f"chi-square over {samples} seeds: smallest p = {worst:.3g} of {len(first_token)} prompts",
            {"p_values": first_token, "samples": samples, **_drafting(outputs)},
            outputs,
        )
    ]
    for name, pieces in transforms.items():
        values = torch.cat(pieces).numpy()
        test = uniformity(values)
        results.append(
            _judged(
                f"law of all tokens, by {name}",
                test.p_value > SIGNIFICANCE,
                f"chi-square of {len(values)} tokens: p = {test.p_value:.3g}",
                {
                    "statistic": test.statistic,
                    "degrees_of_freedom": test.degrees_of_freedom,
                    "p_value": test.p_value,
                    "tokens": len(values),
                },
                outputs,
            )
        )
    return results


def check_self_draft(
    self_drafted: Inferencer, prompts: Sequence[list[int]], sampling: SamplingParams, gamma: int
) -> CheckResult:
    """A target that drafts for itself must accept everything and add a bonus token each round.

    The laws agree, so only rounding can reject; a lost bonus token or a misplaced row shows here.
    """
    params = sampling.replace(temperature=0.0, n=1, min_new_tokens=sampling.max_new_tokens)
    outputs = self_drafted.inference(prompts, params)
    rate = _share(sum(o.stats.accepted for o in outputs), sum(o.stats.drafted for o in outputs))
    tokens = sum(o.stats.committed for o in outputs)
    fewest = sum(-(-len(o.token_ids) // (gamma + 1)) for o in outputs)
    steps = sum(o.stats.target_steps for o in outputs)
    # A few near-ties may cost a round each; what is lost to a bug is lost in every round.
    good = steps <= fewest + max(1, round(0.1 * fewest))
    summary = f"acceptance {rate:.3f}, {tokens} tokens in {steps} target steps (at best {fewest})"
    details = {"acceptance_rate": rate, "target_steps": steps, "fewest_target_steps": fewest}
    return _judged("self-draft", good, summary, details, outputs)


def _processed(
    oracle: Oracle, inferencer: Inferencer, output: Generation, params: SamplingParams
) -> torch.Tensor:
    """The oracle's processed logits `[tokens, vocab]` for the tokens of one output."""
    raw = oracle.logits(output.prompt_token_ids, [output.token_ids])[0]
    processor = _processor(inferencer, output, params)
    return processor.logits(raw, output.prompt_token_ids, _prefixes(output))


def _laws(
    oracle: Oracle, inferencer: Inferencer, outputs: Sequence[Generation], params: SamplingParams
) -> torch.Tensor:
    """The oracle's laws `[all tokens, target vocab]` for the tokens of outputs of one prompt."""
    vocab_size = inferencer.vocab_size
    prompt = outputs[0].prompt_token_ids
    laws: list[torch.Tensor] = []
    for output, raw in zip(outputs, oracle.logits(prompt, [o.token_ids for o in outputs]), strict=True):
        # A draft's vocabulary may be padded differently.
        missing = max(0, vocab_size - raw.shape[-1])
        fitted = torch.nn.functional.pad(raw, (0, missing), value=-torch.inf)[:, :vocab_size]
        laws.append(_processor(inferencer, output, params).laws(fitted, prompt, _prefixes(output)))
    return torch.cat(laws)


def _processor(inferencer: Inferencer, output: Generation, params: SamplingParams) -> LawProcessor:
    return LawProcessor(
        params,
        prompt_length=len(output.prompt_token_ids),
        end_token_ids=inferencer.target.eos_token_ids,
    )


def _prefixes(output: Generation) -> list[tuple[int, ...]]:
    return [output.token_ids[:position] for position in range(len(output.token_ids))]


def _drafting(outputs: Sequence[Generation]) -> dict[str, float | int]:
    drafted = sum(output.stats.drafted for output in outputs)
    accepted = sum(output.stats.accepted for output in outputs)
    return {"drafted": drafted, "accepted": accepted, "acceptance_rate": _share(accepted, drafted)}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _failure(name: str, outputs: Sequence[Generation]) -> CheckResult | None:
    failed = next((output for output in outputs if output.error is not None), None)
    return CheckResult(name, "failed", f"generation failed: {failed.error}") if failed else None


def _judged(
    name: str, good: bool, summary: str, details: dict[str, Any], outputs: Sequence[Generation]
) -> CheckResult:
    if failure := _failure(name, outputs):
        return failure
    if good and not any(output.stats.drafted for output in outputs):
        return CheckResult(name, "not exercised", "no token was ever drafted", details)
    return CheckResult(name, "passed" if good else "failed", summary, details)
