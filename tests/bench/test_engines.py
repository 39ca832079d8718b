"""The engines on tiny models, and the reasons of those that are absent."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import get_args

import pytest

from foredraft.bench.engines import (
    ENGINES,
    PLAIN,
    EngineAbsentError,
    EngineSettings,
    Request,
    open_engine,
)
from foredraft.bench.engines.foredraft import FastForedraftEngine, ForedraftEngine
from foredraft.bench.engines.transformers import TransformersEngine
from foredraft.params import DrafterName

PROMPT = (4, 40, 41, 42, 40, 41, 42, 40, 41)
GREEDY = Request(PROMPT, max_new_tokens=12, end_token_ids=(1,))
SAMPLED = Request(PROMPT, max_new_tokens=12, temperature=1.0, seed=3, end_token_ids=(1,))


@pytest.fixture(scope="module")
def settings(target_folder: Path, draft_folder: Path) -> EngineSettings:
    return EngineSettings(
        str(target_folder), str(draft_folder), target_folder, draft_folder, num_draft_tokens=3,
        temperature=1.0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def own(settings: EngineSettings) -> ForedraftEngine:
    return ForedraftEngine(settings)


@pytest.fixture(scope="module")
def transformers(settings: EngineSettings) -> TransformersEngine:
    return TransformersEngine(settings)


def test_every_drafter_runs_or_says_why(own: ForedraftEngine):
    """A drafter that foredraft gains must appear in its own benchmark by itself."""
    named = {*own.drafters(), *own.absent()}
    assert {*get_args(DrafterName)} - {"auto"} <= named
    assert {PLAIN, "ngram", "model", "model/seed-exact"} <= {*own.drafters()}
    assert all(own.absent().values())


def test_drafters_give_plain_tokens_and_count(own: ForedraftEngine):
    """A drafter measured on other tokens, or counted wrongly, would be measured for nothing."""
    plain = own.run(PLAIN, GREEDY)
    for drafter in own.drafters():
        run = own.run(drafter, GREEDY)
        assert run.token_ids == plain.token_ids
        assert run.target_steps is not None and run.target_steps <= len(run.token_ids)
        assert 0 < (run.first_token_seconds or 0) <= run.seconds
        assert 0 < (run.target_seconds or 0) <= run.seconds
        assert sum(run.drafted_per_position) == run.drafted
        assert sum(run.accepted_per_position) == run.accepted
    assert own.run("model/seed-exact", SAMPLED).token_ids == own.run(PLAIN, SAMPLED).token_ids


def test_a_repeat_starts_cold(own: ForedraftEngine, monkeypatch: pytest.MonkeyPatch):
    """The cache rows keep the last prompt: repeats would be measured without their prefill."""
    engine = own._inferencers[PLAIN]._engine
    fed: list[int] = []
    step = engine._rows.step

    def counted(inputs):
        fed.append(sum(len(row.tokens) for row in inputs))
        return step(inputs)

    monkeypatch.setattr(engine._rows, "step", counted)
    counts = []
    for _ in range(2):
        fed.clear()
        own.run(PLAIN, GREEDY)
        counts.append(sum(fed))
    assert counts[0] == counts[1] > len(PROMPT)


def test_texts_are_encoded_as_chat(own: ForedraftEngine):
    """An instruct model without its template answers differently and ends nowhere."""
    chat = own.encode("hello")
    assert 2 in chat, "<|im_start|> is part of the template"
    assert own.end_token_ids() == (1,) and own.context_length() == 1024


def test_transformers_agrees_with_foredraft(own: ForedraftEngine, transformers: TransformersEngine):
    """Greedy, all of transformers' ways give the tokens of the same model."""
    plain = own.run(PLAIN, GREEDY)
    assert transformers.drafters() == [PLAIN, "prompt_lookup", "assisted"]
    for drafter in transformers.drafters():
        run = transformers.run(drafter, GREEDY)
        assert run.token_ids == plain.token_ids
        assert 0 < (run.first_token_seconds or 0) <= run.seconds
        assert 0 < (run.target_seconds or 0) <= run.seconds
        assert (run.target_steps or 0) <= len(run.token_ids)
    assert transformers.run(PLAIN, GREEDY).target_steps == len(plain.token_ids)


def test_transformers_samples_by_seed(transformers: TransformersEngine):
    """Repeats of a sampled prompt must do the same work, or their spread measures the text."""
    first, second = (transformers.run(PLAIN, SAMPLED) for _ in range(2))
    assert first.token_ids == second.token_ids != transformers.run(PLAIN, GREEDY).token_ids


def test_without_a_draft_its_users_are_absent(target_folder: Path):
    """Drafters that vanish without a word look forgotten."""
    settings = EngineSettings(str(target_folder), target_path=target_folder)
    assert "draft" in ForedraftEngine(settings).absent()["model"]
    assert "draft" in TransformersEngine(settings).absent()["assisted"]


def test_the_fast_runner_is_not_measured_twice(target_folder: Path):
    """With --runner fast both engines would be the same one."""
    with pytest.raises(EngineAbsentError, match="already"):
        FastForedraftEngine(EngineSettings(str(target_folder), load_options={"runner": "fast"}))


def test_openvino_genai_is_absent_with_a_reason(settings: EngineSettings, monkeypatch: pytest.MonkeyPatch):
    """Users must learn whether to install something or to give another file."""
    monkeypatch.setitem(sys.modules, "openvino_genai", None)
    with pytest.raises(EngineAbsentError, match="pip install openvino-genai"):
        open_engine("openvino_genai", settings)


def test_llama_cpp_is_absent_without_its_binary(settings: EngineSettings, monkeypatch: pytest.MonkeyPatch):
    """Users must learn which program is missing from where."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EngineAbsentError, match="llama-server is not on the PATH"):
        open_engine("llama.cpp", settings)


FAKE_SERVER = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

options = sys.argv[1:]
if "draft-simple" in options:
    sys.exit(3)

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        speculative = "ngram-simple" in options
        answer = {{
            "tokens": asked["prompt"][: asked["n_predict"]],
            "timings": {{"prompt_ms": 1.5, "draft_n": 4 * speculative, "draft_n_accepted": 2 * speculative}},
        }}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *arguments):
        pass

HTTPServer(("127.0.0.1", int(options[options.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the fake server is a script")
def test_llama_cpp_server_is_driven_and_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Servers that are not read rightly give false numbers; ones that are not stopped stay for ever."""
    binary = tmp_path / "llama-server"
    binary.write_text(FAKE_SERVER.format(python=sys.executable))
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    engine = open_engine("llama.cpp", EngineSettings("x", "y", model, model))
    try:
        assert engine.drafters() == [PLAIN, "ngram"]
        assert "exit code 3" in engine.absent()["draft_model"]
        run = engine.run("ngram", Request((5, 6, 7, 8, 9), max_new_tokens=4))
        assert run.token_ids == (5, 6, 7, 8)
        assert (run.drafted, run.accepted, run.target_steps) == (4, 2, 2)
        assert run.first_token_seconds == pytest.approx(0.0015)
    finally:
        engine.close()
    assert all(server._process.returncode is not None for server in engine._servers.values())


def test_engines_that_read_files_say_which_they_need(target_folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder of safetensors is not what these peers read."""
    monkeypatch.setattr("foredraft.bench.engines.llama_cpp._binary", lambda: "llama-server")
    settings = EngineSettings(str(target_folder), target_path=target_folder)
    with pytest.raises(EngineAbsentError, match="gguf"):
        open_engine("llama.cpp", settings)
    monkeypatch.setattr("foredraft.bench.engines.openvino_genai._module", lambda name: _Module())
    with pytest.raises(EngineAbsentError, match=r"openvino_model\.xml"):
        open_engine("openvino_genai", settings)
    assert {"foredraft", "transformers", "openvino_genai", "llama.cpp"} <= {*ENGINES}


class _Module:
    Tensor = None
