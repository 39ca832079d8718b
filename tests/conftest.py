"""What tests of several folders share."""

from __future__ import annotations

from pathlib import Path

import pytest

from foredraft.errors import DownloadError
from foredraft.models import pull


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The built-in model's GGUF file, fetched on first use; mark tests that use it `model`."""
    try:
        return pull("smollm2", progress=False)
    except DownloadError as error:
        if "pinned" in str(error):
            raise  # Something did arrive, and it is wrong.
        pytest.skip(f"the built-in model could not be fetched: {error}")
