"""foredraft: lossless speculative decoding for causal language models.

The public names are all here; everything else may change between releases. They are imported when first
used, so that what needs no model (help, errors in options, downloads) does not wait for PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foredraft.engine import SpeculationStats, TokenLogprobs
    from foredraft.errors import ForedraftError
    from foredraft.inferencer import Generation, GenerationChunk, Inferencer, SpeculativeInferencer
    from foredraft.models import LoadedModel, load_model
    from foredraft.params import SamplingParams, SpeculationConfig

__version__ = "0.1.0"

__all__ = [
    "ForedraftError",
    "Generation",
    "GenerationChunk",
    "Inferencer",
    "LoadedModel",
    "SamplingParams",
    "SpeculationConfig",
    "SpeculationStats",
    "SpeculativeInferencer",
    "TokenLogprobs",
    "__version__",
    "load_model",
]

_MODULE_OF = {
    "ForedraftError": "errors",
    "Generation": "inferencer",
    "GenerationChunk": "inferencer",
    "Inferencer": "inferencer",
    "LoadedModel": "models",
    "SamplingParams": "params",
    "SpeculationConfig": "params",
    "SpeculationStats": "engine",
    "SpeculativeInferencer": "inferencer",
    "TokenLogprobs": "engine",
    "load_model": "models",
}


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(import_module(f"foredraft.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'foredraft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
