"""Tiny models in folders, and the command line run in this process."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from foredraft.cli.main import main
from text.tiny_tokenizers import byte_level


@dataclass(frozen=True)
class Outcome:
    """What a run of the command line left behind."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Models:
    """Folders of tiny random models."""

    target: str
    draft: str
    """The target's tokenizer, one layer fewer."""
    other: str
    """Another vocabulary."""
    base: str
    """The target's tokenizer without a chat template."""
    small: str
    """A context of 64 tokens."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    """The command line sets logging up for a whole process."""
    root, own = logging.getLogger(), logging.getLogger("foredraft")
    handlers, level = root.handlers[:], own.level
    yield
    root.handlers[:] = handlers
    own.setLevel(level)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Each is a folder as `save_pretrained` leaves it."""
    root = tmp_path_factory.mktemp("models")
    chatty, plain = byte_level(), byte_level()
    plain.chat_template = None
    return Models(
        target=_save(root / "target", chatty),
        draft=_save(root / "draft", chatty, layers=1),
        other=_save(root / "other", byte_level(vocab_size=330), layers=1),
        base=_save(root / "base", plain),
        small=_save(root / "small", chatty, context=64),
    )


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Outcome]:
    """`run("generate", "hello", stdin=b"...")`; models are kept in an empty folder of the test's own."""
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path / "home"))

    def call(*arguments: str, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        code = main(list(arguments))
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


def _save(folder: Path, tokenizer: PreTrainedTokenizerBase, *, layers: int = 2, context: int = 4096) -> str:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
