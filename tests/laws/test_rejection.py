"""Rejection rules: exact losslessness by enumeration, and proof that the enumeration can fail."""

from __future__ import annotations

import itertools

import pytest
import table_models as tables
import torch
from enumeration import Context, Predicate, Round, accepted_lengths
from table_models import TableModel, total_variation

from foredraft.laws import REJECTION_RULES, BlockRule, RejectionRule, TokenRule, residual
from foredraft.laws.rejection import excess, running_ratios

PAIRS: dict[str, tuple[TableModel, TableModel]] = {
    "dense": (tables.dense(4, 1), tables.dense(4, 2)),
    "dense, 5 tokens": (tables.dense(5, 3), tables.dense(5, 4)),
    "top-k both": (tables.top_k(5, 5, k=3), tables.top_k(5, 6, k=2)),
    "top-p target, top-k draft": (tables.top_p(4, 7, mass=0.8), tables.top_k(4, 8, k=2)),
    "top-k target, dense draft": (tables.top_k(4, 9, k=2), tables.dense(4, 10)),
    "dense target, top-p draft": (tables.dense(4, 11), tables.top_p(4, 12, mass=0.7)),
    "same logits, other temperature": (tables.dense(4, 13), tables.tempered(tables.dense(4, 13), 0.6)),
    "equal": (tables.dense(4, 14), tables.dense(4, 14)),
    "equal and sparse": (tables.top_k(4, 15, k=2), tables.top_k(4, 15, k=2)),
    "equal up to rounding": (tables.dense(4, 16), tables.perturbed(tables.dense(4, 16), 17, 1e-15)),
    "nearly equal": (tables.dense(4, 18), tables.perturbed(tables.dense(4, 18), 19, 1e-9)),
    "disjoint": (tables.restricted(4, 20, parity=0), tables.restricted(4, 21, parity=1)),
    "one-hot draft": (tables.dense(4, 22), tables.one_hot(tables.dense(4, 23))),
    "one-hot target": (tables.one_hot(tables.dense(4, 24)), tables.dense(4, 25)),
    "both one-hot": (tables.one_hot(tables.dense(3, 26)), tables.one_hot(tables.dense(3, 27))),
}

STOPS: dict[str, Predicate | None] = {
    "full length": None,
    "entropy": lambda prefix, law: float(torch.special.entr(law).sum()) > 0.9,
    "drawn prefix": lambda prefix, law: bool(prefix) and (sum(prefix) + len(prefix)) % 3 == 0,
    "before the first token": lambda prefix, law: True,
}

rules = pytest.mark.parametrize("rule", REJECTION_RULES.values(), ids=REJECTION_RULES.keys())
pairs = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())


@rules
@pairs
@pytest.mark.parametrize("length", [1, 2, 3])
def test_output_law_is_the_target_law(
    rule: RejectionRule, pair: tuple[TableModel, TableModel], length: int
) -> None:
    """Speculation would change the distribution of the text."""
    target, draft = pair
    joint = Round(rule, target, draft, length).joint()
    assert total_variation(joint, target.joint((), length + 1)) < 1e-12


@rules
@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS.keys())
@pytest.mark.parametrize("name", ["dense", "top-p target, top-k draft", "disjoint", "one-hot draft"])
def test_stopping_before_a_draw_keeps_the_law(rule: RejectionRule, stop: Predicate | None, name: str) -> None:
    """A draft length decided while drafting, or ragged from row to row, would change the text's law."""
    target, draft = PAIRS[name]
    joint = Round(rule, target, draft, 3, stop=stop).joint()
    assert total_variation(joint, target.joint((), 4)) < 1e-12


@rules
def test_float32_laws_lose_nothing_but_rounding(rule: RejectionRule) -> None:
    """The rules would amplify the rounding of the float32 laws that they get in practice."""
    for target, draft in PAIRS.values():
        joint = Round(rule, target, draft, 2, dtype=torch.float32).joint()
        assert total_variation(joint, target.joint((), 3)) < 1e-6


class LeakyResidual(TokenRule):
    """Divides the residual by the rejection probability of the drafted token, not by its own sum."""

    def next_law(
        self, target_laws: torch.Tensor, draft_laws: torch.Tensor, drafted: torch.Tensor, accepted_length: int
    ) -> torch.Tensor:
        law = super().next_law(target_laws, draft_laws, drafted, accepted_length)
        if accepted_length == len(drafted):
            return law
        rejection = 1 - self.acceptance(target_laws, draft_laws, drafted)[accepted_length]
        law = (law / rejection).cumsum(-1).clamp(max=1.0).diff(prepend=torch.zeros(1).double())
        # A search in the cumulative sum falls through to the last token.
        law[-1] += 1 - law.sum()
        return law


class FirstFailureBlock(BlockRule):
    """Stops at the first failed uniform, as the token rule does."""

    accepted_length = TokenRule.accepted_length


class PlainResidualBlock(BlockRule):
    """Forgets the running ratio in the residual."""

    next_law = TokenRule.next_law


class TokenCriterionBlock(BlockRule):
    """Tests every token with its own ratio."""

    acceptance = TokenRule.acceptance


class BonusFromLastRow(TokenRule):
    """Takes the bonus token from the law of the last drafted token."""

    def next_law(
        self, target_laws: torch.Tensor, draft_laws: torch.Tensor, drafted: torch.Tensor, accepted_length: int
    ) -> torch.Tensor:
        if accepted_length == len(drafted):
            return target_laws[accepted_length - 1]
        return super().next_law(target_laws, draft_laws, drafted, accepted_length)


class ResidualFromNextRow(TokenRule):
    """Off by one: the residual of the place after the rejected token."""

    def next_law(
        self, target_laws: torch.Tensor, draft_laws: torch.Tensor, drafted: torch.Tensor, accepted_length: int
    ) -> torch.Tensor:
        if accepted_length == len(drafted):
            return target_laws[accepted_length]
        return residual(target_laws[accepted_length + 1], draft_laws[accepted_length])


class AlwaysAccept(TokenRule):
    """Every drafted token passes."""

    def acceptance(
        self, target_laws: torch.Tensor, draft_laws: torch.Tensor, drafted: torch.Tensor
    ) -> torch.Tensor:
        return torch.ones(len(drafted), dtype=torch.float64)


TARGET, DRAFT = PAIRS["dense"]
BROKEN: dict[str, Round] = {
    "residual not divided by its own sum": Round(LeakyResidual(), TARGET, DRAFT, 3),
    "first failure in the block rule": Round(FirstFailureBlock(), TARGET, DRAFT, 3),
    "plain residual in the block rule": Round(PlainResidualBlock(), TARGET, DRAFT, 3),
    "token criterion in the block rule": Round(TokenCriterionBlock(), TARGET, DRAFT, 3),
    "bonus from the wrong row": Round(BonusFromLastRow(), TARGET, DRAFT, 3),
    "residual from the wrong row": Round(ResidualFromNextRow(), TARGET, DRAFT, 3),
    "every token accepted": Round(AlwaysAccept(), TARGET, DRAFT, 3),
    **{
        f"{name}, {fault}": Round(rule, TARGET, drawn, 3, claimed=DRAFT)
        for name, rule in REJECTION_RULES.items()
        for fault, drawn in {
            "drawn at another temperature": tables.tempered(DRAFT, 0.7),
            "argmax draft claimed as softmax": tables.one_hot(DRAFT),
            "drawn after top-k, claimed before": TableModel(
                4, lambda context: torch.where(DRAFT.law(context) >= 0.1, DRAFT.law(context), 0.0)
            ),
        }.items()
    },
    **{
        f"{name}, unlikely drafts dropped": Round(
            rule, TARGET, DRAFT, 3, drop=lambda prefix, law: float(law[prefix[-1]]) < 0.25
        )
        for name, rule in REJECTION_RULES.items()
    },
}


@pytest.mark.parametrize("fault", BROKEN.values(), ids=BROKEN.keys())
def test_enumeration_catches(fault: Round) -> None:
    """The exact test would pass a rule that is wrong in a way seen in the wild."""
    assert total_variation(fault.joint(), TARGET.joint((), 4)) > 1e-3


@pairs
def test_block_accepts_at_least_as_much_as_token(pair: tuple[TableModel, TableModel]) -> None:
    """The block rule would cost tokens instead of gaining them."""
    target, draft = pair
    for length in (1, 2, 3):
        token = Round(TokenRule(), target, draft, length).expected_length()
        block = Round(BlockRule(), target, draft, length).expected_length()
        assert block >= token - 1e-12
        if length == 1:
            assert block == pytest.approx(token, abs=1e-12)


def test_block_gains_on_sampled_drafts_only() -> None:
    """The block rule would be the token rule in disguise, or gain on one-hot drafts, where nothing can."""
    gains: dict[str, float] = {}
    for name in ("dense", "one-hot draft", "both one-hot", "one-hot target"):
        lengths = [Round(rule, *PAIRS[name], 3).expected_length() for rule in (TokenRule(), BlockRule())]
        gains[name] = lengths[1] - lengths[0]
    assert gains.pop("dense") > 1e-3
    assert gains == pytest.approx(dict.fromkeys(gains, 0.0), abs=1e-12)


@pairs
def test_first_token_is_accepted_with_the_overlap(pair: tuple[TableModel, TableModel]) -> None:
    """Drafts would be accepted more often, or less, than one minus total variation (the optimum)."""
    target, draft = pair
    overlap = float(torch.minimum(target.law(()), draft.law(())).sum())
    accepted = Round(TokenRule(), target, draft, 1).expected_length()
    assert accepted == pytest.approx(overlap, abs=1e-12)


@rules
def test_equal_laws_accept_everything(rule: RejectionRule) -> None:
    """A draft equal to the target would be rejected."""
    for name in ("equal", "equal and sparse", "equal up to rounding"):
        assert Round(rule, *PAIRS[name], 3).expected_length() == pytest.approx(3, abs=1e-12)


def test_token_rule_stops_at_the_first_failure() -> None:
    """A token after a rejected one would be kept."""
    acceptance = torch.tensor([0.3, 0.8, 0.6], dtype=torch.float64)
    mass = _length_law(TokenRule(), acceptance)
    assert mass == pytest.approx({0: 0.7, 1: 0.3 * 0.2, 2: 0.3 * 0.8 * 0.4, 3: 0.3 * 0.8 * 0.6})


def test_block_rule_takes_the_largest_success() -> None:
    """A block would be cut at its first failed uniform, which biases the text."""
    acceptance = torch.tensor([0.3, 0.8, 0.6], dtype=torch.float64)
    mass = _length_law(BlockRule(), acceptance)
    assert mass == pytest.approx({3: 0.6, 2: 0.4 * 0.8, 1: 0.4 * 0.2 * 0.3, 0: 0.4 * 0.2 * 0.7})


def _length_law(rule: RejectionRule, acceptance: torch.Tensor) -> dict[int, float]:
    mass: dict[int, float] = {}
    for weight, length in accepted_lengths(rule, acceptance):
        mass[length] = mass.get(length, 0.0) + weight
    return mass


@rules
def test_comparison_with_the_uniform_is_strict(rule: RejectionRule) -> None:
    """A token that the target forbids would pass, or one that is certain would fail."""
    smallest, largest = 2.0**-53, 1 - 2.0**-53
    for pattern in itertools.product((0.0, 1.0), repeat=3):
        acceptance = torch.tensor(pattern, dtype=torch.float64)
        lengths = {rule.accepted_length(acceptance, [uniform] * 3) for uniform in (smallest, 0.5, largest)}
        assert len(lengths) == 1
    assert rule.accepted_length(torch.tensor([0.5]), [0.5]) == 0


@rules
def test_accepts_an_empty_chain(rule: RejectionRule) -> None:
    """A round with nothing drafted would crash, or not draw from the target."""
    target_laws, draft_laws = TARGET.laws((), 1), torch.empty(0, 4)
    drafted = torch.empty(0, dtype=torch.int64)
    acceptance = rule.acceptance(target_laws, draft_laws, drafted)
    assert acceptance.shape == (0,)
    assert rule.accepted_length(acceptance, []) == 0
    assert torch.equal(rule.next_law(target_laws, draft_laws, drafted, 0), target_laws[0])


@rules
@pairs
def test_acceptance_is_a_probability(rule: RejectionRule, pair: tuple[TableModel, TableModel]) -> None:
    """A probability would be NaN, negative or above one, in float32 or float64."""
    target, draft = pair
    for drafted in itertools.product(range(target.vocab), repeat=3):
        if float(draft.joint((), 3)[drafted]) == 0:
            continue
        for dtype in (torch.float32, torch.float64):
            laws = target.laws(drafted, 4).to(dtype), draft.laws(drafted, 3).to(dtype)
            acceptance = rule.acceptance(*laws, torch.tensor(drafted))
            assert acceptance.dtype == torch.float64
            assert bool(((acceptance >= 0) & (acceptance <= 1)).all())


def test_residual_is_never_empty_or_nan() -> None:
    """Rejection would have nothing to draw from (p equal to q), or draw a token that the target lacks."""
    p = torch.tensor([0.5, 0.5, 0.0, 0.0])
    disjoint = torch.tensor([0.0, 0.0, 0.3, 0.7])
    tiny = torch.tensor([1.0, 5e-8, 6e-8, 0.0], dtype=torch.float16).float()
    assert torch.equal(residual(p, p), p.double())
    assert torch.equal(residual(p, disjoint), p.double())
    assert torch.equal(residual(p, torch.tensor([1.0, 0.0, 0.0, 0.0])).nonzero(), torch.tensor([[1]]))
    assert bool(residual(tiny, tiny.roll(1)).isfinite().all())
    assert residual(torch.tensor([0.0, 1.0, 0.0, 0.0]), p).nonzero().tolist() == [[1]]


def test_running_ratio_is_clamped_at_every_step() -> None:
    """The ratio would be clamped only at the end, so that a lucky token pays for a later unlucky one."""
    target = torch.tensor([[0.8, 0.2], [0.2, 0.8], [0.5, 0.5]], dtype=torch.float64)
    draft = torch.tensor([[0.4, 0.6], [0.4, 0.6]], dtype=torch.float64)
    assert running_ratios(target, draft, torch.tensor([0, 0])).tolist() == pytest.approx([1.0, 0.5])
    assert excess(target[1], draft[1], 0.5).tolist() == pytest.approx([0.0, 0.0])


def test_rules_are_found_by_name() -> None:
    """`SpeculationConfig.rule` would name a rule that does not exist, or another one."""
    assert {name: type(rule) for name, rule in REJECTION_RULES.items()} == {
        "token": TokenRule,
        "block": BlockRule,
    }


def test_drafted_context_reaches_the_table() -> None:
    """The table models would ignore their context, and off-by-one rows would go unnoticed."""
    contexts: list[Context] = [(), (0,), (1,), (0, 1), (1, 0)]
    laws = torch.stack([TARGET.law(context) for context in contexts])
    assert float(torch.pdist(laws).min()) > 0.05
