"""From what the user calls a model to where it is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from foredraft.errors import ModelNotFoundError, UnsupportedModelError
from foredraft.models.catalogue import CATALOGUE
from foredraft.models.gguf_file import is_gguf
from foredraft.models.pull import pulled


@dataclass(frozen=True)
class ResolvedModel:
    """What a name stands for."""

    name: str
    kind: Literal["catalogue", "folder", "gguf", "hub"]
    path: Path | None
    """Where it lies on this machine; None for a hub id, and for a built-in model not fetched yet."""


def resolve(name: str | Path) -> ResolvedModel:
    """Find out what `name` stands for: a built-in model, else a local folder or file, else a hub id.

    Nothing is fetched. A folder that is called like a built-in model is reached as `./name`.

    Raises:
        ModelNotFoundError: if it is written as a path and nothing is there.
        UnsupportedModelError: for a file that is not GGUF.
    """
    text = os.fspath(name)
    if isinstance(name, str) and text in CATALOGUE:
        return ResolvedModel(text, "catalogue", pulled(CATALOGUE[text]))
    if not text.strip() or "\0" in text:
        raise ModelNotFoundError(f"a model is needed: a built-in name ({_built_in()}), a path, or a hub id")
    path = Path(text).expanduser()
    if path.is_dir():
        return ResolvedModel(text, "folder", path)
    if path.exists():
        return ResolvedModel(text, "gguf", _checked_file(path))
    if isinstance(name, Path) or _looks_like_path(text):
        raise ModelNotFoundError(f"no model at {text}: there is no such file or folder")
    return ResolvedModel(text, "hub", None)


def not_found(name: str, hub: str) -> ModelNotFoundError:
    """The error for a name that nothing stands for; `hub` says what became of asking the hub."""
    return ModelNotFoundError(f"no model {name!r}: not built in ({_built_in()}), not a local path, and {hub}")


def _built_in() -> str:
    return ", ".join(CATALOGUE)


def _checked_file(path: Path) -> Path:
    try:
        if is_gguf(path):
            return path
    except OSError as error:
        raise ModelNotFoundError(f"{path} cannot be read: {error.strerror or error}") from None
    hint = "; give the folder that holds config.json" if path.suffix == ".safetensors" else ""
    raise UnsupportedModelError(f"{path} is not a GGUF file (it does not begin with the letters GGUF){hint}")


def _looks_like_path(text: str) -> bool:
    """Hub ids are `name` or `owner/name`."""
    return (
        text.startswith((".", "/", "~", os.sep))
        or text.endswith(".gguf")
        or "\\" in text
        or text.count("/") > 1
    )
