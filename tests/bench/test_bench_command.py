"""`foredraft bench` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from foredraft.bench import generate as generate_module
from foredraft.bench.host import LocalHost
from foredraft.cli.bench import bench
from foredraft.errors import ParameterError

NEEDED = {
    "engine", "drafter", "task", "temperature", "tokens_per_second", "speedup_vs_plain",
    "speedup_vs_transformers", "mean_accepted_length", "equal_to_plain",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines in this process, and no peers that happen to be installed."""
    run = generate_module.bench_generate
    monkeypatch.setattr(
        generate_module,
        "bench_generate",
        lambda *arguments, **options: run(*arguments, **options, open_host=LocalHost),
    )


def _run(*arguments: str) -> Any:
    return CliRunner().invoke(bench, [*arguments], catch_exceptions=True)


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_generate_compares_engines(target_folder: Path, draft_folder: Path, tmp_path: Path, temperature: str):
    """The command as a user types it: rows for every engine and drafter, equal where they must be."""
    done = _run(
        "generate", "--target", str(target_folder), "--draft", str(draft_folder), "--kinds", "chat,math",
        "--prompts-per-kind", "1", "--max-new-tokens", "8", "--repeats", "2", "--temperature", temperature,
        "--engines", "foredraft,transformers", "--output", str(tmp_path / "out"), "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    rows = document["rows"]
    assert all(set(row) >= NEEDED for row in rows)
    assert {row["task"] for row in rows} == {"chat", "math", "all"}
    drafters = {(row["engine"], row["drafter"]) for row in rows}
    assert drafters >= {
        ("foredraft", "none"), ("foredraft", "ngram"), ("foredraft", "model"), ("transformers", "none"),
        ("transformers", "prompt_lookup"), ("transformers", "assisted"),
    }  # fmt: skip
    assert (("foredraft", "model/seed-exact") in drafters) == (temperature != "0")
    for row in rows:
        must_be_equal = row["engine"] == "foredraft" and (temperature == "0" or row["drafter"] != "model")
        assert row["equal_to_plain"] is True or not must_be_equal, row
        assert row["runs"] == 2 * row["prompts"]
    assert json.loads((tmp_path / "out" / "generate.json").read_text()) == document
    assert "| foredraft" in (tmp_path / "out" / "generate.md").read_text()


def test_quick_is_short_and_bounded(monkeypatch: pytest.MonkeyPatch, target_folder: Path):
    """--quick must end within two minutes whatever else was asked for."""
    seen: dict[str, Any] = {}

    def fake(settings: Any, options: Any, **rest: Any) -> Any:
        seen["options"] = options
        raise ParameterError("enough")

    monkeypatch.setattr(generate_module, "bench_generate", fake)
    _run("generate", "--target", str(target_folder), "--quick", "--repeats", "9", "--max-new-tokens", "999")
    assert seen["options"].budget_seconds <= 110
    assert seen["options"].repeats == 1
    assert seen["options"].max_new_tokens <= 32


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["generate", "--kinds", "poetry"], "kinds"),
        (["generate", "--engines", "gpt"], "engines"),
        (["generate", "--temperature", "-1"], "temperature"),
        (["generate", "--num-draft-tokens", "many"], "num_draft_tokens"),
        (["step", "--tokens", "one"], "tokens"),
        (["step", "--dtypes", "int3"], "dtypes"),
    ],
)
def test_wrong_options_are_one_line(arguments: list[str], said: str, target_folder: Path):
    """Every mistake must name the option, before a model is loaded."""
    done = _run(*arguments, "--target", str(target_folder))
    assert isinstance(done.exception, ParameterError)
    assert said in str(done.exception)


def test_compare_exits_with_one_on_regressions(tmp_path: Path):
    """Scripts look at the exit code."""
    row = {"engine": "foredraft", "drafter": "ngram", "task": "chat", "tokens_per_second": 10.0}
    fast, slow = tmp_path / "fast.json", tmp_path / "slow.json"
    fast.write_text(json.dumps({"rows": [row]}))
    slow.write_text(json.dumps({"rows": [{**row, "tokens_per_second": 7.0}]}))
    assert _run("compare", str(fast), str(fast)).exit_code == 0
    done = _run("compare", str(fast), str(slow), "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["rows"][0]["ratio"] == pytest.approx(0.7)
    assert _run("compare", str(fast), str(slow), "--tolerance", "0.5").exit_code == 0


def test_the_command_has_three_parts():
    """Scripts call them by these names."""
    names = {command.name for command in typer.main.get_command(bench).commands.values()}
    assert names == {"step", "generate", "compare"}
