"""llama.cpp's server, if its binary is on the PATH: plain, n-gram and draft model."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

from foredraft.bench.engines.base import PLAIN, EngineAbsentError, EngineSettings, Request, Run
from foredraft.bench.host import peak_memory

BINARY = "llama-server"
NGRAM = "ngram"
DRAFT_MODEL = "draft_model"
START_SECONDS = 60
REQUEST_SECONDS = 600


class LlamaCppEngine:
    """One server for each way of drafting, on ports of this machine only."""

    def __init__(self, settings: EngineSettings) -> None:
        binary = _binary()
        target = _gguf(settings.target_path, "target")
        self._dtype = f"file {target.name}"
        self._servers: dict[str, _Server] = {}
        self._absent: dict[str, str] = {}
        for drafter, options in self._ways(settings).items():
            command = [binary, "-m", str(target), "-c", str(settings.context_length), "-np", "1", *options]
            try:
                self._servers[drafter] = _Server(command)
            except EngineAbsentError as error:
                if drafter == PLAIN:
                    raise
                self._absent[drafter] = str(error)

    def drafters(self) -> Sequence[str]:
        """See `BenchEngine.drafters`."""
        return list(self._servers)

    def absent(self) -> Mapping[str, str]:
        """See `BenchEngine.absent`."""
        return self._absent

    def dtype(self) -> str:
        """See `BenchEngine.dtype`."""
        return self._dtype

    def run(self, drafter: str, request: Request) -> Run:
        """See `BenchEngine.run`."""
        server = self._servers[drafter]
        started = time.perf_counter()
        answer = server.post(
            {
                "prompt": list(request.prompt),
                "n_predict": request.max_new_tokens,
                "temperature": request.temperature,
                "top_k": 0,
                "top_p": 1.0,
                "min_p": 0.0,
                "seed": request.seed,
                "cache_prompt": False,
                "return_tokens": True,
            }
        )
        seconds = time.perf_counter() - started
        timings: dict[str, Any] = answer.get("timings", {})
        tokens = tuple(int(token) for token in answer.get("tokens", []))
        accepted = timings.get("draft_n_accepted", 0)
        return Run(
            token_ids=tokens,
            seconds=seconds,
            # The server gives the first token together with the end of the prompt.
            first_token_seconds=timings["prompt_ms"] / 1000 if "prompt_ms" in timings else None,
            target_steps=max(1, len(tokens) - accepted),
            drafted=timings.get("draft_n", 0),
            accepted=accepted,
            peak_memory=peak_memory(server.pid),
        )

    def close(self) -> None:
        """Stop the servers."""
        for server in self._servers.values():
            server.stop()

    def _ways(self, settings: EngineSettings) -> dict[str, list[str]]:
        ways: dict[str, list[str]] = {PLAIN: [], NGRAM: ["--spec-type", "ngram-simple"]}
        if settings.draft is None:
            self._absent[DRAFT_MODEL] = "no draft model was given (--draft)"
            return ways
        try:
            draft = _gguf(settings.draft_path, "draft")
            ways[DRAFT_MODEL] = ["--spec-type", "draft-simple", "--spec-draft-model", str(draft)]
        except EngineAbsentError as error:
            self._absent[DRAFT_MODEL] = str(error)
        return ways


class _Server:
    """One running server."""

    def __init__(self, command: list[str]) -> None:
        port = _free_port()
        self._address = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def post(self, body: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(body).encode()
        request = HttpRequest(f"{self._address}/completion", data, {"Content-Type": "application/json"})
        try:
            with urlopen(request, timeout=REQUEST_SECONDS) as response:
                return json.load(response)
        except (OSError, ValueError) as error:
            raise EngineAbsentError(f"{BINARY} failed: {error}") from None

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if (code := self._process.poll()) is not None:
                raise EngineAbsentError(f"{BINARY} refused these options or the file (exit code {code})")
            with contextlib.suppress(URLError, OSError), urlopen(f"{self._address}/health", timeout=5):
                return
            time.sleep(0.1)
        raise EngineAbsentError(f"{BINARY} was not ready after {START_SECONDS} s")


def _binary() -> str:
    found = shutil.which(BINARY)
    if found is None:
        raise EngineAbsentError(f"{BINARY} is not on the PATH")
    return found


def _gguf(path: Path | None, what: str) -> Path:
    if path is None or path.is_dir():
        raise EngineAbsentError(f"it reads .gguf files only, and the {what} is not one")
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
