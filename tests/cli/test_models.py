"""`foredraft models`, `pull`, `info` and `--version`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import foredraft
from foredraft.models import CATALOGUE


def test_version(run: Callable):
    """A report of a fault could not say which foredraft it is about."""
    assert run("--version") == type(run("--version"))(0, f"foredraft {foredraft.__version__}\n", "")


def test_models_lists_the_catalogue(run: Callable):
    """What can be pulled, and under which licence, could not be found out."""
    shown = run("models")
    assert shown.code == 0
    for entry in CATALOGUE.values():
        assert entry.name in shown.out
        assert entry.licence in shown.out
    (record,) = [json.loads(line) for line in run("models", "--json").out.splitlines()]
    assert record["name"] == "smollm2"
    assert record["path"] is None


def test_info(run: Callable, models):
    """What a cache costs, and whether speculation works, could not be known before trying."""
    facts = json.loads(run("info", models.target, "--json").out)
    assert facts["layers"] == 2
    assert facts["hidden_size"] == 32
    assert facts["context_length"] == 4096
    assert facts["dtype"] == "float32"
    assert facts["cache_bytes_per_token"] == 2 * 2 * 2 * 8 * 4, "keys and values, layers, heads, width, bytes"
    assert facts["chat_template"] is True
    assert facts["can_speculate"] is True
    assert facts["rules"] == ["token", "block", "seed-exact"]
    assert json.loads(run("info", models.base, "--json").out)["chat_template"] is False
    shown = run("info", models.target)
    assert shown.code == 0
    assert "cache bytes per token" in shown.out


def test_info_of_a_refused_model(run: Callable, tmp_path: Path):
    """A model that cannot speculate would be described as if it could, or not at all."""
    config = {"model_type": "t5", "is_encoder_decoder": True, "num_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    facts = json.loads(run("info", str(tmp_path), "--json").out)
    assert facts["can_speculate"] is False
    assert "encoder-decoder" in facts["reason"]


def test_info_of_nothing(run: Callable, tmp_path: Path):
    """A wrong path would give a traceback of the loader's."""
    outcome = run("info", str(tmp_path / "none.gguf"))
    assert (outcome.code, outcome.out) == (2, "")
    assert len(outcome.err.splitlines()) == 1
