"""Downloading one file of known size, resuming where an earlier attempt stopped."""

from __future__ import annotations

import errno
import http.client
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from foredraft.errors import DownloadError

_CHUNK = 1 << 20
_TIMEOUT_SECONDS = 60
_ATTEMPTS = 5
_CERTIFICATE_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")

Advance = Callable[[int], None]
"""Told the number of bytes that the file now holds."""


class CannotOpenError(Exception):
    """The address could not be opened at all: refused, unauthorised, or not trusted."""


def download(url: str, part: Path, size: int, advance: Advance) -> None:
    """Bring `part` to `size` bytes from `url` (http, https or file), keeping what it already holds.

    Raises:
        CannotOpenError: if not one byte could be had from this address.
        DownloadError: if the transfer broke off or the disk is full; `part` keeps what arrived.
    """
    for _ in range(_ATTEMPTS):
        before = _held(part)
        if before >= size:
            return
        try:
            _continue(url, part, size, advance)
        except (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, ConnectionError, TimeoutError) as error:
            if _held(part) == 0:
                raise CannotOpenError(_why(error)) from error
            if _held(part) <= before:
                raise _broken(part, size, _why(error)) from None
        else:
            if before < _held(part) < size:
                continue  # cut short, but some more arrived: ask for the rest
            if _held(part) <= before:
                raise _broken(part, size, "the server sent nothing more")
    if _held(part) < size:
        raise _broken(part, size, "the connection kept breaking")


def disk_error(error: OSError, path: Path) -> DownloadError:
    """What the user reads when a file cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadError(
            f"the disk is full: {path} could not be written; free some space and try again (what arrived is kept)"
        )
    return DownloadError(f"{path} cannot be written: {error.strerror or error}")


def _held(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _broken(part: Path, size: int, reason: str) -> DownloadError:
    return DownloadError(
        f"the download broke off at {_held(part)} of {size} bytes ({reason}); "
        "what arrived is kept, the next attempt resumes"
    )


def _continue(url: str, part: Path, size: int, advance: Advance) -> None:
    start = _held(part)
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response = _opener().open(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        part.unlink(missing_ok=True)  # the file there is shorter than what is held: start again
        return _continue(url, part, size, advance)
    with response:
        resumed = start > 0 and _resumes(response, start)
        if url.startswith("file:") and start:
            response.seek(start) if False else response.read(start)
            resumed = True
        _append(response, part, size, 0 if not resumed else start, advance)
    return None


def _resumes(response: Any, start: int) -> bool:
    if getattr(response, "status", None) != http.HTTPStatus.PARTIAL_CONTENT:
        return False
    return str(response.headers.get("Content-Range", "")).startswith(f"bytes {start}-")


def _append(response: Any, part: Path, size: int, start: int, advance: Advance) -> None:
    held = start
    try:
        file = part.open("ab" if start else "wb")
    except OSError as error:
        raise disk_error(error, part) from None
    with file:
        while held < size:
            chunk = response.read(min(_CHUNK, size - held))
            if not chunk:
                return
            try:
                file.write(chunk)
            except OSError as error:
                raise disk_error(error, part) from None
            held += len(chunk)
            advance(held)
