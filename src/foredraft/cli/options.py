"""Options that several commands share. Defaults are those of `foredraft.params`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from foredraft.errors import ParameterError
from foredraft.params import SamplingParams, SpeculationConfig

_SAMPLING = SamplingParams()
_SPECULATION = SpeculationConfig()
DEFAULT_TARGET = "smollm2"

_MODELS = "Models"
_SPEED = "Speculation"
_TEXT = "Sampling"

Target = Annotated[
    str,
    typer.Option("--target", help="Built-in name, hub id, folder or .gguf file.", rich_help_panel=_MODELS),
]
Draft = Annotated[
    str | None,
    typer.Option("--draft", help="A smaller model with the same tokenizer.", rich_help_panel=_MODELS),
]
Dtype = Annotated[
    str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.", rich_help_panel=_MODELS)
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1 ...", rich_help_panel=_MODELS)]
Attention = Annotated[str, typer.Option("--attention", help="auto, eager or sdpa.", rich_help_panel=_MODELS)]
Runner = Annotated[
    str,
    typer.Option(
        "--runner", help="reference, or fast (OpenVINO on the CPU, extra fast).", rich_help_panel=_MODELS
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", help="Let code that comes with a model run.", rich_help_panel=_MODELS
    ),
]

Drafter = Annotated[
    str,
    typer.Option(
        "--drafter", help="none, ngram, suffix, suffix-index, model or auto.", rich_help_panel=_SPEED
    ),
]
NumDraftTokens = Annotated[
    str,
    typer.Option(
        "--num-draft-tokens",
        help="Tokens drafted a round (gamma), or auto to decide from measured costs.",
        rich_help_panel=_SPEED,
    ),
]
Rule = Annotated[str, typer.Option("--rule", help="token, block or seed-exact.", rich_help_panel=_SPEED)]
VerifyBatchSize = Annotated[
    int | None,
    typer.Option("--verify-batch-size", help="Rows in one target forward.", rich_help_panel=_SPEED),
]
MaxBatchSize = Annotated[
    int | None,
    typer.Option("--max-batch-size", help="Samples generated at the same time.", rich_help_panel=_SPEED),
]

Temperature = Annotated[
    float, typer.Option("--temperature", help="0 takes the most likely token.", rich_help_panel=_TEXT)
]
TopK = Annotated[int, typer.Option("--top-k", help="0 keeps all tokens.", rich_help_panel=_TEXT)]
TopP = Annotated[float, typer.Option("--top-p", rich_help_panel=_TEXT)]
MinP = Annotated[float, typer.Option("--min-p", rich_help_panel=_TEXT)]
RepetitionPenalty = Annotated[float, typer.Option("--repetition-penalty", rich_help_panel=_TEXT)]
PresencePenalty = Annotated[float, typer.Option("--presence-penalty", rich_help_panel=_TEXT)]
FrequencyPenalty = Annotated[float, typer.Option("--frequency-penalty", rich_help_panel=_TEXT)]
NoRepeatNgramSize = Annotated[int, typer.Option("--no-repeat-ngram-size", rich_help_panel=_TEXT)]
Seed = Annotated[int | None, typer.Option("--seed", help="Same seed, same text.", rich_help_panel=_TEXT)]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", rich_help_panel=_TEXT)]
MinNewTokens = Annotated[int, typer.Option("--min-new-tokens", rich_help_panel=_TEXT)]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", help="A string that ends the text; may be repeated.", rich_help_panel=_TEXT),
]
StopTokenId = Annotated[
    list[int] | None,
    typer.Option("--stop-token-id", help="A token id that ends the text.", rich_help_panel=_TEXT),
]
IgnoreEos = Annotated[
    bool,
    typer.Option("--ignore-eos", help="Go on after end-of-sequence tokens.", rich_help_panel=_TEXT),
]
System = Annotated[
    str | None,
    typer.Option("--system", help="System message of the chat template.", rich_help_panel=_TEXT),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]

TEMPERATURE = _SAMPLING.temperature
TOP_K = _SAMPLING.top_k
TOP_P = _SAMPLING.top_p
MIN_P = _SAMPLING.min_p
REPETITION_PENALTY = _SAMPLING.repetition_penalty
PRESENCE_PENALTY = _SAMPLING.presence_penalty
FREQUENCY_PENALTY = _SAMPLING.frequency_penalty
NO_REPEAT_NGRAM_SIZE = _SAMPLING.no_repeat_ngram_size
MAX_NEW_TOKENS = _SAMPLING.max_new_tokens
MIN_NEW_TOKENS = _SAMPLING.min_new_tokens
DRAFTER = _SPECULATION.drafter
NUM_DRAFT_TOKENS = str(_SPECULATION.num_draft_tokens)
RULE = _SPECULATION.rule


def speculation_config(drafter: str, num_draft_tokens: str, rule: str) -> SpeculationConfig:
    """Validated speculation options; raises ParameterError."""
    length: Any = num_draft_tokens
    if num_draft_tokens != "auto":
        try:
            length = int(num_draft_tokens)
        except ValueError:
            raise ParameterError(
                f'num_draft_tokens: must be "auto" or a whole number (got {num_draft_tokens!r})'
            ) from None
    choice: Any = drafter
    name: Any = rule
    return SpeculationConfig(drafter=choice, num_draft_tokens=length, rule=name)


def batch_options(verify_batch_size: int | None, max_batch_size: int | None) -> dict[str, int]:
    """Only what was given; `Inferencer` has the defaults."""
    options = {"verify_batch_size": verify_batch_size, "max_batch_size": max_batch_size}
    return {name: value for name, value in options.items() if value is not None}
