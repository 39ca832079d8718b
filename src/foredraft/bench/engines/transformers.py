"""Hugging Face transformers' `generate`: plain, prompt lookup and assisted."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from foredraft.bench.engines.base import PLAIN, EngineSettings, Request, Run
from foredraft.bench.host import forget_peak_memory, peak_memory
from foredraft.models import LoadedModel, load_model

PROMPT_LOOKUP = "prompt_lookup"
ASSISTED = "assisted"
PROMPT_LOOKUP_TOKENS = 10
"""As the transformers documentation uses it."""


class TransformersEngine:
    """`generate` of the very model that foredraft's reference runner executes."""

    def __init__(self, settings: EngineSettings) -> None:
        names = ("dtype", "device", "attention", "trust_remote_code")
        options = {name: settings.load_options[name] for name in names if name in settings.load_options}
        self._target = load_model(settings.target, **options)
        self._draft = load_model(settings.draft, **options) if settings.draft is not None else None
        self._target_clock = _ForwardClock(self._target)
        self._draft_clock = _ForwardClock(self._draft) if self._draft is not None else None

    def drafters(self) -> Sequence[str]:
        """See `BenchEngine.drafters`."""
        return [PLAIN, PROMPT_LOOKUP, *([ASSISTED] if self._draft is not None else [])]

    def absent(self) -> Mapping[str, str]:
        """See `BenchEngine.absent`."""
        return {} if self._draft is not None else {ASSISTED: "no draft model was given (--draft)"}

    def dtype(self) -> str:
        """See `BenchEngine.dtype`."""
        return str(self._target.dtype).removeprefix("torch.")

    @torch.inference_mode()
    def run(self, drafter: str, request: Request) -> Run:
        """See `BenchEngine.run`."""
        forget_peak_memory()
        torch.manual_seed(request.seed)
        model: Any = self._target.model
        prompt = torch.tensor([request.prompt], device=self._target.device)
        clocks = [self._target_clock, *([self._draft_clock] if self._draft_clock is not None else [])]
        for clock in clocks:
            clock.reset()
        streamer = _FirstTokenStreamer()
        started = time.perf_counter()
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=request.max_new_tokens,
            eos_token_id=list(request.end_token_ids) or None,
            pad_token_id=request.end_token_ids[0] if request.end_token_ids else 0,
            streamer=streamer,
            **_sampling(request),
            **self._speculation(drafter),
        )
        seconds = time.perf_counter() - started
        first = streamer.first_token_at
        return Run(
            token_ids=tuple(output[0, len(request.prompt) :].tolist()),
            seconds=seconds,
            first_token_seconds=first - started if first is not None else None,
            draft_seconds=self._draft_clock.seconds if self._draft_clock is not None else 0.0,
            target_seconds=self._target_clock.seconds,
            target_steps=self._target_clock.forwards,
            peak_memory=peak_memory(),
        )

    def _speculation(self, drafter: str) -> dict[str, Any]:
        if drafter == PROMPT_LOOKUP:
            return {"prompt_lookup_num_tokens": PROMPT_LOOKUP_TOKENS}
        if drafter == ASSISTED:
            assert self._draft is not None, "assisted generation is offered with a draft only"
            return {"assistant_model": self._draft.model}
        return {}


def _sampling(request: Request) -> dict[str, Any]:
    """Arguments that leave nothing to the model's own generation config."""
    if request.temperature == 0:
        return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    return {"do_sample": True, "temperature": request.temperature, "top_p": 1.0, "top_k": 0}


class _ForwardClock:
    """Counts and times a model's forwards."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.reset()
        self._started = 0.0
        self._cuda = loaded.device.type == "cuda"
        loaded.model.register_forward_pre_hook(self._before)
        loaded.model.register_forward_hook(self._after)

    def reset(self) -> None:
        self.forwards = 0
        self.seconds = 0.0

    def _before(self, *_: Any) -> None:
        self._started = self._now()

    def _after(self, *_: Any) -> None:
        self.forwards += 1
        self.seconds += self._now() - self._started

    def _now(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


class _FirstTokenStreamer(BaseStreamer):
    """Notes when the first tokens behind the prompt come."""

    def __init__(self) -> None:
        self._puts = 0
        self.first_token_at: float | None = None

    def put(self, value: Any) -> None:
        self._puts += 1
        if self._puts == 2:  # The first one is the prompt.
            self.first_token_at = time.perf_counter()

    def end(self) -> None:
        pass
