"""`foredraft distill`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foredraft.cli import options
from foredraft.cli.generate import as_prompt, make_available
from foredraft.cli.interrupt import INTERRUPTED, cancel_on_interrupt
from foredraft.cli.output import note, write
from foredraft.cli.prompts import read_prompts
from foredraft.errors import ParameterError

if TYPE_CHECKING:
    from foredraft.distill.data import DataOptions
    from foredraft.distill.run import DistillOptions
    from foredraft.distill.training import StepReport
    from foredraft.models import LoadedModel

_DATA = "Data"
_TRAINING = "Training"
_SAVE_DTYPES = ("float32", "float16", "bfloat16")


def distill(
    out: Annotated[Path, typer.Option("--out", help="Folder of the draft, its data and its log.")],
    target: options.Target = options.DEFAULT_TARGET,
    kind: Annotated[
        str, typer.Option("--kind", help="model: a causal language model.", rich_help_panel=_TRAINING)
    ] = "model",
    layers: Annotated[
        str,
        typer.Option(
            "--layers",
            metavar="INTEGER|LIST",
            help="Layers of a draft model: how many, or which of the target's (0,1,15).",
            rich_help_panel=_TRAINING,
        ),
    ] = "2",
    loss: Annotated[
        str,
        typer.Option(
            "--loss",
            help="forward-kl, reverse-kl, tv, acceptance; NAME=WEIGHT with commas mixes them.",
            rich_help_panel=_TRAINING,
        ),
    ] = "forward-kl=1,tv=1",
    loss_temperature: Annotated[
        float, typer.Option("--loss-temperature", help="Of both laws.", rich_help_panel=_TRAINING)
    ] = 1.0,
    epochs: Annotated[int, typer.Option("--epochs", rich_help_panel=_TRAINING)] = 3,
    learning_rate: Annotated[float, typer.Option("--learning-rate", rich_help_panel=_TRAINING)] = 5e-4,
    batch_tokens: Annotated[
        int,
        typer.Option("--batch-tokens", help="In one forward; bounds memory.", rich_help_panel=_TRAINING),
    ] = 1024,
    batches_per_step: Annotated[
        int,
        typer.Option(
            "--batches-per-step", help="Forwards for one step of the optimizer.", rich_help_panel=_TRAINING
        ),
    ] = 4,
    max_length: Annotated[
        int, typer.Option("--max-length", help="Tokens of a sample that count.", rich_help_panel=_TRAINING)
    ] = 512,
    save_dtype: Annotated[
        str,
        typer.Option("--save-dtype", help="float32, float16 or bfloat16.", rich_help_panel=_TRAINING),
    ] = "float32",
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Folder of the data; OUT/data by default.", rich_help_panel=_DATA),
    ] = None,
    data_only: Annotated[
        bool, typer.Option("--data-only", help="Draw data and stop.", rich_help_panel=_DATA)
    ] = False,
    tokens: Annotated[
        int,
        typer.Option("--tokens", help="To train on; those that lack are drawn.", rich_help_panel=_DATA),
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
    data_batch_size: Annotated[
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
    if save_dtype not in _SAVE_DTYPES:
        raise ParameterError(f"save-dtype: must be one of {', '.join(_SAVE_DTYPES)} (got {save_dtype!r})")
    if runner not in ("reference", "fast"):
        raise ParameterError(f"runner: must be reference or fast (got {runner!r})")
    make_available(target)
    import torch

    from foredraft.distill.data import DataOptions
    from foredraft.distill.losses import LossMix
    from foredraft.distill.run import DistillOptions
    from foredraft.distill.training import TrainingOptions
    from foredraft.models import load_model

    data_options = DataOptions(
        tokens=tokens,
        seed=seed,
        temperatures=chosen,
        question_temperature=question_temperature,
        max_new_tokens=max_new_tokens,
        batch_size=data_batch_size,
    )
    named_kind: Any = kind
    distill_options = DistillOptions(
        kind=named_kind,
        tokens=tokens,
        layers=_layers(layers),
        loss=LossMix.parse(loss, loss_temperature),
        training=TrainingOptions(
            epochs=epochs,
            learning_rate=learning_rate,
            batch_tokens=batch_tokens,
            batches_per_step=batches_per_step,
            max_length=max_length,
            seed=seed,
        ),
        save_dtype=getattr(torch, save_dtype),
    )
    loaded = load_model(
        target, dtype=dtype, device=device, attention=attention, trust_remote_code=trust_remote_code
    )
    folder = data or out / "data"
    _draw(loaded, folder, data_options, texts, runner)
    if not data_only:
        _train(loaded, folder, out, distill_options, runner)


def _draw(loaded: LoadedModel, folder: Path, chosen: DataOptions, texts: Sequence[str], runner: Any) -> None:
    """Fill the data folder where it lacks tokens."""
    from foredraft.distill.corpus import stored_tokens
    from foredraft.distill.data import generate_data
    from foredraft.inferencer import Inferencer

    held = stored_tokens(folder, loaded.name)
    if held < chosen.tokens:
        inferencer = Inferencer(
            loaded,
            runner=runner,
            max_batch_size=chosen.batch_size,
            verify_batch_size=chosen.batch_size,
        )
        requests = [as_prompt(inferencer, text, None, None) for text in texts]
        with _bar("drawing data", chosen.tokens) as update:
            held = generate_data(inferencer, folder, chosen, prompts=requests, on_progress=update)
    note(f"{held} tokens in {folder}")


def _train(loaded: LoadedModel, folder: Path, out: Path, chosen: DistillOptions, runner: Any) -> None:
    """Train, and print what the draft is worth."""
    from foredraft.distill.card import worth_table
    from foredraft.distill.run import distill as run

    with cancel_on_interrupt() as cancel, _bar("training", 1000) as update:
        done = run(
            loaded,
            folder,
            out,
            chosen,
            command=shlex.join(["foredraft", *sys.argv[1:]]),
            runner=runner,
            on_step=lambda report: update(round(1000 * report.progress), _shown(report)),
            cancelled=cancel.is_set,
        )
    if done is None:
        note(f"stopped; the same command goes on from {out}")
        raise typer.Exit(INTERRUPTED)
    write("\n".join(worth_table(done.worths)) + "\n")
    note(f"draft in {out}; wrote " + ", ".join(str(path) for path in done.written))


def _shown(report: StepReport) -> str:
    rates = " ".join(f"{rate:.2f}" for rate in report.score.acceptance())
    return f"step {report.step}, loss {report.loss:.3f}, acceptance {rates}, greedy " + " ".join(
        f"{rate:.2f}" for rate in report.score.agreement()
    )


@contextmanager
def _bar(title: str, total: int) -> Generator[Callable[..., None], None, None]:
    """A progress bar on standard error, for a person at a terminal: `update(done, what is shown)`."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[shown]}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(title, total=total, shown="")

        def update(done: int, shown: str = "") -> None:
            progress.update(task, completed=done, shown=shown)

        yield update


def _layers(text: str) -> int | tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        numbers = ()
    if not numbers:
        raise ParameterError(f"layers: must be a whole number, or several with commas (got {text!r})")
    return numbers[0] if "," not in text else numbers


def _numbers(text: str, name: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ParameterError(f"{name}: must be numbers with commas between (got {text!r})") from None
