"""What every engine of `foredraft bench generate` offers: one protocol, one record a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from foredraft.errors import ForedraftError

PLAIN = "none"
"""The drafter of plain decoding."""


class EngineAbsentError(ForedraftError):
    """An engine, or one of its drafters, cannot run here; the message says why."""


@dataclass(frozen=True)
class EngineSettings:
    """What engines are opened with."""

    target: str
    draft: str | None = None
    target_path: Path | None = None
    """Where the target lies on this machine, for engines that read files themselves."""
    draft_path: Path | None = None
    load_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of `Inferencer`: dtype, device and so on."""
    num_draft_tokens: Any = "auto"
    temperature: float = 0.0
    context_length: int = 4096
    """Tokens that the longest prompt and its output need, where an engine wants to know."""


@dataclass(frozen=True)
class Request:
    """One generation."""

    prompt: tuple[int, ...]
    """Token ids, so that every engine gets exactly the same."""
    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    end_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Run:
    """What one generation gave and cost. None stands for what an engine does not tell."""

    token_ids: tuple[int, ...]
    seconds: float
    """Wall time of the whole call, prefill included."""
    first_token_seconds: float | None = None
    draft_seconds: float | None = None
    target_seconds: float | None = None
    """Prefill included."""
    target_steps: int | None = None
    """Target forwards that gave tokens."""
    drafted: int | None = None
    accepted: int | None = None
    drafted_per_position: tuple[int, ...] = ()
    accepted_per_position: tuple[int, ...] = ()
    peak_memory: int | None = None
    """Bytes resident in the engine's process, at most."""

    @property
    def tokens_per_second(self) -> float:
        return len(self.token_ids) / self.seconds if self.seconds > 0 else 0.0


class BenchEngine(Protocol):
    """An engine with all its drafters, which share what it has loaded.

    Opened by a function of `EngineSettings` that raises `EngineAbsentError` where it cannot run.
    """

    def drafters(self) -> Sequence[str]:
        """Those that can run, plain decoding ("none") among them."""
        ...

    def absent(self) -> Mapping[str, str]:
        """Why other drafters cannot run, by drafter."""
        ...

    def dtype(self) -> str:
        """What the target's weights are, in the engine's words."""
        ...

    def run(self, drafter: str, request: Request) -> Run:
        """Generate, and measure."""
        ...
