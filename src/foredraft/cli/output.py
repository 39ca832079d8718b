"""What the commands print: the line of statistics and JSON objects."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from foredraft.errors import ForedraftError

if TYPE_CHECKING:
    from foredraft.engine import SpeculationStats
    from foredraft.inferencer import Generation


class OutputClosedError(Exception):
    """Whoever read standard output has gone (`| head`). No OSError: typer would take that for its own."""


def write(text: str) -> None:
    """Raw text to standard output, at once: what a model writes is never taken for markup.

    Characters that the terminal's encoding lacks become "?".

    Raises:
        OutputClosedError: if the reader has gone.
        ForedraftError: if it cannot be written for another reason, a full disk for example.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise OutputClosedError from None
    except OSError as error:
        raise ForedraftError(f"standard output cannot be written: {error.strerror or error}") from None


def note(text: str) -> None:
    """A line for the person at the terminal, on standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def write_json(value: Any) -> None:
    """One JSON object on a line of its own."""
    write(json.dumps(value, ensure_ascii=False) + "\n")


def stats_line(stats: SpeculationStats, seconds: float, drafter: str) -> str:
    """The one line after a generation.

    Args:
        stats: counters of all samples added up.
        seconds: wall time of the whole generation.
        drafter: name of the drafter.
    """
    rate = stats.committed / seconds if seconds else 0.0
    line = f"{stats.committed} tokens, {rate:.1f} tok/s"
    if drafter == "none":
        return f"{line}, plain decoding"
    return (
        f"{line}, mean accepted length {stats.mean_accepted_length:.2f}, "
        f"acceptance rate {stats.acceptance_rate:.2f} ({drafter})"
    )


def generation_record(generation: Generation, prompt: str | None) -> dict[str, Any]:
    """What `generate --json` prints for one sample."""
    record: dict[str, Any] = {
        "prompt": prompt,
        "prompt_index": generation.prompt_index,
        "sample_index": generation.sample_index,
        "text": generation.text,
        "token_ids": list(generation.token_ids),
        "finish_reason": generation.finish_reason,
        "stats": generation.stats.as_dict(),
    }
    if generation.logprobs is not None:
        record["logprobs"] = [
            {"logprob": entry.logprob, "top": {str(token): value for token, value in entry.top.items()}}
            for entry in generation.logprobs
        ]
    if generation.error is not None:
        record["error"] = generation.error
    return record
