"""Tests of token recycling."""

from __future__ import annotations

import pytest
import torch
from hashed_model import (
    Context,
    FunctionRunner,
    assert_unchanged,
    check_within_budget,
    generate,
    hashed_logits,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.drafters.base import LogitsObserver
from foredraft.drafters.token_recycling import TokenRecyclingDrafter, best_tokens
from foredraft.errors import ParameterError
from foredraft.params import SamplingParams


def taught(
    successors: dict[int, list[int]], vocab_size: int = 10, **options: object
) -> TokenRecyclingDrafter:
    """A drafter that saw these successors, best first."""
    kept = len(next(iter(successors.values())))
    drafter = TokenRecyclingDrafter(vocab_size=vocab_size, num_successors=kept, **options)  # type: ignore[arg-type]
    for token, following in successors.items():
        logits = torch.zeros(1, vocab_size)
        logits[0, following] = torch.arange(len(following), 0, -1).float()
        drafter.observe_logits([token], logits)
    return drafter


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 2000), st.integers(1, 4), st.integers(1, 8), st.integers(0, 99))
def test_best_tokens_are_those_of_a_full_search(vocab: int, rows: int, count: int, seed: int) -> None:
    """If this failed, searching in blocks would miss a successor."""
    logits = torch.randperm(rows * vocab, generator=torch.Generator().manual_seed(seed)).float()
    logits = logits.view(rows, vocab)
    count = min(count, vocab)
    assert best_tokens(logits, count).tolist() == logits.topk(count).indices.tolist()


def test_last_seen_successors_are_kept_for_every_token_fed() -> None:
    """If this failed, what a verification computed would be thrown away, or stale rows would be used."""
    drafter = TokenRecyclingDrafter(vocab_size=6, num_successors=2)
    drafter.observe_logits([0, 1], torch.tensor([[0.0, 5, 4, 0, 0, 0], [0.0, 0, 0, 3, 2, 0]]))
    drafter.observe_logits([0], torch.tensor([[0.0, 0, 0, 0, 1, 2]]))
    assert drafter._successors[:3].tolist() == [[5, 4], [3, 4], [-1, -1]]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 30), st.integers(0, 1000), st.sampled_from([0.0, 0.02, 0.2]))
def test_the_tree_holds_the_likeliest_nodes(budget: int, seed: int, least: float) -> None:
    """If this failed, a budget would be spent on nodes that are believed less likely than others."""
    generator = torch.Generator().manual_seed(seed)
    drafter = TokenRecyclingDrafter(vocab_size=9, num_successors=3, min_probability=least)
    for _ in range(3):
        tokens = torch.randint(0, 9, (4,), generator=generator).tolist()
        drafter.observe_logits(tokens, torch.randn(4, 9, generator=generator))
    ranks = drafter.rank_acceptance()
    (proposal,) = drafter.propose([Context([3])], [budget])
    check_within_budget([proposal], [budget])

    def likelihoods(token: int, probability: float, depth: int) -> list[float]:
        row = [successor for successor in drafter._successors[token].tolist() if successor >= 0]
        found: list[float] = []
        for rank, successor in enumerate(row if depth < 30 else []):
            if (child := probability * ranks[rank]) >= max(least, 1e-3):
                found += [child, *likelihoods(successor, child, depth + 1)]
        return found

    parents = proposal.parents or tuple(range(-1, len(proposal.tokens) - 1))
    chosen: list[float] = []
    for token, parent in zip(proposal.tokens, parents, strict=True):
        above, root = (chosen[parent], proposal.tokens[parent]) if parent >= 0 else (1.0, 3)
        chosen.append(above * ranks[drafter._successors[root].tolist().index(token)])
    assert len(set(zip(parents, proposal.tokens, strict=True))) == len(proposal.tokens)
    best = sorted(likelihoods(3, 1.0, 0), reverse=True)[:budget]
    if len(best) == budget or least:
        assert sorted(chosen, reverse=True) == pytest.approx(best)


def test_chains_where_trees_are_not_supported() -> None:
    """If this failed, a runner without tree attention would be given a tree."""
    drafter = taught({0: [1, 2], 1: [2, 3], 2: [0, 3]}, trees=False, min_probability=0.0)
    (proposal,) = drafter.propose([Context([0])], [4])
    assert (proposal.tokens, proposal.parents) == ((1, 2, 0, 1), None)


def test_nothing_is_drafted_after_an_end_token_or_from_an_unknown_one() -> None:
    """If this failed, budget would be wasted on tokens that cannot be accepted."""
    drafter = taught({0: [1, 2], 1: [0, 2], 2: [0, 1]}, end_token_ids=[1], min_probability=0.0)
    (proposal, unknown) = drafter.propose([Context([0]), Context([9], id=1)], [9, 9])
    assert proposal.parents is not None
    assert all(parent < 0 or proposal.tokens[parent] != 1 for parent in proposal.parents)
    assert unknown.tokens == ()


def test_acceptance_of_ranks_is_learnt() -> None:
    """If this failed, the shape of the tree would not follow what the target does."""
    drafter = TokenRecyclingDrafter(vocab_size=8, num_successors=4)
    ahead, behind = torch.tensor([[4.0, 3, 2, 1, 0, 0, 0, 0]]), torch.tensor([[3.0, 4, 2, 1, 0, 0, 0, 0]])
    before = drafter.rank_acceptance()
    for _ in range(100):
        drafter.observe_logits([5], ahead)
    assert drafter.rank_acceptance()[0] > max(0.8, before[0])
    for _ in range(400):
        drafter.observe_logits([5], ahead)
        drafter.observe_logits([5], behind)
    ranks = drafter.rank_acceptance()
    assert ranks[1] > 0.6
    assert max(ranks[0], ranks[2]) < 0.3
    (proposal,) = drafter.propose([Context([5])], [1])
    assert proposal.tokens == (0,), "the second of the row was the target's choice most of the time"


@pytest.mark.parametrize("trees", [True, False])
def test_output_is_that_of_plain_decoding(trees: bool) -> None:
    """If this failed, drafting from recycled tokens would change the text."""
    runner = FunctionRunner(hashed_logits(24, order=1, scale=1.5), 24)
    prompts = [[2], [0, 2] * 5, [*range(24)], [2, 2, 2, 2]]
    finished = assert_unchanged(lambda: TokenRecyclingDrafter(vocab_size=24, trees=trees), runner, prompts)
    assert sum(sequence.stats.accepted for sequence in finished) > 20
    runner = FunctionRunner(hashed_logits(24), 24)
    assert_unchanged(lambda: TokenRecyclingDrafter(vocab_size=24, trees=trees), runner, prompts, [1])


def test_trees_accept_more_than_chains_of_the_same_budget() -> None:
    """If this failed, the second-best successors would not be worth their slots, or never be reached."""
    runner = FunctionRunner(hashed_logits(50, order=2, scale=0.3), 50)
    table = hashed_logits(50, order=1, seed=5)
    mixed = FunctionRunner(lambda prefix: table(prefix) + runner._logits(prefix), 50)
    steps: list[int] = []
    for trees in (True, False):
        drafter = TokenRecyclingDrafter(vocab_size=50, trees=trees)
        params = SamplingParams(max_new_tokens=300, temperature=1.0, seed=3)
        (sequence,) = generate(mixed, [[4]], params, drafter, num_draft_tokens=12)
        steps.append(sequence.stats.target_steps)
    assert steps[0] < steps[1]


def test_the_engine_shows_every_token_it_feeds() -> None:
    """If this failed, a drafter would learn the wrong row of logits for a token."""
    seen: list[tuple[list[int], torch.Tensor]] = []

    class Recorder(TokenRecyclingDrafter):
        def observe_logits(self, tokens: list[int], logits: torch.Tensor) -> None:  # type: ignore[override]
            seen.append((list(tokens), logits.clone()))
            super().observe_logits(tokens, logits)

    runner = FunctionRunner(hashed_logits(12, order=1), 12)
    drafter = Recorder(vocab_size=12)
    assert isinstance(drafter, LogitsObserver)
    generate(runner, [[1, 2], [3]], SamplingParams(max_new_tokens=30), drafter)
    assert max(len(tokens) for tokens, _ in seen) > 1
    for tokens, logits in seen:
        assert torch.equal(logits, torch.stack([runner._logits([token]) for token in tokens]))


def test_parameters_are_checked() -> None:
    """If this failed, a nonsensical setting would only show as a drafter that never drafts."""
    with pytest.raises(ParameterError, match="num_successors must be"):
        TokenRecyclingDrafter(vocab_size=4, num_successors=0)
    with pytest.raises(ParameterError, match="min_probability must be"):
        TokenRecyclingDrafter(vocab_size=4, min_probability=-1.0)
