"""`foredraft distill`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from foredraft.cli import options
from foredraft.cli.generate import as_prompt, make_available
from foredraft.cli.output import note
from foredraft.cli.prompts import read_prompts
from foredraft.errors import ParameterError

_DATA = "Data"


def distill(
    out: Annotated[Path, typer.Option("--out", help="Folder of the draft, its data and its log.")],
    target: options.Target = options.DEFAULT_TARGET,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Folder of the data; OUT/data by default.", rich_help_panel=_DATA),
    ] = None,
    data_only: Annotated[
        bool, typer.Option("--data-only", help="Draw data and stop.", rich_help_panel=_DATA)
    ] = False,
    tokens: Annotated[
        int, typer.Option("--tokens", help="Tokens to train on; more are drawn.", rich_help_panel=_DATA)
    ] = 300_000,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            help="One prompt a line, or .jsonl; without, the target writes its own.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    temperatures: Annotated[
        str, typer.Option("--temperatures", help="Of the answers, in turn.", rich_help_panel=_DATA)
    ] = "0,1",
    question_temperature: Annotated[
        float,
        typer.Option(
            "--question-temperature", help="Of questions that the target writes.", rich_help_panel=_DATA
        ),
    ] = 0.8,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", help="Of an answer.", rich_help_panel=_DATA)
    ] = 320,
    batch_size: Annotated[
        int, typer.Option("--data-batch-size", help="Answers drawn at a time.", rich_help_panel=_DATA)
    ] = 32,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Same seed, same draft.")] = 0,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    attention: options.Attention = "auto",
    runner: options.Runner = "reference",
    trust_remote_code: options.TrustRemoteCode = False,
) -> None:
    """Train a draft for a target, on text that the target writes itself."""
    texts = read_prompts(None, prompts) if prompts is not None else []
    chosen = _numbers(temperatures, "temperatures")
    make_available(target)
    from foredraft.distill.data import DataOptions, generate_data
    from foredraft.inferencer import Inferencer

    data_options = DataOptions(
        tokens=tokens,
        seed=seed,
        temperatures=chosen,
        question_temperature=question_temperature,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
    )
    inferencer = Inferencer(
        target,
        dtype=dtype,
        device=device,
        attention=attention,
        runner=runner,  # pyright: ignore[reportArgumentType]
        trust_remote_code=trust_remote_code,
        max_batch_size=batch_size,
        verify_batch_size=batch_size,
    )
    folder = data or out / "data"
    requests = [as_prompt(inferencer, text, None, None) for text in texts]
    with _bar("drawing data", tokens) as advance:
        held = generate_data(inferencer, folder, data_options, prompts=requests, on_progress=advance)
    note(f"{held} tokens in {folder}")
    if data_only:
        return


@contextmanager
def _bar(title: str, total: int) -> Generator[Callable[[int], None], None, None]:
    """A progress bar on standard error, for a person at a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done: progress.update(task, completed=done)


def _numbers(text: str, name: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ParameterError(f"{name}: must be numbers with commas between (got {text!r})") from None
