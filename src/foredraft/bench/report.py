"""The document that `--json` prints and `--output` keeps, and the files beside it."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foredraft import __version__
from foredraft.errors import ForedraftError, ParameterError

if TYPE_CHECKING:
    from foredraft.bench.generate import GenerateResult
    from foredraft.bench.step import StepResult

Row = dict[str, Any]
_PACKAGES = ("torch", "transformers", "openvino", "openvino-genai")


def generate_document(result: GenerateResult, rows: Sequence[Row]) -> dict[str, Any]:
    """The result of `bench_generate`: rows, who is absent and why, versions."""
    return {
        "benchmark": "generate",
        **_versions(),
        "complete": result.complete,
        "absent": result.absent,
        "rows": list(rows),
    }


def step_document(result: StepResult) -> dict[str, Any]:
    """The result of `bench_step`: rows, the machine's limits, who is absent and why, versions."""
    limits = result.limits
    return {
        "benchmark": "step",
        **_versions(),
        "target": result.target,
        "complete": result.complete,
        "limits": {
            "read_gigabytes_per_second": limits.read_bytes_per_second / 1e9,
            "float32_gigaflops": limits.float32_flops / 1e9,
            "bfloat16_gigaflops": limits.bfloat16_flops / 1e9,
            "threads": limits.threads,
            "weights_read_per_step": result.parameters,
        },
        "absent": result.absent,
        "rows": result.rows,
    }


def save(
    folder: Path, document: dict[str, Any], text: str, plots: Callable[[Sequence[Row], Path], list[Path]]
) -> tuple[list[Path], str]:
    """Write JSON, Markdown and plots into `folder`.

    Returns:
        What was written, and why there are no plots ("" if there are).

    Raises:
        ParameterError: if the folder cannot be written to.
    """
    name = document["benchmark"]
    written = [folder / f"{name}.json", folder / f"{name}.md"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written[0].write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        written[1].write_text(text, encoding="utf-8")
    except OSError as error:
        raise ParameterError(f"output: cannot write to {folder} ({error.strerror or error})") from None
    try:
        return written + plots(document["rows"], folder), ""
    except ForedraftError as error:
        return written, str(error)


def _versions() -> dict[str, Any]:
    found: dict[str, str] = {"foredraft": __version__}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {"versions": found, "python": platform.python_version(), "machine": platform.machine()}
