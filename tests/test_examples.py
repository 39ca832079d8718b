"""The examples run as they are, on tiny models."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from text.tiny_tokenizers import byte_level

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two models of GPT-2's kind, the second with fewer layers."""
    folder = tmp_path_factory.mktemp("pair")
    tokenizer = byte_level()
    tokenizer.chat_template = None
    for name, layers in (("target", 2), ("draft", 1)):
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=len(tokenizer), n_embd=32, n_layer=layers, n_head=4, n_positions=128,
            initializer_range=0.3, bos_token_id=0, eos_token_id=1,
        )  # fmt: skip
        GPT2LMHeadModel(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return str(folder / "target"), str(folder / "draft")


def _run(monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    path = EXAMPLES / "speculative_inference.py"
    monkeypatch.setattr(sys, "argv", [str(path), "--max-new-tokens", "20", *options])
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize("temperature", ["0", "0.9"])
def test_speculative_inference(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pair: tuple[str, str],
    temperature: str,
):
    """What a newcomer copies first would not run, or would show two different texts."""
    target, draft = pair
    _run(monkeypatch, "--model", target, "--draft-model", draft, "--gamma", "3", "--temperature", temperature)
    out = capsys.readouterr().out
    assert "drafter              model" in out
    assert "drafted, accepted    0," not in out
    assert out.endswith("same text            yes\n")


def test_without_a_draft_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pair: tuple[str, str]
):
    """The default, which needs no second model, would not run."""
    _run(monkeypatch, "--model", pair[0])
    out = capsys.readouterr().out
    assert "drafter              ngram" in out
    assert out.endswith("same text            yes\n")


def test_errors_are_one_line(monkeypatch: pytest.MonkeyPatch, pair: tuple[str, str]):
    """A wrong path would answer the newcomer with a traceback."""
    with pytest.raises(SystemExit, match=r"no model at \./nowhere"):
        _run(monkeypatch, "--model", "./nowhere")
