"""Finding, fetching and loading models: built-in ones, local folders, GGUF files and hub ids.

What needs transformers is imported when first used: listing and fetching must not wait for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from foredraft.models.cache_folder import models_folder
from foredraft.models.catalogue import CATALOGUE, CatalogueEntry
from foredraft.models.pull import pull, pulled
from foredraft.models.resolve import ResolvedModel, resolve

if TYPE_CHECKING:
    from foredraft.models.loader import LoadedModel, context_length, load_config, load_model
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

_LATER = {
    "LoadedModel": "loader",
    "context_length": "loader",
    "load_config": "loader",
    "load_model": "loader",
    "unsupported_reason": "support",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
