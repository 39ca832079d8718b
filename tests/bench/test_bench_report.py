"""What the benchmark prints, keeps and draws."""

from __future__ import annotations

import importlib
import json
import sys

import pytest
from tiny import a_result, a_run

from foredraft.bench.compare import compare
from foredraft.bench.plots import generate_plots, step_plots
from foredraft.bench.report import generate_document, save
from foredraft.bench.summary import summarise
from foredraft.bench.tables import compare_markdown, generate_markdown
from foredraft.errors import ParameterError

RUNS = {
    ("foredraft", "none"): [[a_run(seconds=2.0)]],
    ("foredraft", "ngram"): [
        [
            a_run(
                (1, 2, 3, 4), target_steps=2, drafted=4, accepted=2,
                drafted_per_position=(2, 2), accepted_per_position=(1, 1),
                draft_seconds=0.1, target_seconds=0.7, first_token_seconds=0.25, peak_memory=3 * 2**20,
            )
        ]
    ],
}  # fmt: skip
STEP_ROWS = [
    {
        "engine": "transformers", "dtype": "float32", "batch": batch, "context": 128, "tokens": tokens,
        "ms_median": 10.0 + tokens, "ms_min": 9.0,
    }
    for batch in (1, 4)
    for tokens in (1, 8)
]  # fmt: skip


def test_markdown_shows_what_was_measured_and_who_is_absent():
    """A table that drops a column or an engine without a word misleads."""
    result = a_result(RUNS)
    result.absent["llama.cpp"] = "llama-server is not on the PATH"
    result.complete = False
    text = generate_markdown(result, summarise(result))
    row = next(line for line in text.splitlines() if "ngram" in line and "yes" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "foredraft", "ngram", "float32", "4.0 (4.0-4.0)", "2.00 (2.00-2.00)", "-", "2.00",
        "10 %/70 %/20 %", "250 (250-250)", "3", "yes",
    ]  # fmt: skip
    assert "- llama.cpp: llama-server is not on the PATH" in text
    assert "time was up" in text
    assert "0.50" in text, "acceptance by position"


def test_unequal_tokens_are_loud():
    """The one thing that must not be overlooked."""
    result = a_result({**RUNS, ("foredraft", "ngram"): [[a_run((9,))]]})
    assert "NO" in generate_markdown(result, summarise(result))


def test_saved_results_are_read_back(tmp_path):
    """`bench compare` reads what `bench generate --output` wrote."""
    from foredraft.bench.compare import read_rows

    result = a_result(RUNS)
    rows = summarise(result)
    document = generate_document(result, rows)
    written, no_plots = save(tmp_path / "new" / "folder", document, "text", lambda rows, folder: [])
    assert [path.name for path in written] == ["generate.json", "generate.md"] and not no_plots
    assert list(read_rows(written[0])) == rows
    assert json.loads(written[0].read_text())["versions"]["foredraft"]
    table = compare_markdown(compare(rows, rows, tolerance=0.1))
    assert "foredraft ngram float32 chat" in table and "1.00 (1.00-1.00)" in table


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    """A benchmark of an hour must not end in a traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ParameterError, match="output"):
        save(tmp_path / "file" / "folder", {"benchmark": "step", "rows": []}, "", lambda rows, folder: [])


def test_plots_are_drawn(tmp_path):
    """Plots were promised as PNG and SVG."""
    pytest.importorskip("matplotlib")
    written = generate_plots(summarise(a_result(RUNS)), tmp_path) + step_plots(STEP_ROWS, tmp_path)
    assert sorted(path.name for path in written) == [
        "acceptance.png", "acceptance.svg", "step_cost.png", "step_cost.svg", "tokens_per_second.png",
        "tokens_per_second.svg",
    ]  # fmt: skip
    assert all(path.stat().st_size > 1000 for path in written)
    assert "ngram" in (tmp_path / "tokens_per_second.svg").read_text() or written


def test_nothing_measured_draws_nothing(tmp_path):
    """An empty picture looks like a result."""
    assert generate_plots([], tmp_path) == [] == step_plots([], tmp_path)


def test_without_matplotlib_the_rest_is_kept(tmp_path, monkeypatch):
    """Plots are an extra; their absence must not cost the numbers."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    importlib.invalidate_caches()
    result = a_result(RUNS)
    document = generate_document(result, summarise(result))
    written, no_plots = save(tmp_path, document, "text", generate_plots)
    assert len(written) == 2 and "foredraft[bench]" in no_plots
