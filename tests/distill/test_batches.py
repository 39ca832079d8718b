"""Batches: every answer token once, nothing held out among them, filling up without effect."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.distill.batches import batches, epoch_batches, split_held_out, take_tokens
from foredraft.distill.corpus import Sample
from foredraft.distill.losses import LossMix
from foredraft.distill.objective import DraftModelObjective
from foredraft.errors import ParameterError
from tiny_models import llama, noisy


def sample(index: int, prompt: int, answer: int) -> Sample:
    """Tokens that tell where they come from."""
    return Sample(index, 1.0, prompt, tuple(3 + (7 * index + place) % 60 for place in range(prompt + answer)))


shapes = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 20)), min_size=1, max_size=40)


@settings(deadline=None, max_examples=60)
@given(shapes=shapes, seed=st.integers(0, 3), batch_tokens=st.integers(1, 80), max_length=st.integers(4, 40))
def test_every_answer_token_is_trained_on_once(shapes, seed, batch_tokens, max_length):
    """A token that is left out, or counted twice, or a question that is trained on, changes the loss."""
    samples = [sample(index, *shape) for index, shape in enumerate(shapes)]
    found: Counter = Counter()
    for batch in epoch_batches(samples, seed, 0, batch_tokens=batch_tokens, max_length=max_length):
        assert batch.tokens.numel() <= max(batch_tokens, batch.tokens.shape[1])
        for row, mask in zip(batch.tokens, batch.answered, strict=True):
            for place in mask.nonzero().flatten().tolist():
                found[(*row[: place + 2].tolist(),)] += 1
    wanted = Counter(
        one.tokens[: end + 1]
        for one in samples
        for end in range(one.prompt_length, min(len(one.tokens), max_length))
    )
    assert found == wanted


def test_epochs_differ_and_repeat():
    """The order must not be the same in every epoch, and must be when a run is resumed."""
    samples = [sample(index, 2, 3 + index % 7) for index in range(50)]

    def order(seed: int, epoch: int) -> list:
        made = epoch_batches(samples, seed, epoch, batch_tokens=40, max_length=32)
        return [batch.tokens.tolist() for batch in made]

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 1) != order(1, 0)


def test_filling_up_changes_nothing():
    """What stands behind the end of a row must not be seen by it."""
    target = llama(seed=0)
    objective = DraftModelObjective(target, noisy(target), LossMix.parse("forward-kl"))
    samples = [sample(0, 2, 3), sample(1, 4, 12), sample(2, 1, 7)]
    (together,) = batches(samples, batch_tokens=1000, max_length=64)
    alone = batches(samples, batch_tokens=1, max_length=64)
    assert len(alone) == 3
    with torch.no_grad():
        loss, score = objective.loss(together)
        apart = [objective.loss(batch) for batch in alone]
    assert float(loss) == pytest.approx(sum(float(each) for each, _ in apart), rel=1e-5)
    assert score.positions == [22.0]
    assert score.accepted[0] == pytest.approx(sum(each.accepted[0] for _, each in apart), rel=1e-5)


def test_held_out_prompts_are_in_no_training_sample():
    """Another answer to a prompt that was trained on says nothing about new ones."""
    samples = [Sample(index, 1.0, 2, (3, 3 + index % 30, 5, 6, index)) for index in range(90)]
    training, held_out = split_held_out(samples, share=0.1)
    prompts = [{one.tokens[:2] for one in part} for part in (training, held_out)]
    assert not prompts[0] & prompts[1]
    assert len(prompts[1]) == 3 and len(held_out) == 9
    assert sorted(one.index for one in (*training, *held_out)) == list(range(90))
    assert split_held_out(samples[:60], share=0.1)[1] == [one for one in held_out if one.index < 60]


def test_one_prompt_is_not_enough():
    """Nothing could be held out."""
    with pytest.raises(ParameterError, match="two prompts"):
        split_held_out([Sample(index, 1.0, 2, (3, 4, index)) for index in range(9)])


def test_more_data_do_not_change_the_first_tokens():
    """Data that are still being drawn must not change a run that uses a part of them."""
    samples = [sample(index, 2, 3) for index in range(9)]
    assert take_tokens(samples, 11) == samples[:3] == take_tokens(samples[:4], 11)
    assert take_tokens(samples, 1000) == samples
