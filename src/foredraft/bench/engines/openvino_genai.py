"""OpenVINO GenAI: plain, prompt lookup and draft model, for a GGUF file or an exported folder."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from foredraft.bench.engines.base import PLAIN, EngineAbsentError, EngineSettings, Request, Run
from foredraft.bench.host import forget_peak_memory, peak_memory

PROMPT_LOOKUP = "prompt_lookup"
DRAFT_MODEL = "draft_model"
NUM_ASSISTANT_TOKENS = 5
"""The default of its documentation."""
MAX_NGRAM_SIZE = 3


class OpenVinoGenAiEngine:
    """One `LLMPipeline` for each way of drafting."""

    def __init__(self, settings: EngineSettings) -> None:
        self._genai = _module("openvino_genai")
        self._tensor = _module("openvino").Tensor
        target = _readable(settings.target_path)
        self._dtype = _file_type(target)
        self._pipelines: dict[str, Any] = {}
        self._absent: dict[str, str] = {}
        ways: dict[str, dict[str, Any]] = {PLAIN: {}, PROMPT_LOOKUP: {"prompt_lookup": True}}
        if settings.draft is None:
            self._absent[DRAFT_MODEL] = "no draft model was given (--draft)"
        else:
            ways[DRAFT_MODEL] = {}
        for drafter, options in ways.items():
            try:
                if drafter == DRAFT_MODEL:
                    options = {"draft_model": self._draft(settings)}  # noqa: PLW2901
                self._pipelines[drafter] = self._genai.LLMPipeline(str(target), "CPU", **options)
            except (RuntimeError, EngineAbsentError) as error:
                if drafter == PLAIN:
                    raise EngineAbsentError(f"it could not open {target.name}: {_line(error)}") from None
                self._absent[drafter] = _line(error)

    def drafters(self) -> Sequence[str]:
        """See `BenchEngine.drafters`."""
        return list(self._pipelines)

    def absent(self) -> Mapping[str, str]:
        """See `BenchEngine.absent`."""
        return self._absent

    def dtype(self) -> str:
        """See `BenchEngine.dtype`."""
        return self._dtype

    def run(self, drafter: str, request: Request) -> Run:
        """See `BenchEngine.run`."""
        forget_peak_memory()
        config = self._config(drafter, request)
        prompt = self._tensor(np.array([request.prompt], dtype=np.int64))
        started = time.perf_counter()
        try:
            result = self._pipelines[drafter].generate(prompt, config)
        except RuntimeError as error:
            raise EngineAbsentError(f"generation failed: {_line(error)}") from None
        seconds = time.perf_counter() - started
        tokens = tuple(int(token) for token in result.tokens[0])
        return Run(
            token_ids=tokens,
            seconds=seconds,
            first_token_seconds=float(result.perf_metrics.get_ttft().mean) / 1000,
            **_speculation(result, len(tokens), drafter),
            peak_memory=peak_memory(),
        )

    def _config(self, drafter: str, request: Request) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = request.max_new_tokens
        config.apply_chat_template = False
        config.do_sample = request.temperature > 0
        if config.do_sample:
            config.temperature = request.temperature
            config.rng_seed = request.seed
        if request.end_token_ids:
            config.eos_token_id = request.end_token_ids[0]
            config.stop_token_ids = set(request.end_token_ids)
        if drafter != PLAIN:
            config.num_assistant_tokens = NUM_ASSISTANT_TOKENS
        if drafter == PROMPT_LOOKUP:
            config.max_ngram_size = MAX_NGRAM_SIZE
        return config

    def _draft(self, settings: EngineSettings) -> Any:
        return self._genai.draft_model(str(_readable(settings.draft_path)), "CPU")


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise EngineAbsentError(f"{name} is not installed (pip install openvino-genai): {error}") from None


def _readable(path: Path | None) -> Path:
    """What the pipeline can open: a GGUF file, or a folder with OpenVINO's own format."""
    if path is None:
        raise EngineAbsentError("it needs the model as a file or folder on this machine")
    if path.is_dir() and not (path / "openvino_model.xml").exists():
        raise EngineAbsentError(
            f"{path.name} has no openvino_model.xml; give a .gguf file or a folder exported by optimum-intel"
        )
    return path


def _file_type(path: Path) -> str:
    return f"file {path.name}" if path.is_file() else "exported"


def _speculation(result: Any, tokens: int, drafter: str) -> dict[str, Any]:
    """Counters of speculation where the pipeline tells them."""
    if drafter == PLAIN:
        return {"target_steps": tokens}
    metrics = getattr(result, "extended_perf_metrics", None)
    accepted = getattr(metrics, "get_num_accepted_tokens", None)
    if accepted is None:
        return {}
    count = int(accepted())
    return {"accepted": count, "target_steps": max(1, tokens - count)}


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__
