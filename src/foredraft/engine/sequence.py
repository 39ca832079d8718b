"""`Sequence`: one request on its way from prompt to finish."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import Literal, Protocol

from foredraft.engine.statistics import SpeculationStats
from foredraft.laws import LawProcessor, LogitsProcessor, NoiseStream, noise_key
from foredraft.params import SamplingParams

FinishReason = Literal["stop", "length", "cancelled", "error"]

_ids = itertools.count()


class TokenListener(Protocol):
    """Told of each committed token; may end the sequence (a stop string was completed)."""

    def push(self, token_id: int) -> bool:
        """True if the sequence ends with this token."""
        ...


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities at one committed token, of the target's raw logits (before any processing)."""

    logprob: float
    top: dict[int, float]
    """The most likely token ids, best first."""


@dataclass(frozen=True)
class Request:
    """What the engine needs to know to start a sequence."""

    prompt: Tokens[int]
    params: SamplingParams
    end_token_ids: Tokens[int] = ()
    sample_index: int = 0
    """Which of the request's `n` samples this is."""
    logits_processors: Tokens[LogitsProcessor] = ()
    listener: TokenListener | None = None


@dataclass(eq=False)
class Sequence:
    """Committed tokens of one request and everything that is kept for it."""

    request: Request
    context_length: int
    """Tokens, prompt included, at which the sequence ends whatever was asked for."""
    id: int = field(default_factory=lambda: next(_ids))
    tokens: list[int] = field(init=False)
    processor: LawProcessor = field(init=False)
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    row: int | None = None
    """Row of the target's cache while running."""
    round_index: int = 0
    """Verification rounds so far; part of the key of noise that a position may need more than once."""
    started_at: float = 0.0
    """`time.perf_counter()` at admission."""
    finish_reason: FinishReason | None = None
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)
        self.processor = LawProcessor(
            self.params,
            prompt_length=self.prompt_length,
            end_token_ids=self.request.end_token_ids,
            logits_processors=self.request.logits_processors,
        )
        self._seed = self.params.seed if self.params.seed is not None else secrets.randbits(63)
        self._end_token_ids = {*self.params.stop_token_ids}
        if not self.params.ignore_eos:
            self._end_token_ids |= {*self.request.end_token_ids}
        if not self.remaining:
            self.finish_reason = "length"

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt)

    @property
    def new_tokens(self) -> list[int]:
        """Tokens generated so far, the one that ended the sequence included."""
        return self.tokens[self.prompt_length :]

    @property
    def remaining(self) -> int:
        """Tokens that may still be committed."""
        limit = min(self.prompt_length + self.params.max_new_tokens, self.context_length)
        return max(0, limit - len(self.tokens))

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def noise_key(self, stream: NoiseStream, position: int) -> int:
        """Key of the noise for the token at `position`; see `foredraft.laws.noise_key`."""
        round_index = 0 if stream is NoiseStream.TARGET else self.round_index
        return noise_key(self._seed, self.request.sample_index, stream, position, round_index)

    def append(self, token_id: int) -> None:
        """Commit one token and see whether it ends the sequence."""
        self.tokens.append(token_id)
        listener = self.request.listener
        if token_id in self._end_token_ids or (listener is not None and listener.push(token_id)):
            self.finish_reason = "stop"
        elif not self.remaining:
            self.finish_reason = "length"
