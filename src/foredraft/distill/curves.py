"""The log of a run as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foredraft.figures import new_figure, save_figure

_SMOOTHING = 0.1


def plot_training(log: Sequence[Mapping[str, Any]], stem: Path) -> list[Path]:
    """Loss and acceptance over steps, PNG and SVG.

    Raises:
        ForedraftError: if matplotlib is not installed.
    """
    steps = [record for record in log if "loss" in record]
    epochs = [record for record in log if "held_out_acceptance" in record]
    figure = new_figure(2)
    losses, rates = figure.axes
    ticks = [record["step"] for record in steps]
    losses.plot(ticks, _smooth([record["loss"] for record in steps]))
    losses.set(xlabel="step", ylabel="loss")
    depth = len(steps[0]["acceptance"]) if steps else 0
    for position in range(depth):
        line = rates.plot(
            ticks,
            _smooth([record["acceptance"][position] for record in steps]),
            label=f"draft position {position + 1}",
        )
        rates.plot(
            [record["step"] for record in epochs],
            [record["held_out_acceptance"][position] for record in epochs],
            marker="o", linestyle="none", color=line[0].get_color(),
        )  # fmt: skip
    rates.set(xlabel="step", ylabel="acceptance (dots: held out)", ylim=(0, 1))
    if depth:
        rates.legend(fontsize="small")
    return save_figure(figure, stem)


def _smooth(values: Sequence[float]) -> list[float]:
    """Exponentially weighted mean, without the bias of its start."""
    smoothed: list[float] = []
    total = weight = 0.0
    for value in values:
        total = (1 - _SMOOTHING) * total + value
        weight = (1 - _SMOOTHING) * weight + 1
        smoothed.append(total / weight)
    return smoothed
