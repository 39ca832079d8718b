"""`certify`: run the losslessness checks on a target and a drafter."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from foredraft.certificate.checks import (
    check_distribution,
    check_greedy,
    check_seed_exact,
    check_self_draft,
)
from foredraft.certificate.oracle import Oracle
from foredraft.certificate.report import Certificate, CheckResult
from foredraft.errors import ParameterError
from foredraft.inferencer import Inferencer, ModelSource, Prompt, SpeculativeInferencer
from foredraft.params import RuleName, SamplingParams, SpeculationConfig

logger = logging.getLogger(__name__)

DEFAULT_PROMPTS = (
    "One two three four, one two three four, one two three",
    "The cat sat on the mat. The cat sat on the mat. The cat",
    "Q: What is 2 + 2? A: 4. Q: What is 3 + 3? A: 6. Q: What is",
)
"""Repetitive on purpose, so that n-gram lookup has something to draft."""

_DEFAULT_DRAFT_TOKENS = 4
"""Stands in for "auto", which may decide to draft nothing and so prove nothing."""


@dataclass(frozen=True)
class CertificateOptions:
    """How thorough the checks are."""

    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=1.0))
    """Law to check; its temperature must not be 0. Lengths, seed and n are set by the checks."""
    samples: int = 200
    """Seeds for each prompt in the distribution checks."""
    tokens_per_sample: int = 6
    """New tokens of each of those samples."""
    greedy_tokens: int = 64
    """New tokens for each prompt in the equality checks."""
    seed: int = 0
    verify_batch_size: int = 16

    def __post_init__(self) -> None:
        if self.sampling.is_greedy:
            raise ParameterError("the distribution checks need a temperature above 0 (and top_k != 1)")
        for name in ("samples", "tokens_per_sample", "greedy_tokens", "verify_batch_size"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} must be at least 1 (got {getattr(self, name)})")


def certify(
    target: ModelSource,
    draft: ModelSource | None = None,
    *,
    speculation: SpeculationConfig | None = None,
    prompts: Sequence[Prompt] = DEFAULT_PROMPTS,
    options: CertificateOptions | None = None,
    on_check: Callable[[CheckResult], None] = lambda check: None,
    **load_options: Any,
) -> Certificate:
    """Run all checks.

    Args:
        target, draft: as for `SpeculativeInferencer`.
        speculation: what to certify; its rule is used for the distribution checks.
        prompts: contexts to check at.
        options: how thorough to be.
        on_check: called with each result as it comes.
        **load_options: dtype, device, attention and the like.

    Raises:
        ForedraftError: if the models cannot be loaded or the request makes no sense.
    """
    options = options or CertificateOptions()
    speculation = speculation or SpeculationConfig()
    if speculation.drafter == "none":
        raise ParameterError('there is nothing to certify with drafter="none"; choose a drafter')
    gamma = speculation.num_draft_tokens
    gamma = _DEFAULT_DRAFT_TOKENS if gamma == "auto" else gamma
    plain = Inferencer(target, verify_batch_size=options.verify_batch_size, **load_options)

    def speculative(rule: RuleName) -> SpeculativeInferencer:
        return SpeculativeInferencer(
            plain.target,
            draft,
            drafter=speculation.drafter,
            num_draft_tokens=gamma,
            rule=rule,
            max_batch_size=4 * options.verify_batch_size,
            verify_batch_size=options.verify_batch_size,
            **load_options,
        )

    checked = speculative(speculation.rule)
    encoded = [plain.encode(prompt) for prompt in prompts]
    equality = options.sampling.replace(max_new_tokens=options.greedy_tokens, ignore_eos=True)
    short = options.sampling.replace(max_new_tokens=options.tokens_per_sample, ignore_eos=True)
    draft_oracle = Oracle(checked.draft) if checked.draft is not None else None
    results: list[CheckResult] = []

    def add(*checks: CheckResult) -> None:
        for check in checks:
            results.append(check)
            on_check(check)

    add(check_greedy(plain, checked, encoded, equality))
    coupled = checked if speculation.rule == "seed-exact" else speculative("seed-exact")
    add(check_seed_exact(plain, coupled, encoded, equality, options.seed))
    add(
        *check_distribution(
            checked,
            encoded,
            short,
            samples=options.samples,
            seed=options.seed,
            draft_oracle=draft_oracle,
        )
    )
    add(check_self_draft(_self_drafted(plain, gamma, load_options), encoded, equality, gamma))
    return Certificate(
        target=plain.target.name,
        drafter=checked.drafter_name,
        settings={
            "draft": checked.draft.name if checked.draft is not None else None,
            "num_draft_tokens": gamma,
            "rule": speculation.rule,
            "samples": options.samples,
            "sampling": options.sampling.model_dump(exclude_defaults=True),
            "seed": options.seed,
        },
        checks=tuple(results),
    )


def _self_drafted(plain: Inferencer, gamma: int, load_options: dict[str, Any]) -> SpeculativeInferencer:
    quiet = logging.getLogger("foredraft.inferencer")
    level = quiet.level
    quiet.setLevel(logging.ERROR)  # It warns, rightly, that a draft as large as its target gains nothing.
    try:
        return SpeculativeInferencer(
            plain.target, plain.target, drafter="model", num_draft_tokens=gamma, **load_options
        )
    finally:
        quiet.setLevel(level)
