"""`foredraft bench`: step costs, engines side by side, and comparisons of results."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foredraft.cli.output import note, write, write_json
from foredraft.errors import ParameterError
from foredraft.params import SamplingParams, SpeculationConfig

if TYPE_CHECKING:
    from foredraft.bench.engines import EngineSettings
    from foredraft.bench.generate import GenerateResult

bench = typer.Typer(
    help="Measure speed: step costs, engines side by side, regressions.", no_args_is_help=True
)

QUICK_SECONDS = 100.0
QUICK_TOKENS = 32
MAX_NEW_TOKENS = SamplingParams.model_fields["max_new_tokens"].default
TARGET = "smollm2"
REPEATS = 3

Target = Annotated[str, typer.Option(help="Model: a built-in name, a folder, a .gguf file or a hub id.")]
Draft = Annotated[str | None, typer.Option(help="Smaller model with the target's tokenizer.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")]
Attention = Annotated[str, typer.Option(help="auto, eager or sdpa.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Let code that comes with a model run.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document with the rows.")]
Output = Annotated[
    Path | None, typer.Option("--output", help="Folder for JSON, Markdown and plots (PNG and SVG).")
]
TimeLimit = Annotated[
    float | None, typer.Option("--time-limit", min=1, help="Seconds; begin nothing that would last longer.")
]


@bench.command()
def step(
    target: Target = TARGET,
    tokens: Annotated[str, typer.Option("--tokens", help="New tokens of a step.")] = "1,2,4,8,16,32",
    batch: Annotated[str, typer.Option("--batch", help="Rows of a step.")] = "1,4,8",
    context: Annotated[str, typer.Option("--context", help="Tokens cached in each row.")] = "128",
    dtypes: Annotated[
        str, typer.Option("--dtypes", help="Precisions of the weights: float32, bfloat16, float16, int8.")
    ] = "float32,bfloat16,int8",
    rounds: Annotated[int, typer.Option("--rounds", help="Measured rounds of all engines.")] = 10,
    quick: Annotated[bool, typer.Option("--quick", help="Batch 1 and 4, three rounds.")] = False,
    time_limit: TimeLimit = None,
    device: Device = "auto",
    attention: Attention = "auto",
    trust_remote_code: TrustRemoteCode = False,
    output: Output = None,
    json_output: Json = False,
) -> None:
    """Milliseconds of one forward over T tokens, for each engine, batch and context."""
    from foredraft.bench.step import StepOptions, bench_step

    chosen = StepOptions(
        tokens=_numbers(tokens, "tokens"),
        batches=(1, 4) if quick else _numbers(batch, "batch"),
        contexts=_numbers(context, "context"),
        dtypes=_names(dtypes),
        rounds=3 if quick else rounds,
        budget_seconds=QUICK_SECONDS / 2 if quick and time_limit is None else time_limit,
    )
    load_options = {"device": device, "attention": attention, "trust_remote_code": trust_remote_code}
    result = bench_step(target, chosen, load_options=load_options, on_progress=_progress())
    from foredraft.bench.plots import step_plots
    from foredraft.bench.report import step_document
    from foredraft.bench.tables import step_markdown

    _deliver(step_document(result), step_markdown(result), step_plots, output, json_output)


@bench.command()
def generate(
    target: Target = TARGET,
    draft: Draft = None,
    kinds: Annotated[str, typer.Option("--kinds", help="Kinds of task, with commas, or all.")] = "all",
    prompts_per_kind: Annotated[
        int | None, typer.Option("--prompts-per-kind", help="At most this many; all by default.")
    ] = None,
    engines: Annotated[
        str | None,
        typer.Option("--engines", help="foredraft, foredraft-fast, transformers, openvino_genai, llama.cpp."),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    max_new_tokens: Annotated[int, typer.Option(help="Most new tokens of a prompt.")] = MAX_NEW_TOKENS,
    repeats: Annotated[int, typer.Option("--repeats", help="Runs of each prompt.")] = REPEATS,
    num_draft_tokens: Annotated[
        str, typer.Option(metavar="INTEGER|auto", help="Tokens drafted a round (gamma).")
    ] = "auto",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the first prompt.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A short look that ends within two minutes.")
    ] = False,
    time_limit: TimeLimit = None,
    runner: Annotated[
        str | None, typer.Option(help="Runner of the engine foredraft: reference or fast.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Device = "auto",
    attention: Attention = "auto",
    trust_remote_code: TrustRemoteCode = False,
    output: Output = None,
    json_output: Json = False,
) -> None:
    """Generate the same texts with every engine and drafter, interleaved, and report their speed."""
    SamplingParams(temperature=temperature, max_new_tokens=max_new_tokens)
    config = SpeculationConfig(num_draft_tokens=_draft_length(num_draft_tokens))
    from foredraft.bench.engines import ENGINES
    from foredraft.bench.generate import GenerateOptions, bench_generate
    from foredraft.bench.tasks import kinds_of, load_tasks

    chosen = GenerateOptions(
        tasks=load_tasks(kinds_of(kinds), per_kind=prompts_per_kind),
        engines=_names(engines) if engines is not None else ENGINES,
        repeats=1 if quick else repeats,
        max_new_tokens=min(QUICK_TOKENS, max_new_tokens) if quick else max_new_tokens,
        seed=seed,
        budget_seconds=QUICK_SECONDS if quick and time_limit is None else time_limit,
    )
    load_options: dict[str, Any] = {
        "dtype": dtype,
        "device": device,
        "attention": attention,
        "trust_remote_code": trust_remote_code,
        **({"runner": runner} if runner is not None else {}),
    }
    settings = _settings(target, draft, load_options, config.num_draft_tokens, temperature)
    result = bench_generate(settings, chosen, on_progress=_progress())
    _deliver_generate(result, output, json_output)


@bench.command()
def compare(
    before: Annotated[Path, typer.Argument(help="The older result (JSON).")],
    after: Annotated[Path, typer.Argument(help="The newer result (JSON).")],
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="Loss of speed that is no regression.")
    ] = 0.1,
    json_output: Json = False,
) -> None:
    """Compare two results row by row; exit code 1 if something became slower or unequal."""
    from foredraft.bench.compare import compare as compare_rows
    from foredraft.bench.compare import read_rows
    from foredraft.bench.tables import compare_markdown

    comparisons = compare_rows(read_rows(before), read_rows(after), tolerance=tolerance)
    regressions = [comparison for comparison in comparisons if comparison.reason]
    if json_output:
        write_json({"rows": [comparison.as_dict() for comparison in comparisons]})
    else:
        write(compare_markdown(comparisons))
        note(f"{len(regressions)} of {len(comparisons)} rows are regressions")
    if regressions:
        raise typer.Exit(1)


def _settings(
    target: str, draft: str | None, load_options: dict[str, Any], num_draft_tokens: Any, temperature: float
) -> EngineSettings:
    from foredraft.bench.engines import EngineSettings
    from foredraft.models import resolve

    return EngineSettings(
        target=target,
        draft=draft,
        target_path=resolve(target).path,
        draft_path=resolve(draft).path if draft is not None else None,
        load_options=load_options,
        num_draft_tokens=num_draft_tokens,
        temperature=temperature,
    )


def _deliver_generate(result: GenerateResult, output: Path | None, json_output: bool) -> None:
    from foredraft.bench.plots import generate_plots
    from foredraft.bench.report import generate_document
    from foredraft.bench.summary import summarise
    from foredraft.bench.tables import generate_markdown

    rows = summarise(result)
    document = generate_document(result, rows)
    _deliver(document, generate_markdown(result, rows), generate_plots, output, json_output)


def _deliver(
    document: dict[str, Any], text: str, plots: Callable[..., list[Path]], output: Path | None, as_json: bool
) -> None:
    if as_json:
        write_json(document)
    else:
        write(text)
    if output is not None:
        from foredraft.bench.report import save

        written, no_plots = save(output, document, text, plots)
        note("wrote " + ", ".join(str(path) for path in written))
        if no_plots:
            note(f"foredraft: no plots: {no_plots}")


def _progress() -> Callable[[str], None]:
    """Lines of progress for a person at a terminal, silence otherwise."""
    return note if sys.stderr.isatty() else lambda text: None


def _draft_length(text: str) -> Any:
    """What `SpeculationConfig` checks further."""
    return int(text) if text.isdecimal() else text


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(text: str, name: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in _names(text)}))
    except ValueError:
        raise ParameterError(f"{name}: must be whole numbers with commas between (got {text!r})") from None
