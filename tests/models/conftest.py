"""What the tests of models share: a writer of GGUF files and a file server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from gguf_writing import write_gguf_file


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """`write_gguf_file` into this test's folder."""

    def write(family: str, *arguments: Any, name: str = "tiny.gguf", **keywords: Any) -> Path:
        return write_gguf_file(tmp_path / name, family, *arguments, **keywords)

    return write


@dataclass
class Served:
    """What the file server does with its one file."""

    content: bytes
    ranges: bool = True
    """Honour Range requests."""
    cut_after: int | None = None
    """Close the connection after this many bytes of each answer."""
    status: int = 200
    url: str = ""
    asked: list[str | None] = field(default_factory=list)
    """The Range header of each request."""


@pytest.fixture
def served() -> Iterator[Served]:
    """A server on this machine that offers one file, as the fields of `Served` say."""
    state = Served(b"")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append(wanted)
            if state.status != 200:
                self.send_error(state.status)
                return
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.ranges else 0
            if start > len(state.content):
                self.send_error(416)
                return
            body = state.content[start:]
            self.send_response(206 if wanted and state.ranges else 200)
            if wanted and state.ranges:
                end = len(state.content)
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{end}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body if state.cut_after is None else body[: state.cut_after])

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}/some-1.0-py3-none-any.whl"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()
