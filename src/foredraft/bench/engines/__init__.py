"""The engines that `foredraft bench generate` compares: one file each, all behind one protocol.

They are imported by name in the process that runs them, so that one engine's libraries stay out of
another's.
"""

from __future__ import annotations

from importlib import import_module

from foredraft.bench.engines.base import (
    PLAIN,
    BenchEngine,
    EngineAbsentError,
    EngineSettings,
    Request,
    Run,
)

_CLASS_OF = {
    "foredraft": "foredraft:ForedraftEngine",
    "foredraft-fast": "foredraft:FastForedraftEngine",
    "transformers": "transformers:TransformersEngine",
    "openvino_genai": "openvino_genai:OpenVinoGenAiEngine",
    "llama.cpp": "llama_cpp:LlamaCppEngine",
}
ENGINES = tuple(_CLASS_OF)


def open_engine(name: str, settings: EngineSettings) -> BenchEngine:
    """Open one of `ENGINES`.

    Raises:
        EngineAbsentError: if it cannot run here.
        ForedraftError: if the models cannot be loaded.
    """
    module, _, class_name = _CLASS_OF[name].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), class_name)(settings)


__all__ = [
    "ENGINES",
    "PLAIN",
    "BenchEngine",
    "EngineAbsentError",
    "EngineSettings",
    "Request",
    "Run",
    "open_engine",
]
