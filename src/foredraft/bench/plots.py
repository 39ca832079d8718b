"""Results as pictures, PNG and SVG; with matplotlib (see `foredraft.figures`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foredraft.figures import new_figure, save_figure

Row = dict[str, Any]


def generate_plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Bars of tokens per second by task, and acceptance by position where it is known.

    Raises:
        ForedraftError: if matplotlib is not installed.
    """
    if not rows:
        return []
    written = save_figure(_bars(rows), folder / "tokens_per_second")
    if any(row["acceptance_per_position"] for row in rows):
        written += save_figure(_acceptance(rows), folder / "acceptance")
    return written


def step_plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Step cost over tokens, one panel for each batch and context.

    Raises:
        ForedraftError: if matplotlib is not installed.
    """
    if not rows:
        return []
    shapes = list(dict.fromkeys((row["context"], row["batch"]) for row in rows))
    figure = new_figure(len(shapes))
    for axes, (context, batch) in zip(figure.axes, shapes, strict=False):
        chosen = [row for row in rows if (row["context"], row["batch"]) == (context, batch)]
        for engine, dtype in dict.fromkeys((row["engine"], row["dtype"]) for row in chosen):
            line = [row for row in chosen if (row["engine"], row["dtype"]) == (engine, dtype)]
            ticks = [row["tokens"] for row in line]
            axes.plot(ticks, [row["ms_median"] for row in line], marker="o", label=f"{engine} {dtype}")
        axes.set(title=f"batch {batch}, context {context}", xlabel="tokens", ylabel="ms", ylim=(0, None))
        axes.set_xscale("log", base=2)
        axes.legend(fontsize="small")
    return save_figure(figure, folder / "step_cost")


def _bars(rows: Sequence[Row]) -> Any:
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    names = list(dict.fromkeys((row["engine"], row["drafter"]) for row in rows))
    figure = new_figure(1, width=2 + 1.4 * len(tasks))
    axes = figure.axes[0]
    width = 0.8 / max(1, len(names))
    for index, (engine, drafter) in enumerate(names):
        found = {row["task"]: row for row in rows if (row["engine"], row["drafter"]) == (engine, drafter)}
        places = [place for place, task in enumerate(tasks) if task in found]
        chosen = [found[tasks[place]] for place in places]
        heights = [row["tokens_per_second"] for row in chosen]
        errors = [
            [row["tokens_per_second"] - row["tokens_per_second_p10"] for row in chosen],
            [row["tokens_per_second_p90"] - row["tokens_per_second"] for row in chosen],
        ]
        left = [place - 0.4 + (index + 0.5) * width for place in places]
        axes.bar(left, heights, width, yerr=errors, label=f"{engine} {drafter}", error_kw={"lw": 0.8})
    axes.set_xticks(range(len(tasks)), tasks, rotation=20, ha="right")
    axes.set(ylabel="tokens per second")
    axes.legend(fontsize="small")
    return figure


def _acceptance(rows: Sequence[Row]) -> Any:
    figure = new_figure(1)
    axes = figure.axes[0]
    # The row over all tasks says enough; a run of one kind has no such row.
    tasks = {row["task"] for row in rows}
    for row in rows:
        rates = row["acceptance_per_position"]
        if rates and (row["task"] == "all" or len(tasks) == 1):
            axes.plot(range(1, len(rates) + 1), rates, marker="o", label=f"{row['engine']} {row['drafter']}")
    axes.set(xlabel="position in the draft", ylabel="share accepted", ylim=(0, 1))
    axes.legend(fontsize="small")
    return figure
