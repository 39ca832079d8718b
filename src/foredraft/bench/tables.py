"""Results as Markdown."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from foredraft.bench.compare import Comparison
    from foredraft.bench.generate import GenerateResult
    from foredraft.bench.step import StepResult

Row = dict[str, Any]


def generate_markdown(result: GenerateResult, rows: Sequence[Row]) -> str:
    """One table for each kind of task, acceptance by position, and who is absent."""
    parts: list[str] = []
    for task in dict.fromkeys(row["task"] for row in rows):
        chosen = [row for row in rows if row["task"] == task]
        parts.append(f"## {task} ({chosen[0]['prompts']} prompts, temperature {result.temperature:g})\n")
        parts.append(_generate_table(chosen))
    parts += _acceptance_section(rows)
    parts.append("Medians with the 10th and 90th percentile. Speedups are taken prompt by prompt.")
    parts.append("`equal`: the same tokens as the engine's plain decoding; - where they may differ.")
    parts.append("Memory is that of the engine's process, which all its drafters share.\n")
    if not result.complete:
        parts.append("The time was up before every prompt had run.\n")
    parts += _absent_section(result.absent)
    return "\n".join(parts)


def step_markdown(result: StepResult) -> str:
    """One table for each batch and context, and the machine's limits."""
    parts = [f"# Milliseconds of one forward over T tokens, {result.target}\n"]
    tokens = sorted({row["tokens"] for row in result.rows})
    for context, batch in dict.fromkeys((row["context"], row["batch"]) for row in result.rows):
        chosen = [row for row in result.rows if (row["context"], row["batch"]) == (context, batch)]
        table = _table("engine", "dtype", *(f"T={count}" for count in tokens), "T=8 / T=1")
        for engine, dtype in dict.fromkeys((row["engine"], row["dtype"]) for row in chosen):
            cost = {row["tokens"]: row for row in chosen if (row["engine"], row["dtype"]) == (engine, dtype)}
            cells = [f"{cost[count]['ms_median']:.1f} ({cost[count]['ms_min']:.1f})" for count in tokens]
            flat = f"{cost[8]['ms_median'] / cost[1]['ms_median']:.2f}" if {1, 8} <= cost.keys() else "-"
            table.add_row(engine, dtype, *cells, flat)
        parts.append(f"## batch {batch}, context {context}: median (least)\n")
        parts.append(markdown(table))
    parts.append(_limits_section(result))
    if not result.complete:
        parts.append("The time was up before every shape had been timed.\n")
    parts += _absent_section(result.absent)
    return "\n".join(parts)


def compare_markdown(comparisons: Sequence[Comparison]) -> str:
    """One line for each row that both results have."""
    table = _table("row", "before", "after", "speed ratio", "")
    for entry in comparisons:
        unit = "tok/s" if entry.metric == "tokens_per_second" else "ms"
        ratio = f"{entry.ratio:.2f} ({entry.low:.2f}-{entry.high:.2f})"
        table.add_row(
            entry.label, f"{entry.before:.1f} {unit}", f"{entry.after:.1f} {unit}", ratio, entry.reason
        )
    return markdown(table)


def markdown(table: Table) -> str:
    """A rich table as Markdown text, as wide as it needs to be."""
    buffer = io.StringIO()
    Console(file=buffer, width=10_000, color_system=None, legacy_windows=False).print(table)
    return "\n".join(line.rstrip() for line in buffer.getvalue().strip().splitlines()) + "\n"


def _table(*columns: str) -> Table:
    table = Table(box=box.MARKDOWN)
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _generate_table(rows: Sequence[Row]) -> str:
    table = _table(
        "engine", "drafter", "dtype", "tok/s", "vs own plain", "vs transformers", "mean accepted length",
        "draft/target/other", "first token ms", "peak memory MiB", "equal",
    )  # fmt: skip
    for row in rows:
        shares = [row[name] for name in ("draft_share", "target_share", "other_share")]
        memory = row["peak_memory_bytes"]
        equal = row["equal_to_plain"]
        table.add_row(
            row["engine"],
            row["drafter"],
            row["dtype"],
            _spread(row, "tokens_per_second", 1),
            _spread(row, "speedup_vs_plain", 2),
            _spread(row, "speedup_vs_transformers", 2),
            _number(row["mean_accepted_length"], 2),
            "-" if None in shares else "/".join(f"{100 * share:.0f} %" for share in shares),
            _spread(row, "time_to_first_token_ms", 0),
            "-" if memory is None else f"{memory / 2**20:.0f}",
            "-" if equal is None else ("yes" if equal else "NO"),
        )
    return markdown(table)


def _acceptance_section(rows: Sequence[Row]) -> list[str]:
    told = [row for row in rows if row["acceptance_per_position"]]
    if not told:
        return []
    widest = max(len(row["acceptance_per_position"]) for row in told)
    table = _table("engine", "drafter", "task", *(str(position + 1) for position in range(widest)))
    for row in told:
        cells = [f"{rate:.2f}" for rate in row["acceptance_per_position"]]
        table.add_row(row["engine"], row["drafter"], row["task"], *cells, *[""] * (widest - len(cells)))
    return ["## Share of drafted tokens accepted, by position\n", markdown(table)]


def _limits_section(result: StepResult) -> str:
    limits = result.limits
    floors = ", ".join(f"{floor:.1f} ms at {dtype}" for dtype, floor in result.floors_ms().items())
    per_token = 1000 * 2 * result.parameters
    return (
        "## Limits of this machine\n\n"
        f"Memory is read at {limits.read_bytes_per_second / 1e9:.1f} GB/s: reading the weights once takes "
        f"{floors}. Matrix products run at {limits.float32_flops / 1e9:.0f} GFLOP/s in float32, "
        f"{limits.bfloat16_flops / 1e9:.0f} in bfloat16 ({limits.threads} threads): the arithmetic of one "
        f"token takes {per_token / limits.float32_flops:.2f} ms and "
        f"{per_token / limits.bfloat16_flops:.2f} ms.\n"
    )


def _absent_section(absent: dict[str, str]) -> list[str]:
    if not absent:
        return []
    return ["Absent:\n", *(f"- {name}: {reason}" for name, reason in absent.items()), ""]


def _spread(row: Row, name: str, digits: int) -> str:
    if row[name] is None:
        return "-"
    low, high = row[f"{name}_p10"], row[f"{name}_p90"]
    return f"{row[name]:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
