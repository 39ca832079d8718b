"""Tests of the vocabulary map and of reading bytes from a tokenizer's spelling."""

from __future__ import annotations

import pytest
import torch
from tiny_vocabularies import DRAFT, DRAFT_END, END, TARGET, vocabulary_map
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from foredraft.drafters.vocabulary_map import VocabularyMap
from foredraft.drafters.vocabulary_map_spelling import token_bytes
from foredraft.errors import IncompatibleDraftError


def test_tokens_are_paired_by_their_bytes() -> None:
    """If this failed, a draft token would be proposed as another text than it stands for."""
    pairs = vocabulary_map().draft_of_target
    assert pairs.pop(END) == DRAFT_END
    assert {target: TARGET[target] for target in pairs} == {
        target: DRAFT[draft] for target, draft in pairs.items()
    }
    assert sorted(TARGET[target] or b"" for target in pairs) == sorted(
        [b"a", b"b", b" ", b"\xc3", b"\xa9", b"ab", b" a"]
    )


def test_special_tokens_are_paired_only_when_told() -> None:
    """If this failed, tokens that merely look alike would be taken to mean the same."""
    vocabulary = VocabularyMap([None, b"a"], [b"a", None])
    assert vocabulary.draft_of_target == {1: 0}


def test_mapped_logits_are_the_restricted_law() -> None:
    """If this failed, the recorded law would not be the draft's law restricted to the intersection."""
    logits = torch.randn(2, len(DRAFT), generator=torch.Generator().manual_seed(0))
    law = torch.softmax(vocabulary_map().target_logits(logits, len(TARGET)), dim=-1)
    full = torch.softmax(logits, dim=-1)
    pairs = vocabulary_map().draft_of_target
    mass = full[:, list(pairs.values())].sum(dim=-1)
    for target in range(len(TARGET)):
        expected = full[:, pairs[target]] / mass if target in pairs else torch.zeros(2)
        assert torch.allclose(law[:, target], expected, atol=1e-6)


@pytest.mark.parametrize(("target_padding", "draft_padding"), [(7, 0), (0, 5), (-3, -4), (3, 3)])
def test_padded_vocabularies_are_no_mismatch(target_padding: int, draft_padding: int) -> None:
    """If this failed, models padded beyond (or cut short of) their tokenizer would be refused or mixed up."""
    mapped = vocabulary_map().target_logits(
        torch.zeros(1, len(DRAFT) + draft_padding), len(TARGET) + target_padding
    )
    assert mapped.shape == (1, len(TARGET) + target_padding)
    possible = mapped[0].isfinite().nonzero().flatten().tolist()
    assert possible
    assert set(possible) <= set(vocabulary_map().draft_of_target)
    assert vocabulary_map().target_bytes(len(TARGET) + 3) is None
    assert vocabulary_map().draft_bytes(len(DRAFT) + 3) is None


def test_duplicates_keep_the_map_one_to_one() -> None:
    """If this failed, two ids would share one law entry and the draft's law would not be normalised."""
    vocabulary = VocabularyMap([b"a", b"a", b"b", b""], [b"b", b"b", b"a", b""])
    assert vocabulary.draft_of_target == {0: 2, 2: 0}


def test_no_common_token_is_refused() -> None:
    """If this failed, a draft that can propose nothing would slow decoding down silently."""
    with pytest.raises(IncompatibleDraftError, match="no token in common"):
        VocabularyMap([b"a", None], [b"b", None])


def test_bytes_of_a_byte_level_tokenizer() -> None:
    """If this failed, byte-level tokens would be matched by their printable disguise."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["the café 漢字 🙂\n the the café"], trainer)
    texts = token_bytes([backend.id_to_token(index) for index in range(301)], special_ids=[0])
    assert texts[0] is None
    assert texts[-1] is None
    assert {text for text in texts if text is not None and len(text) == 1} == {bytes([b]) for b in range(256)}
    text = "the café 漢字 🙂\n"
    assert b"".join(texts[token] or b"" for token in backend.encode(text).ids) == text.encode()


def test_bytes_of_a_sentencepiece_tokenizer() -> None:
    """If this failed, spaces and byte tokens of Llama 2's kind would not match other tokenizers."""
    spellings = ["<s>", "<0x41>", "<0x0A>", "▁the", "A", "▁", "漢", "<0xE6>", None, ""]
    assert token_bytes(spellings, special_ids=[0]) == [
        None, None, b"\n", b" the", b"A", b" ", "漢".encode(), b"\xe6", None, None,
    ]  # fmt: skip
