"""Finding, fetching and loading models: built-in ones, local folders, GGUF files and hub ids."""

from foredraft.models.cache_folder import models_folder
from foredraft.models.catalogue import CATALOGUE, CatalogueEntry
from foredraft.models.loader import LoadedModel, context_length, load_config, load_model
from foredraft.models.pull import pull, pulled
from foredraft.models.resolve import ResolvedModel, resolve
from foredraft.models.support import unsupported_reason

__all__ = [
    "CATALOGUE",
    "CatalogueEntry",
    "LoadedModel",
    "ResolvedModel",
    "context_length",
    "load_config",
    "load_model",
    "models_folder",
    "pull",
    "pulled",
    "resolve",
    "unsupported_reason",
]
