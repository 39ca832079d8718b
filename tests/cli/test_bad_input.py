"""Bad input of every kind: one line that says what was wrong, exit code 2, no traceback."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

GENERATE = ("generate", "hello", "--max-new-tokens", "4")

WITHOUT_MODEL: dict[str, tuple[tuple[str, ...], str]] = {
    "unknown option": (("generate", "hello", "--colour", "red"), "--colour"),
    "unknown command": (("genarate", "hello"), "genarate"),
    "option without a value": (("generate", "hello", "--top-p"), "--top-p"),
    "no prompt": (("generate",), "prompt"),
    "prompt and file": (("generate", "hello", "--prompts", "x.txt"), "either"),
    "word for a number": ((*GENERATE, "--top-k", "many"), "--top-k"),
    "negative temperature": ((*GENERATE, "--temperature", "-1"), "temperature"),
    "temperature not a number": ((*GENERATE, "--temperature", "nan"), "temperature"),
    "top-p above one": ((*GENERATE, "--top-p", "1.5"), "top"),
    "negative top-k": ((*GENERATE, "--top-k", "-3"), "top"),
    "negative seed": ((*GENERATE, "--seed", "-1"), "seed"),
    "negative length": ((*GENERATE, "--max-new-tokens", "-1"), "max"),
    "minimum above maximum": ((*GENERATE, "--min-new-tokens", "5"), "min_new_tokens (5)"),
    "no samples": ((*GENERATE, "--n", "0"), "n: "),
    "empty stop string": ((*GENERATE, "--stop", ""), "stop string must not be empty"),
    "gamma 0": ((*GENERATE, "--num-draft-tokens", "0"), "between 1 and 64"),
    "gamma -1": ((*GENERATE, "--num-draft-tokens", "-1"), "between 1 and 64"),
    "gamma 1000000": ((*GENERATE, "--num-draft-tokens", "1000000"), "between 1 and 64"),
    "gamma a": ((*GENERATE, "--num-draft-tokens", "a"), "'a'"),
    "unknown drafter": ((*GENERATE, "--drafter", "oracle"), "oracle"),
    "unknown rule": ((*GENERATE, "--rule", "typical"), "typical"),
    "unknown logging level": (("--log-level", "loud", *GENERATE), "loud"),
    "unknown built-in to pull": (("pull", "smollm9"), "smollm9"),
    "system without template": (
        (*GENERATE, "--system", "be kind", "--no-chat", "--target", "BASE"),
        "system",
    ),
    "logprobs without json": ((*GENERATE, "--logprobs", "2", "--target", "BASE"), "--json"),
    "target not there": ((*GENERATE, "--target", "./nowhere"), "./nowhere"),
}
"""Arguments, and what the line must mention."""


def _one_line(outcome, mention: str) -> None:
    assert outcome.code == 2, outcome
    lines = outcome.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("foredraft: "), outcome.err
    assert mention in lines[0]
    assert len(lines[0]) < 400
    assert outcome.out == ""


@pytest.mark.parametrize("name", WITHOUT_MODEL)
def test_bad_arguments(run: Callable, models, name: str):
    """A wrong option would be ignored, or answered with a traceback or a page of usage."""
    arguments, mention = WITHOUT_MODEL[name]
    _one_line(run(*(models.base if part == "BASE" else part for part in arguments)), mention)


@pytest.mark.parametrize(
    ("content", "mention"),
    [
        (b"", "no prompt"),
        (b" \n\n\t\n", "no prompt"),
        (b"\xff\xfe\x00\x01 caf\xe9", "UTF-8"),
        (b"GGUF\x03\x00\x00\x00", "text"),
    ],
    ids=["empty", "blank", "not UTF-8", "binary"],
)
def test_bad_prompts_file(run: Callable, tmp_path: Path, content: bytes, mention: str):
    """A file that is no list of prompts would be generated from, or shown as a decoding error."""
    file = tmp_path / "prompts.txt"
    file.write_bytes(content)
    outcome = run("generate", "--prompts", str(file))
    _one_line(outcome, mention)
    assert str(file) in outcome.err


@pytest.mark.parametrize("line", ["not json", "[1]", "{}", '{"prompt": 3}', "null"])
def test_bad_json_lines(run: Callable, tmp_path: Path, line: str):
    """The user would not learn which line of a long file is the wrong one (blank lines count as lines)."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "fine"}\n\n' + line + "\n", encoding="utf-8")
    _one_line(run("generate", "--prompts", str(file)), "line 3")


def test_prompts_file_missing_or_a_folder(run: Callable, tmp_path: Path):
    """An unreadable path would be an OSError of Python's."""
    _one_line(run("generate", "--prompts", str(tmp_path / "none.txt")), "none.txt")
    _one_line(run("generate", "--prompts", str(tmp_path)), str(tmp_path))


def test_bad_standard_input(run: Callable, models):
    """Bytes that are no text, or no text at all, would reach the tokenizer."""
    _one_line(run("generate", "-", "--target", models.target, stdin=b"\xff\xfe"), "standard input")
    _one_line(run("generate", "-", "--target", models.target, stdin=b""), "empty")


def test_empty_prompt(run: Callable, models):
    """A chat template would turn an empty argument into a conversation nobody asked for."""
    _one_line(run("generate", "", "--target", models.target), "empty")


def test_prompt_longer_than_the_context(run: Callable, models, tmp_path: Path):
    """A prompt of 100,000 tokens would run out of positions inside the model."""
    file = tmp_path / "long.txt"
    file.write_text("é" * 100_000, encoding="utf-8")
    _one_line(run("generate", "--prompts", str(file), "--target", models.target), "context")


def test_folder_without_config(run: Callable, tmp_path: Path):
    """A folder of something else would be looked up as a hub id."""
    _one_line(run(*GENERATE, "--target", str(tmp_path)), "config.json")


def test_broken_weights(run: Callable, models, tmp_path: Path):
    """A cut file of weights would load as far as it goes."""
    folder = tmp_path / "cut"
    shutil.copytree(models.target, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    _one_line(run(*GENERATE, "--target", str(folder)), "model.safetensors")


def test_broken_gguf(run: Callable, tmp_path: Path):
    """A truncated GGUF file, or a file of another kind, would end in a struct error."""
    cut, other = tmp_path / "cut.gguf", tmp_path / "other.gguf"
    cut.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 40)
    other.write_bytes(b"PK\x03\x04 not a model")
    _one_line(run(*GENERATE, "--target", str(cut)), "cut.gguf")
    _one_line(run(*GENERATE, "--target", str(other)), "other.gguf")


def test_pickled_weights(run: Callable, models, tmp_path: Path):
    """A pickle would run whatever code it holds."""
    folder = tmp_path / "pickled"
    shutil.copytree(models.target, folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    _one_line(run(*GENERATE, "--target", str(folder)), "pickle")


def test_wrong_vocabulary_pair(run: Callable, models):
    """Tokens of another vocabulary would be verified as if they meant the same."""
    _one_line(run(*GENERATE, "--target", models.target, "--draft", models.other), "tokenizers")


def test_drafter_and_draft_contradict(run: Callable, models):
    """A draft that is not used, or a drafter without one, would go unnoticed."""
    target = ("--target", models.target)
    _one_line(run(*GENERATE, *target, "--drafter", "model"), "--draft")
    _one_line(run(*GENERATE, *target, "--drafter", "ngram", "--draft", models.draft), "ngram")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--dtype", "int3"),
        ("--device", "abacus"),
        ("--attention", "flash9"),
        ("--max-batch-size", "0"),
        ("--verify-batch-size", "-2"),
    ],
)
def test_bad_model_options(run: Callable, models, option: str, value: str):
    """A value that cannot be had would be replaced by another in silence."""
    _one_line(run(*GENERATE, "--target", models.target, option, value), value)


def test_chat_template_that_is_not_there(run: Callable, models):
    """--chat on a base model would be ignored, or fail inside jinja."""
    _one_line(run(*GENERATE, "--target", models.base, "--chat"), "chat template")
    _one_line(run("chat", "--target", models.base), "chat template")


def test_encoder_decoder(run: Callable, tmp_path: Path):
    """A model that cannot be rolled back or continued would be run all the same."""
    config = {"model_type": "t5", "is_encoder_decoder": True, "architectures": ["T5ForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    _one_line(run(*GENERATE, "--target", str(tmp_path)), "encoder-decoder")


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="a folder inside a file is no folder anywhere else")
def test_unwritable_cache(run: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A cache folder that cannot be made would surface as an OSError in the middle of a fetch."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path / "file" / "home"))
    _one_line(run("pull", "smollm2"), "FOREDRAFT_HOME")
    _one_line(run(*GENERATE), "FOREDRAFT_HOME")
