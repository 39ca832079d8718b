"""A tiny target with a chat template, drawing with one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from foredraft import Inferencer, LoadedModel
from foredraft.models.in_memory import loaded_from
from text.tiny_tokenizers import byte_level


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def chatty() -> LoadedModel:
    """A random Llama of 2 layers that ends its turns now and then."""
    tokenizer = byte_level()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        bos_token_id=0,
        # So many that one in ten random tokens ends a turn.
        eos_token_id=[tokenizer.convert_tokens_to_ids("<|im_end|>"), *range(20, 60)],
    )
    return loaded_from(LlamaForCausalLM(config).eval(), tokenizer)


@pytest.fixture
def inferencer(chatty: LoadedModel) -> Inferencer:
    return Inferencer(chatty, max_batch_size=4, verify_batch_size=4)
