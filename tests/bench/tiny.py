"""Tiny models in folders, for engines that load by name, and results made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from foredraft.bench.engines import Request, Run
from foredraft.bench.generate import Contestant, GenerateResult, Measurement
from foredraft.bench.tasks import Task
from text.tiny_tokenizers import byte_level


def save_tiny_llama(folder: Path, *, seed: int = 0, context: int = 1024) -> Path:
    """A llama of two layers with a byte-level tokenizer and a chat template."""
    torch.manual_seed(seed)
    tokenizer = byte_level()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def a_run(tokens: tuple[int, ...] = (1, 2, 3, 4), *, seconds: float = 1.0, **fields: Any) -> Run:
    """A run that gave these tokens in this time."""
    return Run(token_ids=tokens, seconds=seconds, **fields)


def a_result(runs: dict[tuple[str, str], list[list[Run]]], *, temperature: float = 0.0) -> GenerateResult:
    """A result of chat prompts: for each engine and drafter, the repeats of each prompt."""
    result = GenerateResult([], {}, {}, temperature=temperature)
    for (engine, drafter), prompts in runs.items():
        contestant = Contestant(engine, drafter)
        result.contestants.append(contestant)
        result.dtypes[engine] = "float32"
        for index, repeats in enumerate(prompts):
            task = Task("chat", f"prompt {index}")
            for repeat, run in enumerate(repeats):
                result.measurements.append(Measurement(contestant, task, repeat, run))
    return result


class ScriptedEngine:
    """An engine whose runs take scripted time on a fake clock."""

    def __init__(self, clock: FakeClock, seconds: float, *, fails: bool = False) -> None:
        self._clock = clock
        self._seconds = seconds
        self._fails = fails
        self.requests: list[Request] = []

    def drafters(self) -> list[str]:
        return ["none", "ngram"]

    def absent(self) -> dict[str, str]:
        return {"model": "no draft model was given"}

    def dtype(self) -> str:
        return "float32"

    def end_token_ids(self) -> tuple[int, ...]:
        return (0,)

    def context_length(self) -> int:
        return 100

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(range(1, 1 + len(text.split())))

    def run(self, drafter: str, request: Request) -> Run:
        self._clock.now += self._seconds
        self.requests.append(request)
        if self._fails and len(self.requests) > 2:
            raise RuntimeError("out of luck")
        return a_run(seconds=self._seconds)


class FakeClock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now
