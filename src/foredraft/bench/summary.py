"""`summarise`: from single runs to the rows that are printed, plotted and compared."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from statistics import median
from typing import Any

from foredraft.bench.engines import PLAIN, Run
from foredraft.bench.generate import Contestant, GenerateResult, Measurement
from foredraft.bench.spread import spread

ALL = "all"
"""The task of rows over all kinds."""
_PLAIN_TRANSFORMERS = Contestant("transformers", PLAIN)
Row = dict[str, Any]
Runs = dict[str, list[Run]]
"""Repeats of each prompt, by prompt."""


def summarise(result: GenerateResult) -> list[Row]:
    """One row for each contestant and kind of task, and one over all kinds.

    A speedup is taken for each prompt, as the ratio of the medians of its interleaved repeats; the row has
    the median over prompts, with the 10th and 90th percentile. What cannot be said is None:

    - `speedup_vs_transformers` where transformers did not run;
    - `equal_to_plain` where tokens differ as they may: sampled runs that share no noise with plain decoding
      keep its distribution and not its tokens.
    """
    kinds = list(dict.fromkeys(measurement.task.kind for measurement in result.measurements))
    wanted = [*kinds, *([ALL] if len(kinds) > 1 else [])]
    rows: list[Row] = []
    for kind in wanted:
        chosen = [entry for entry in result.measurements if kind in (ALL, entry.task.kind)]
        runs_of = _by_contestant(chosen)
        for contestant, runs in runs_of.items():
            rows.append(_row(contestant, kind, runs, runs_of, result))
    return rows


def _by_contestant(measurements: Sequence[Measurement]) -> dict[Contestant, Runs]:
    """Engines in a fixed order, whichever of them happened to run first."""
    seen = sorted({entry.contestant for entry in measurements}, key=_order)
    grouped: dict[Contestant, Runs] = {contestant: {} for contestant in seen}
    for entry in measurements:
        grouped[entry.contestant].setdefault(entry.task.prompt, []).append(entry.run)
    return grouped


def _order(contestant: Contestant) -> tuple[bool, str, bool, str]:
    peer = not contestant.engine.startswith("foredraft")
    return peer, contestant.engine, contestant.drafter != PLAIN, contestant.drafter


def _row(
    contestant: Contestant,
    kind: str,
    runs: Runs,
    runs_of: dict[Contestant, Runs],
    result: GenerateResult,
) -> Row:
    plain = runs_of.get(Contestant(contestant.engine, PLAIN), {})
    every = [run for repeats in runs.values() for run in repeats]
    row: Row = {
        "engine": contestant.engine,
        "drafter": contestant.drafter,
        "task": kind,
        "temperature": result.temperature,
        "dtype": result.dtypes[contestant.engine],
        "prompts": len(runs),
        "runs": len(every),
    }
    row |= _spread_fields("tokens_per_second", [run.tokens_per_second for run in every])
    row |= _spread_fields("speedup_vs_plain", _speedups(runs, plain))
    row |= _spread_fields("speedup_vs_transformers", _speedups(runs, runs_of.get(_PLAIN_TRANSFORMERS, {})))
    row |= _acceptance(every)
    row["equal_to_plain"] = _equal(contestant, runs, plain, result.temperature)
    row |= _time_shares(every)
    first = [run.first_token_seconds * 1000 for run in every if run.first_token_seconds is not None]
    row |= _spread_fields("time_to_first_token_ms", first)
    row["peak_memory_bytes"] = max((run.peak_memory for run in every if run.peak_memory), default=None)
    row["tokens"] = sum(len(run.token_ids) for run in every)
    return row


def _spread_fields(name: str, values: Sequence[float]) -> Row:
    found = spread(values)
    if found is None:
        return {name: None, f"{name}_p10": None, f"{name}_p90": None}
    return {name: found.median, f"{name}_p10": found.low, f"{name}_p90": found.high}


def _speedups(runs: Runs, baseline: Runs) -> list[float]:
    """For each prompt that both have run: ratio of the medians over the repeats that both have."""
    ratios: list[float] = []
    for prompt, own in runs.items():
        pairs = list(zip(own, baseline.get(prompt, ()), strict=False))
        if not pairs:
            continue
        base = median(other.tokens_per_second for _, other in pairs)
        if base > 0:
            ratios.append(median(run.tokens_per_second for run, _ in pairs) / base)
    return ratios


def _acceptance(runs: Sequence[Run]) -> Row:
    stepped = [run for run in runs if run.target_steps]
    steps = sum(run.target_steps or 0 for run in stepped)
    tokens = sum(len(run.token_ids) for run in stepped)
    told = [run for run in runs if run.drafted is not None and run.accepted is not None]
    drafted, accepted = sum(run.drafted or 0 for run in told), sum(run.accepted or 0 for run in told)
    return {
        "mean_accepted_length": tokens / steps if steps else None,
        "acceptance_rate": accepted / drafted if drafted else None,
        "acceptance_per_position": _per_position(runs),
    }


def _per_position(runs: Sequence[Run]) -> list[float]:
    drafted = _column_sums([run.drafted_per_position for run in runs])
    accepted = _column_sums([run.accepted_per_position for run in runs])
    return [stood / guessed for stood, guessed in zip(accepted, drafted, strict=True) if guessed]


def _column_sums(rows: Sequence[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*rows, fillvalue=0)]


def _equal(contestant: Contestant, runs: Runs, plain: Runs, temperature: float) -> bool | None:
    pairs = [(run, plain[prompt][0]) for prompt, own in runs.items() if plain.get(prompt) for run in own]
    if not pairs:
        return None
    equal = all(run.token_ids == other.token_ids for run, other in pairs)
    return equal if equal or temperature == 0 or _draws_the_same(contestant) else None


def _draws_the_same(contestant: Contestant) -> bool:
    """Whether sampled runs must give plain decoding's tokens too, since they are drawn with its noise."""
    if contestant.engine != "foredraft":
        return False
    return contestant.drafter in (PLAIN, "ngram") or contestant.drafter.endswith("/seed-exact")


def _time_shares(runs: Sequence[Run]) -> Row:
    """Shares of the wall time that drafting and the target's forwards took; None where unknown."""
    told = [run for run in runs if run.draft_seconds is not None and run.target_seconds is not None]
    total = sum(run.seconds for run in told)
    if not total:
        return {"draft_share": None, "target_share": None, "other_share": None}
    draft = sum(run.draft_seconds or 0.0 for run in told) / total
    target = sum(run.target_seconds or 0.0 for run in told) / total
    return {"draft_share": draft, "target_share": target, "other_share": max(0.0, 1 - draft - target)}
