"""Drafts cut from a target: the right layers of every family, embeddings tied as in the target."""

from __future__ import annotations

import pytest
import torch

from foredraft.distill.student import make_student, spread_layers
from foredraft.errors import ParameterError
from tiny_models import FAMILIES, family, llama, random_tokens, uncached_logits

TEXT = random_tokens(20, seed=3)


@pytest.mark.parametrize("name", FAMILIES)
def test_all_layers_are_the_target(name: str):
    """A weight that is not copied, or copied to another place, would show at once."""
    target = family(name)
    student = make_student(target, range(target.config.num_hidden_layers)).eval()
    torch.testing.assert_close(uncached_logits(student, TEXT), uncached_logits(target, TEXT))


@pytest.mark.parametrize("name", FAMILIES)
def test_chosen_layers(name: str):
    """The draft must have the layers asked for, their kinds of attention included, in the order given."""
    target = family(name)
    student = make_student(target, [1]).eval()
    assert student.config.num_hidden_layers == 1
    assert student.num_parameters() < target.num_parameters()
    kinds = getattr(target.config, "layer_types", None)
    assert kinds is None or student.config.layer_types == [kinds[1]]
    swapped = make_student(target, [1, 0]).eval()
    back = make_student(swapped, [1, 0]).eval()
    assert not torch.allclose(uncached_logits(swapped, TEXT), uncached_logits(target, TEXT))
    torch.testing.assert_close(uncached_logits(back, TEXT), uncached_logits(target, TEXT))


def test_the_target_keeps_its_weights():
    """Training the draft must not train the target."""
    target = llama(seed=0)
    before = uncached_logits(target, TEXT)
    student = make_student(target, [0])
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.zero_()
    assert target.config.num_hidden_layers == 2
    torch.testing.assert_close(uncached_logits(target, TEXT), before, rtol=0, atol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_are_tied_as_in_the_target(tied: bool):
    """A head untied by the copy would double the draft; one tied by it would be another model."""
    student = make_student(llama(seed=0, tie_word_embeddings=tied), [0])
    assert (student.get_input_embeddings().weight is student.get_output_embeddings().weight) == tied


def test_spread_layers():
    """The first layer reads the embedding; the others follow at even distances."""
    assert spread_layers(30, 1) == (0,)
    assert spread_layers(30, 2) == (0, 15)
    assert spread_layers(30, 4) == (0, 7, 15, 22)
    assert spread_layers(3, 3) == (0, 1, 2)
    for wrong in (0, 4, -1):
        with pytest.raises(ParameterError, match="between 1 and"):
            spread_layers(3, wrong)


@pytest.mark.parametrize("layers", [[], [2], [-1]])
def test_layers_that_are_not_there(layers: list[int]):
    """Must be named in one line, not end in an index error."""
    with pytest.raises(ParameterError, match="from 0 to 1"):
        make_student(llama(seed=0), layers)
