"""Which drafted tokens of one sequence stand, and which token follows them."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass

import torch

from foredraft.drafters import Proposal
from foredraft.engine.sequence import Sequence
from foredraft.laws import RejectionRule, match, sample_one, uniform_scalar
from foredraft.laws.noise import NoiseStream


@dataclass(frozen=True)
class Verdict:
    """Outcome of one verification round for one sequence."""

    accepted: tuple[int, ...]
    """Indices of the accepted drafted tokens, from the root down."""
    next_token: int
    """The target's own token after them: the correction of a rejected one, or the bonus token."""


def verify(
    sequence: Sequence, proposal: Proposal, logits: torch.Tensor, rule: RejectionRule | None
) -> Verdict:
    """Verify a proposal against the target.

    Args:
        sequence: the sequence, with its committed tokens.
        proposal: what was drafted for it.
        logits: float32 `[1 + drafted, vocab]`: the target's raw logits after the last committed token, then
            after each drafted token.
        rule: for proposals that carry draft laws; None verifies everything by match (seed-exact).

    Raises:
        ExecutionError: if the logits are unusable.
    """
    if proposal.laws is not None and rule is not None and not sequence.params.is_greedy:
        return _verify_by_rejection(sequence, proposal, proposal.laws, logits, rule)
    paths = root_paths(proposal)

    def target_token(node: int) -> int:
        # One row at a time: rows behind the first mismatch need no law at all.
        path = paths[node] if node >= 0 else ()
        row, continuation = logits[node + 1 : node + 2], [proposal.tokens[index] for index in path]
        if sequence.params.is_greedy:
            return int(sequence.processor.greedy_tokens(row, sequence.tokens, [continuation]))
        law = sequence.processor.laws(row, sequence.tokens, [continuation])[0]
        position = len(sequence.tokens) + len(path)
        return sample_one(law, sequence.noise_key(NoiseStream.TARGET, position))

    found = match(proposal.tokens, target_token, proposal.parents)
    return Verdict(found.accepted, found.next_token)


def root_paths(proposal: Proposal) -> list[Tokens[int]]:
    """For each drafted token the nodes from the root down to it, itself included."""
    if proposal.parents is None:
        return [range(node + 1) for node in range(len(proposal.tokens))]
    paths: list[Tokens[int]] = []
    for node, parent in enumerate(proposal.parents):
        paths.append([*(paths[parent] if parent >= 0 else ()), node])
    return paths


def _verify_by_rejection(
    sequence: Sequence,
    proposal: Proposal,
    draft_laws: torch.Tensor,
    logits: torch.Tensor,
    rule: RejectionRule,
) -> Verdict:
    start = len(sequence.tokens)
    continuations = [proposal.tokens[:length] for length in range(len(proposal.tokens) + 1)]
    target_laws = sequence.processor.laws(logits, sequence.tokens, continuations)
    draft_laws = draft_laws.to(target_laws.device)
    drafted = torch.tensor(proposal.tokens, dtype=torch.int64, device=target_laws.device)
    uniforms = [
        uniform_scalar(sequence.noise_key(NoiseStream.ACCEPT, start + index))
        for index in range(len(proposal.tokens))
    ]
    acceptance = rule.acceptance(target_laws, draft_laws, drafted)
    accepted = rule.accepted_length(acceptance, uniforms)
    next_law = rule.next_law(target_laws, draft_laws, drafted, accepted)
    next_token = sample_one(next_law, sequence.noise_key(NoiseStream.TARGET, start + accepted))
    return Verdict(tuple(range(accepted)), next_token)
