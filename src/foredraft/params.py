"""What a caller may ask for: `SamplingParams` and `SpeculationConfig`.

Defaults are written here once; the command line, the server and the Python API read them from here.
Both classes validate on construction and raise `ParameterError` with a one-line message.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from typing_extensions import Self

from foredraft.errors import ParameterError

MAX_DRAFT_TOKENS = 64
"""Upper bound of `num_draft_tokens`: beyond it a verification step always costs more than it can gain."""

DrafterName = Literal["auto", "none", "ngram", "suffix", "suffix-index", "model"]
RuleName = Literal["token", "block", "seed-exact"]


class _Validated(BaseModel):
    """A frozen record whose validation errors are one readable line."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise ParameterError(_one_line(error)) from None

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, validated again."""
        return type(self)(**{**self.model_dump(), **changes})


def _one_line(error: ValidationError) -> str:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if first["type"] == "extra_forbidden":
        return f"unknown parameter {field!r}"
    if not field:
        return message
    return f"{field}: {message} (got {first['input']!r})"


class SamplingParams(_Validated):
    """How the target's next-token law is processed and sampled, and when a request ends.

    The order of processing is that of Hugging Face transformers: penalties and bans, then temperature,
    top_k, top_p, min_p.
    """

    temperature: float = Field(default=0.0, ge=0.0, le=100.0, allow_inf_nan=False)
    """0 means argmax (ties go to the lowest token id)."""
    top_k: int = Field(default=0, ge=0)
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = Field(default=1.0, ge=0.0, le=1.0)
    """Keep the smallest set of most likely tokens whose mass reaches top_p."""
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    """Drop tokens less likely than min_p times the most likely one."""
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=100.0)
    """CTRL (arXiv 1909.05858) penalty over prompt and output; 1 is off."""
    presence_penalty: float = Field(default=0.0, ge=-100.0, le=100.0)
    """Subtracted once from the logit of every token already in the output."""
    frequency_penalty: float = Field(default=0.0, ge=-100.0, le=100.0)
    """Subtracted from a token's logit for each time it is already in the output."""
    no_repeat_ngram_size: int = Field(default=0, ge=0)
    """Forbid a token that would complete an n-gram already in prompt or output; 0 is off."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that must not appear."""
    logit_bias: dict[int, float] = Field(default_factory=dict)
    """Added to the logits of these token ids."""
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """Same seed, same text: alone or in a batch. None draws a fresh seed for each request."""
    n: int = Field(default=1, ge=1, le=4096)
    """Independent samples for each prompt."""
    max_new_tokens: int = Field(default=128, ge=0)
    min_new_tokens: int = Field(default=0, ge=0)
    """No end-of-sequence token before this many new tokens."""
    stop: tuple[str, ...] = ()
    """Strings that end the text; they are not part of it."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the text, besides the model's own end-of-sequence ids."""
    ignore_eos: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=100)
    """Report the target's log-probabilities (before processors) of each token and of this many best."""

    @field_validator("temperature", "top_p", "min_p", "repetition_penalty", mode="before")
    @classmethod
    def _integers_are_numbers(cls, value: Any) -> Any:
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_string(cls, value: Any) -> Any:
        if isinstance(value, str):
            return (value,)
        return tuple(value) if isinstance(value, list) else value

    @field_validator("stop")
    @classmethod
    def _no_empty_stop_string(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not text for text in value):
            raise ValueError("a stop string must not be empty")
        return value

    @field_validator("stop_token_ids", mode="before")
    @classmethod
    def _lists_are_tuples(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("bad_words", mode="before")
    @classmethod
    def _nested_lists_are_tuples(cls, value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            return value
        return tuple(tuple(word) if isinstance(word, list) else word for word in value)

    @field_validator("bad_words")
    @classmethod
    def _no_empty_bad_word(cls, value: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        if any(not word for word in value):
            raise ValueError("a bad word needs at least one token id")
        return value

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens ({self.min_new_tokens}) must not exceed max_new_tokens "
                f"({self.max_new_tokens})"
            )
        return self

    @property
    def is_greedy(self) -> bool:
        """True where only the most likely token can be chosen."""
        return self.temperature == 0.0 or self.top_k == 1 or self.top_p == 0.0


class SpeculationConfig(_Validated):
    """How tokens are drafted and how the target verifies them."""

    drafter: DrafterName = "auto"
    """`auto` takes the draft model if one is given, n-gram lookup otherwise. `suffix` looks up the longest
    repeated suffix instead; `suffix-index` also looks in the outputs of earlier requests."""
    num_draft_tokens: int | Literal["auto"] = "auto"
    """Tokens drafted a round (gamma in the literature); `auto` decides from measured costs."""
    rule: RuleName = "token"
    """Verification rule: `token` (Leviathan et al. 2023), `block` (Sun et al. 2025), `seed-exact`."""

    @field_validator("num_draft_tokens")
    @classmethod
    def _draft_length_in_range(cls, value: int | str) -> int | str:
        if isinstance(value, int) and not 1 <= value <= MAX_DRAFT_TOKENS:
            raise ValueError(
                f'must be "auto" or between 1 and {MAX_DRAFT_TOKENS}; for plain decoding use drafter="none"'
            )
        return value
