"""Draft-free drafters and drafts of another tokenizer on a real (tiny) transformer with its cache."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hashed_model import generate
from tiny_vocabularies import DRAFT, DRAFT_START, TARGET, draft_encode, target_encode, vocabulary_map
from transformers import LlamaConfig, LlamaForCausalLM

from foredraft.drafters import Drafter
from foredraft.drafters.other_tokenizer import IntersectionDrafter
from foredraft.drafters.other_tokenizer_strings import StringMatchDrafter
from foredraft.drafters.suffix_automaton import SuffixAutomatonDrafter
from foredraft.drafters.suffix_index import SuffixIndex
from foredraft.drafters.suffix_index_drafter import SuffixIndexDrafter
from foredraft.drafters.token_recycling import TokenRecyclingDrafter
from foredraft.execution import ReferenceRunner
from foredraft.params import SamplingParams

V = len(TARGET)


def llama(vocab_size: int, seed: int) -> ReferenceRunner:
    """Two layers of random float64 weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    return ReferenceRunner(LlamaForCausalLM(config).double().eval(), context_length=256)


def _tli(coupled: bool) -> IntersectionDrafter:
    return IntersectionDrafter(
        llama(len(DRAFT), 1), vocabulary_map(), draft_encode,
        vocab_size=V, start_ids=[DRAFT_START], coupled=coupled,
    )  # fmt: skip


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "suffix": lambda: SuffixAutomatonDrafter(vocab_size=V),
    "suffix-index": lambda: SuffixIndexDrafter(SuffixIndex(capacity=1000), vocab_size=V),
    "recycling": lambda: TokenRecyclingDrafter(vocab_size=V),
    "tli": lambda: _tli(coupled=True),
    "slem": lambda: StringMatchDrafter(
        llama(len(DRAFT), 1), vocabulary_map(), draft_encode, target_encode, vocab_size=V
    ),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_output_is_that_of_plain_decoding(name: str) -> None:
    """If this failed, a drafter would change the text through the cache, tree masks or compaction."""
    target, drafter = llama(V, 0), DRAFTERS[name]()
    prompts = [[2], [3, 4, 5] * 7, [7, 8, 2]]
    drafted = 0
    for params in (
        SamplingParams(max_new_tokens=40),
        SamplingParams(max_new_tokens=40, temperature=0.7, seed=5),
    ):
        plain = generate(target, prompts, params)
        # The drafter is kept, so that what it learnt from one request meets the next.
        sequences = generate(target, prompts, params, drafter)
        assert [sequence.tokens for sequence in sequences] == [sequence.tokens for sequence in plain]
        drafted += sum(sequence.stats.drafted for sequence in sequences)
    assert drafter.name == name
    assert drafted > 0
