"""`foredraft distill`: data, training, evaluation and card from one command, and bad input in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

SMALL = (
    "--tokens", "900", "--max-new-tokens", "16", "--epochs", "1", "--batch-tokens", "256", "--layers", "1",
    "--data-batch-size", "8",
)  # fmt: skip


@pytest.fixture
def questions(tmp_path: Path) -> str:
    path = tmp_path / "questions.txt"
    path.write_text("".join(f"Say {word}\n" for word in ("hello", "fox", "dog", "café", "1, 2, 3")))
    return str(path)


def test_a_draft_from_one_command(run: Callable, models, tmp_path: Path, questions: str):
    """What the command leaves behind must be a draft for that target, and say how good it is."""
    out = tmp_path / "draft"
    command = ("distill", "--target", models.target, "--out", str(out), "--prompts", questions, *SMALL)
    first = run(*command)
    assert first.code == 0, first.err
    assert "shards" not in first.err  # transformers' own progress
    assert "expected speedup" in first.out and first.out.count("x |") == 2
    assert AutoModelForCausalLM.from_pretrained(out).config.num_hidden_layers == 1
    card = (out / "README.md").read_text()
    for fact in ("seed 0", "held out", "forward-kl=1,tv=1", "## Licence", "base_model", "given prompts"):
        assert fact in card
    results = json.loads((out / "acceptance.json").read_text())
    assert 0 <= results["held_out_acceptance"][0] <= 1
    assert [each["temperature"] for each in results["decoding"]] == [0.0, 1.0]
    assert (out / "training" / "log.jsonl").exists()

    used = run("generate", "hello", "--target", models.target, "--draft", str(out), "--max-new-tokens", "12")
    plain = run("generate", "hello", "--target", models.target, "--drafter", "none", "--max-new-tokens", "12")
    assert used.code == 0 and used.out == plain.out

    weights = (out / "model.safetensors").read_bytes()
    assert run(*command).code == 0
    assert (out / "model.safetensors").read_bytes() == weights


def test_data_only(run: Callable, models, tmp_path: Path, questions: str):
    """Data can be drawn alone, at length and elsewhere; training then uses them."""
    data = tmp_path / "data"
    drawn = run(
        "distill", "--target", models.target, "--out", str(tmp_path / "x"), "--data", str(data),
        "--prompts", questions, "--data-only", *SMALL,
    )  # fmt: skip
    assert drawn.code == 0 and str(data) in drawn.err
    assert not (tmp_path / "x").exists()
    lines = (data / "tokens.jsonl").read_text().splitlines()
    assert sum(len(json.loads(line)["tokens"]) for line in lines) >= 900
    trained = run(
        "distill", "--target", models.target, "--out", str(tmp_path / "y"), "--data", str(data), *SMALL
    )
    assert trained.code == 0, trained.err
    assert (data / "tokens.jsonl").read_text().splitlines() == lines


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "no folder": ((), "--out"),
    "kind": (("--out", "OUT", "--kind", "medusa"), "medusa"),
    "loss": (("--out", "OUT", "--loss", "l2"), "l2"),
    "loss weight": (("--out", "OUT", "--loss", "tv=much"), "NAME=WEIGHT"),
    "loss temperature": (("--out", "OUT", "--loss-temperature", "0"), "loss temperature"),
    "tokens": (("--out", "OUT", "--tokens", "0"), "tokens"),
    "temperatures": (("--out", "OUT", "--temperatures", "0,hot"), "temperatures"),
    "no temperature": (("--out", "OUT", "--temperatures", ""), "temperatures"),
    "negative temperature": (("--out", "OUT", "--temperatures", "-1"), "temperature"),
    "epochs": (("--out", "OUT", "--epochs", "0"), "epochs"),
    "learning rate": (("--out", "OUT", "--learning-rate", "0"), "learning_rate"),
    "dtype of the draft": (("--out", "OUT", "--save-dtype", "int8"), "int8"),
    "runner": (("--out", "OUT", "--runner", "slow"), "slow"),
    "prompts not there": (("--out", "OUT", "--prompts", "nowhere.txt"), "nowhere.txt"),
    "target not there": (("--out", "OUT", "--target", "./nowhere"), "./nowhere"),
    "layers": (("--out", "OUT", "--layers", "two"), "'two'"),
    "layer not there": (("--out", "OUT", "--layers", "0,2", "--data", "DATA"), "from 0 to 1"),
    "too many layers": (("--out", "OUT", "--layers", "9", "--data", "DATA"), "layers"),
    "folder is a file": (("--out", "FILE", "--data-only"), "cannot be written"),
    "no chat template": (("--out", "OUT", "--target", "BASE"), "chat template"),
    "data of another target": (("--out", "OUT", "--data", "OTHER"), "target 'other'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(run: Callable, models, tmp_path: Path, name: str):
    """A mistake must cost a line and no hours."""
    arguments, mention = BAD[name]
    (tmp_path / "file").write_text("")
    for folder, target in (("data", models.target), ("others", "other")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "settings.json").write_text(json.dumps({"target": target}))
        samples = [
            {"index": index, "temperature": 0, "prompt_length": 1, "tokens": [5 + index, *range(5, 400)]}
            for index in range(3)
        ]
        text = "".join(json.dumps(sample) + "\n" for sample in samples)
        (tmp_path / folder / "tokens.jsonl").write_text(text)
    places = {
        "OUT": str(tmp_path / "out"),
        "FILE": str(tmp_path / "file"),
        "DATA": str(tmp_path / "data"),
        "OTHER": str(tmp_path / "others"),
        "BASE": models.base,
    }
    chosen = [places.get(argument, argument) for argument in arguments]
    target = () if "--target" in chosen else ("--target", models.target)
    size = () if "--tokens" in chosen else ("--tokens", "1000")
    outcome = run("distill", *target, *chosen, *size)
    assert outcome.code == 2, outcome
    assert mention in outcome.err.splitlines()[-1]
    assert [line for line in outcome.err.splitlines() if "tokens in" not in line] == [
        outcome.err.splitlines()[-1]
    ]
    assert outcome.out == ""
