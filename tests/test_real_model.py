"""Losslessness on a real model: SmolLM2-135M-Instruct, fifty prompts, float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from foredraft import Inferencer, LoadedModel, SpeculativeInferencer, load_model
from foredraft.bench.tasks import load_tasks
from foredraft.certificate.checks import check_greedy
from foredraft.models.in_memory import loaded_from
from foredraft.params import SamplingParams

pytestmark = [pytest.mark.slow, pytest.mark.model]

TOKENS = 16
Chats = list[list[dict[str, str]]]


@pytest.fixture(scope="module")
def target(smollm2: Path) -> LoadedModel:
    return load_model(smollm2)


@pytest.fixture(scope="module")
def draft(target: LoadedModel) -> LoadedModel:
    """The target's first half: a draft that is sometimes right."""
    config = type(target.model.config)(**{**target.model.config.to_dict(), "num_hidden_layers": 15})
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(target.model.state_dict(), strict=False)
    return loaded_from(model.to(torch.float32), target.tokenizer)


@pytest.fixture(scope="module")
def plain(target: LoadedModel) -> Inferencer:
    return Inferencer(target, verify_batch_size=8)


@pytest.fixture(scope="module")
def chats() -> Chats:
    shortest = sorted((task.prompt for task in load_tasks()), key=len)[:50]
    return [[{"role": "user", "content": prompt}] for prompt in shortest]


def test_greedy_text_is_plain_text(target, plain, chats, record_property):
    """Every token must be the target's own argmax; near-ties are counted and listed."""
    speculative = SpeculativeInferencer(target, num_draft_tokens=4, verify_batch_size=8)
    prompts = [plain.encode(chat) for chat in chats]
    check = check_greedy(plain, speculative, prompts, SamplingParams(max_new_tokens=TOKENS))
    record_property("summary", check.summary)
    print(check.summary, check.details)
    assert check.passed, check


def test_greedy_text_with_a_draft_model_is_plain_text(target, draft, plain, chats):
    """The same with a model as drafter, whose cache is rolled back as well."""
    speculative = SpeculativeInferencer(target, draft, num_draft_tokens=3, verify_batch_size=8)
    prompts = [plain.encode(chat) for chat in chats]
    check = check_greedy(plain, speculative, prompts, SamplingParams(max_new_tokens=TOKENS))
    print(check.summary, check.details)
    assert check.passed, check


@pytest.fixture(scope="module")
def sampled(plain: Inferencer, chats: Chats) -> list[tuple[int, ...]]:
    outputs = plain.inference(chats, temperature=0.8, top_p=0.95, seed=11, max_new_tokens=TOKENS)
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize("gamma", [1, 4, 8])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_seed_exact_text_is_plain_text(target, chats, sampled, gamma, batch):
    """Same seed, same text, for every draft length and batch."""
    speculative = SpeculativeInferencer(
        target, num_draft_tokens=gamma, rule="seed-exact", max_batch_size=batch, verify_batch_size=batch
    )
    outputs = speculative.inference(chats, temperature=0.8, top_p=0.95, seed=11, max_new_tokens=TOKENS)
    assert [output.token_ids for output in outputs] == sampled


def test_seed_exact_text_with_a_draft_model_is_plain_text(target, draft, chats, sampled):
    """Coupled drawing makes a model's drafts match the target's tokens; the text stays the same."""
    speculative = SpeculativeInferencer(target, draft, num_draft_tokens=3, rule="seed-exact")
    outputs = speculative.inference(chats, temperature=0.8, top_p=0.95, seed=11, max_new_tokens=TOKENS)
    assert [output.token_ids for output in outputs] == sampled
    assert sum(output.stats.accepted for output in outputs) > 0
