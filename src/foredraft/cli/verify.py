"""`foredraft verify`: the certificate of losslessness."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foredraft.cli import options
from foredraft.cli.output import note, write, write_json
from foredraft.cli.prompts import read_prompts
from foredraft.params import SamplingParams

if TYPE_CHECKING:
    from foredraft.certificate import CheckResult


def verify(
    target: options.Target = options.DEFAULT_TARGET,
    draft: options.Draft = None,
    drafter: options.Drafter = options.DRAFTER,
    num_draft_tokens: options.NumDraftTokens = options.NUM_DRAFT_TOKENS,
    rule: options.Rule = options.RULE,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = options.TOP_K,
    top_p: options.TopP = options.TOP_P,
    min_p: options.MinP = options.MIN_P,
    repetition_penalty: options.RepetitionPenalty = options.REPETITION_PENALTY,
    samples: Annotated[int, typer.Option("--samples", help="Seeds for each prompt.")] = 200,
    tokens_per_sample: Annotated[
        int, typer.Option("--tokens-per-sample", help="New tokens of each sample.")
    ] = 6,
    greedy_tokens: Annotated[
        int, typer.Option("--greedy-tokens", help="New tokens a prompt in the equality checks.")
    ] = 64,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the whole certificate.")] = 0,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="Contexts to check at, one a line (or .jsonl).")
    ] = None,
    verify_batch_size: options.VerifyBatchSize = None,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    attention: options.Attention = "auto",
    runner: options.Runner = "reference",
    trust_remote_code: options.TrustRemoteCode = False,
    json_output: options.Json = False,
) -> None:
    """Check on your own models that speculation changes nothing; exit code 1 if it does."""
    config = options.speculation_config(drafter, num_draft_tokens, rule)
    sampling = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
    )
    texts = read_prompts(None, prompts) if prompts is not None else None
    from foredraft.certificate import DEFAULT_PROMPTS, CertificateOptions, certify

    batch = {} if verify_batch_size is None else {"verify_batch_size": verify_batch_size}
    certificate = certify(
        target,
        draft,
        speculation=config,
        prompts=texts or DEFAULT_PROMPTS,
        options=CertificateOptions(
            sampling=sampling,
            samples=samples,
            tokens_per_sample=tokens_per_sample,
            greedy_tokens=greedy_tokens,
            seed=seed,
            **batch,
        ),
        on_check=(lambda check: None) if json_output else _show,
        dtype=dtype,
        device=device,
        attention=attention,
        runner=runner,
        trust_remote_code=trust_remote_code,
    )
    if json_output:
        write_json(certificate.as_dict())
    elif certificate.passed:
        write(f"lossless: {certificate.target} with {certificate.drafter} passed every check\n")
    else:
        note(f"NOT certified: {certificate.target} with {certificate.drafter}")
    if not certificate.passed:
        raise typer.Exit(1)


def _show(check: CheckResult) -> None:
    write(f"{check.status:13}  {check.name}: {check.summary}\n")
