"""foredraft: lossless speculative decoding for causal language models.

The public names are all here; everything else may change between releases.
"""

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
