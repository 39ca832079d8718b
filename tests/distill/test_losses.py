"""Losses against their definitions, written out token by token."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.distill.losses import (
    LossMix,
    acceptance,
    forward_kl,
    negative_log_acceptance,
    reverse_kl,
    total_variation,
)
from foredraft.errors import ParameterError

Law = list[float]
DEFINITIONS: dict[Callable, Callable[[Law, Law], float]] = {
    acceptance: lambda q, p: sum(min(a, b) for a, b in zip(q, p, strict=True)),
    forward_kl: lambda q, p: sum(b * math.log(b / a) for a, b in zip(q, p, strict=True) if b > 0),
    reverse_kl: lambda q, p: sum(a * math.log(a / b) for a, b in zip(q, p, strict=True)),
    total_variation: lambda q, p: 0.5 * sum(abs(a - b) for a, b in zip(q, p, strict=True)),
    negative_log_acceptance: lambda q, p: -math.log(sum(min(a, b) for a, b in zip(q, p, strict=True))),
}

laws = st.lists(st.floats(0.01, 1.0), min_size=4, max_size=4).map(
    lambda weights: [weight / sum(weights) for weight in weights]
)


def logs(*rows: Law) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


@pytest.mark.parametrize("loss", DEFINITIONS, ids=lambda loss: loss.__name__)
@settings(deadline=None, max_examples=50)
@given(q=laws, p=laws)
def test_definition(loss: Callable, q: Law, p: Law):
    """A loss that is not what its name says optimises something else."""
    other = [0.1, 0.2, 0.3, 0.4]
    found = loss(logs(q, other), logs(p, p))
    wanted = [DEFINITIONS[loss](row, p) for row in (q, other)]
    assert found.tolist() == pytest.approx(wanted, abs=1e-9)


def test_acceptance_is_what_the_token_rule_accepts():
    """The estimate in the progress bar must be the rate of the rule that verifies the draft."""
    q, p = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.2, 0.3, 0.5])
    accepted = sum(float(q[token] * torch.clamp(p[token] / q[token], max=1.0)) for token in range(3))
    assert float(acceptance(q.log()[None], p.log()[None])) == pytest.approx(accepted)


def test_a_part_of_the_vocabulary():
    """With a reduced vocabulary, acceptance must be that of the whole law, the rest being never drafted."""
    p = [0.4, 0.1, 0.3, 0.2]
    q = [0.5, 0.5]
    found = float(acceptance(logs(q), logs(p)[:, :2]))
    assert found == pytest.approx(0.4 + 0.1)
    assert float(total_variation(logs(q), logs(p)[:, :2])) == pytest.approx(
        0.5 * sum(abs(a - b) for a, b in zip([*q, 0, 0], p, strict=True))
    )


@pytest.mark.parametrize("loss", list(DEFINITIONS)[1:], ids=lambda loss: loss.__name__)
def test_gradient_points_at_the_target(loss: Callable):
    """Following the gradient must end at the target's law, tokens that it forbids included."""
    p = torch.tensor([[0.6, 0.3, 0.1, 0.0]])
    q_logits = torch.zeros(1, 4, requires_grad=True)
    optimizer = torch.optim.Adam([q_logits], lr=0.05)
    for _ in range(600):
        optimizer.zero_grad()
        loss(torch.log_softmax(q_logits, -1), p.log()).sum().backward()
        assert torch.isfinite(q_logits.grad).all()
        optimizer.step()
    assert torch.softmax(q_logits, -1).tolist()[0] == pytest.approx(p.tolist()[0], abs=0.05)


def test_mix():
    """Weights that are read and not used would leave one loss in charge."""
    q, p = logs([0.7, 0.2, 0.1]), logs([0.2, 0.3, 0.5])
    mix = LossMix.parse("forward-kl=0.5, tv=2")
    assert float(mix(q, p)) == pytest.approx(0.5 * float(forward_kl(q, p)) + 2 * float(total_variation(q, p)))
    assert str(mix) == "forward-kl=0.5,tv=2"
    assert LossMix.parse("reverse-kl").weights == {"reverse-kl": 1.0}


@pytest.mark.parametrize("text", ["", "l2", "tv=much", "tv=0", "tv=-1", "tv=nan", "tv=inf"])
def test_bad_mix(text: str):
    """A misspelt loss must not become another one."""
    with pytest.raises(ParameterError, match="loss"):
        LossMix.parse(text)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), 1000.0])
def test_bad_temperature(temperature: float):
    """At temperature 0 the laws have no gradient."""
    with pytest.raises(ParameterError, match="temperature"):
        LossMix({"tv": 1.0}, temperature)
