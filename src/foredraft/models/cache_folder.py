"""Where fetched models are kept: FOREDRAFT_HOME, or the platform's cache folder."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path

from foredraft.errors import ModelError


def models_location() -> Path:
    """The folder that `models_folder` would give, neither made nor checked.

    A model that already lies there can be read from a folder that is not writable.
    """
    home = os.environ.get("FOREDRAFT_HOME")
    root = Path(home).expanduser() if home else user_cache_path("foredraft", appauthor=False)
    return root / "models"


def models_folder() -> Path:
    """The folder of fetched models: `$FOREDRAFT_HOME/models`, or `models` in the user's cache folder.

    It is made if it does not exist.

    Raises:
        ModelError: if it cannot be made or written to.
    """
    folder = models_location()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error.strerror or str(error)) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _unusable(folder, "not writable")
    return folder


def _unusable(folder: Path, reason: str) -> ModelError:
    return ModelError(
        f"the models folder {folder} cannot be used ({reason}); "
        "set FOREDRAFT_HOME to a folder that you can write to"
    )
