"""Tiny random models: a target with drafts of every quality, and one model of each supported family."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB = 64
WINDOW = 16
CONTEXT = 256

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GROUPED: dict[str, Any] = {**_COMMON, "num_key_value_heads": 2}
_MIXED: dict[str, Any] = {
    **_GROUPED,
    "head_dim": 8,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
}


def llama(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """A Llama of 64 tokens, 2 layers and 256 places, or with some of it changed."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**{**_GROUPED, **changes})).eval()


def noisy(model: PreTrainedModel, size: float = 0.05, seed: int = 1) -> PreTrainedModel:
    """A copy whose weights are off by `size` of their spread: a draft that is partly accepted."""
    copy = type(model)(model.config).eval()
    copy.load_state_dict(model.state_dict())
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in copy.parameters():
            spread = parameter.std() if parameter.numel() > 1 else parameter.abs()
            parameter.add_(size * spread * torch.randn(parameter.shape, generator=noise))
    return copy


def _gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3,
            bos_token_id=1, eos_token_id=2, pad_token_id=0,
        )
    )  # fmt: skip


_BUILDERS: dict[str, Callable[[], PreTrainedModel]] = {
    "gpt2": _gpt2,
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_GROUPED)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_GROUPED)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_GROUPED, head_dim=8)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**_GROUPED, sliding_window=WINDOW)),
    "phi": lambda: PhiForCausalLM(PhiConfig(**_COMMON)),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**_MIXED, query_pre_attn_scalar=8, tie_word_embeddings=False)
    ),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**_MIXED, query_pre_attn_scalar=8, tie_word_embeddings=False)
    ),
    "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**_COMMON)),
}

FAMILIES = tuple(_BUILDERS)
SLIDING_FAMILIES = ("mistral", "gemma2", "gemma3")


@cache
def family(name: str) -> PreTrainedModel:
    """The tiny model of a family, the same object every time; leave its weights alone."""
    torch.manual_seed(0)
    return _BUILDERS[name]().eval()


@cache
def family_draft(name: str, kind: str) -> PreTrainedModel:
    """A draft for the family's model: `copy` (all accepted), `noise` (partly), `random` (mostly rejected)."""
    if kind == "copy":
        return family(name)
    if kind == "noise":
        return noisy(family(name))
    return llama(seed=1, num_hidden_layers=1)


DRAFT_KINDS = ("copy", "noise", "random")


@torch.inference_mode()
def uncached_logits(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """float32 `[tokens, vocab]` of the model's own forward without any cache."""
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()


def random_tokens(count: int, seed: int, vocab: int = VOCAB) -> list[int]:
    """Token ids from 3 on, so that none of them is special."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocab, (count,), generator=generator).tolist()
