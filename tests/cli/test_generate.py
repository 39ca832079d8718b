"""`foredraft generate`: text, JSON, where prompts come from, Ctrl-C."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from foredraft.cli import generate as generate_command
from foredraft.cli import output
from foredraft.engine import SpeculationStats
from foredraft.errors import ExecutionError


def _records(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


def test_text_then_one_line_of_statistics(run: Callable, models):
    """The text could not be piped, or nobody would see what speculation gained."""
    shown = run("generate", "hello", "--target", models.target, "--max-new-tokens", "12")
    record = _records(
        run("generate", "hello", "--target", models.target, "--max-new-tokens", "12", "--json").out
    )[0]
    assert shown.code == 0
    assert shown.out == record["text"] + "\n"
    assert len(shown.err.splitlines()) == 1
    for part in ("12 tokens", "tok/s", "mean accepted length", "acceptance rate", "ngram"):
        assert part in shown.err


def test_json_record(run: Callable, models):
    """A program that reads the output would miss a field, or find numbers that contradict each other."""
    outcome = run(
        "generate", "hello", "--target", models.target, "--draft", models.draft, "--json",
        "--num-draft-tokens", "4", "--max-new-tokens", "9", "--ignore-eos", "--logprobs", "2", "--no-chat",
    )  # fmt: skip
    assert outcome.code == 0
    assert outcome.err == ""
    (record,) = _records(outcome.out)
    assert record["prompt"] == "hello"
    assert record["sample_index"] == 0
    assert record["finish_reason"] == "length"
    assert len(record["token_ids"]) == len(record["logprobs"]) == 9
    assert all(len(entry["top"]) == 2 for entry in record["logprobs"])
    stats = record["stats"]
    assert stats["drafted"] > 0
    assert stats["accepted"] + stats["target_steps"] >= 9
    assert stats["mean_accepted_length"] == pytest.approx(9 / stats["target_steps"])
    assert stats["acceptance_rate"] == pytest.approx(stats["accepted"] / stats["drafted"])
    assert stats["tokens_per_second"] > 0


def test_the_number_of_draft_tokens_is_passed_on(run: Callable, models):
    """An option that is parsed but not forwarded would compare nothing with nothing."""
    target = ("--target", models.target, "--max-new-tokens", "24", "--ignore-eos", "--json")
    pair = (*target, "--draft", models.target)
    one = _records(run("generate", "hello", *pair, "--num-draft-tokens", "1").out)[0]
    eight = _records(run("generate", "hello", *pair, "--num-draft-tokens", "8").out)[0]
    none = _records(run("generate", "hello", *target, "--drafter", "none").out)[0]
    assert one["token_ids"] == eight["token_ids"] == none["token_ids"]
    assert none["stats"]["target_steps"] == 24 > one["stats"]["target_steps"] > eight["stats"]["target_steps"]
    assert none["stats"]["drafted"] == 0


@pytest.mark.parametrize("count", [0, 1, 2])
def test_short_requests(run: Callable, models, count: int):
    """Asked for none, one or two tokens, speculation would hand over what it had drafted besides."""
    outcome = run(
        "generate", "hello", "--target", models.target, "--draft", models.target,
        "--max-new-tokens", str(count), "--ignore-eos", "--json",
    )  # fmt: skip
    (record,) = _records(outcome.out)
    assert outcome.code == 0
    assert (len(record["token_ids"]), record["finish_reason"]) == (count, "length")


GREEDY = [
    ("--temperature", "0"),
    ("--temperature", "1", "--top-k", "1"),
    ("--temperature", "1", "--top-p", "0"),
    ("--temperature", "1e-6"),
]


@pytest.mark.parametrize("greedy", GREEDY, ids=" ".join)
def test_greedy_spellings_agree(run: Callable, models, greedy: tuple[str, ...]):
    """A temperature of almost 0, or one token to choose from, would give NaN or another text than argmax."""
    common = ("generate", "hello", "--target", models.target, "--max-new-tokens", "8", "--json")
    assert _records(run(*common, *greedy).out)[0]["text"] == _records(run(*common).out)[0]["text"]


def test_seed_exact_text_does_not_depend_on_speculation(run: Callable, models):
    """A seed would name one text with a drafter and another without."""
    common = (
        "generate", "hello", "--target", models.target, "--max-new-tokens", "16", "--temperature", "1",
        "--seed", "7", "--rule", "seed-exact", "--json",
    )  # fmt: skip
    with_draft = _records(run(*common, "--draft", models.draft).out)[0]
    plain = _records(run(*common, "--drafter", "none").out)[0]
    assert with_draft["token_ids"] == plain["token_ids"]


def test_stop_string_is_not_shown(run: Callable, models):
    """The start of a stop string would leak into the stream before the rest of it is seen."""
    common = ("generate", "hello", "--target", models.target, "--max-new-tokens", "40", "--ignore-eos")
    text = run(*common).out.removesuffix("\n")
    stop = text[10:13]
    outcome = run(*common, "--stop", stop, "--stop", "never there")
    assert outcome.out == text[: text.index(stop)] + "\n"
    first = _records(run(*common, "--json").out)[0]["token_ids"]
    ended = _records(run(*common, "--json", "--stop-token-id", str(first[5])).out)[0]
    assert ended["finish_reason"] == "stop"
    assert ended["token_ids"] == first[: first.index(first[5]) + 1]


def test_prompts_file_and_samples(run: Callable, models, tmp_path: Path):
    """A sample would be shown under another prompt, or with the carriage return of its line."""
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"prompt": "one"}\r\n\r\n{"prompt": "two", "other": 1}\r\n')
    target = ("--target", models.target, "--max-new-tokens", "3", "--n", "2", "--temperature", "1")
    records = _records(run("generate", "--prompts", str(file), *target, "--json").out)
    assert sorted((record["prompt"], record["sample_index"]) for record in records) == [
        ("one", 0), ("one", 1), ("two", 0), ("two", 1),
    ]  # fmt: skip
    shown = run("generate", "--prompts", str(file), *target)
    assert shown.out.count("[prompt ") == 4
    assert shown.err.startswith("12 tokens")


def test_standard_input_is_the_prompt(run: Callable, models):
    """The newline that echo adds would become part of the prompt."""
    common = ("--target", models.target, "--max-new-tokens", "5")
    piped = run("generate", "-", *common, stdin="héllo wörld\n".encode())
    assert piped.out == run("generate", "héllo wörld", *common).out


def test_system_message_reaches_the_model(run: Callable, models):
    """The system message would be parsed and dropped."""
    plain = run("generate", "hello", "--target", models.target, "--max-new-tokens", "8", "--json").out
    with_system = run(
        "generate",
        "hello",
        "--target",
        models.target,
        "--max-new-tokens",
        "8",
        "--json",
        "--system",
        "Be brief.",
    ).out
    assert _records(plain)[0]["token_ids"] != _records(with_system)[0]["token_ids"]


def test_logging_levels(run: Callable, models):
    """Nobody could tell whether speculation is on, or see what was drafted and accepted."""
    common = (
        "generate",
        "hello",
        "--target",
        models.target,
        "--draft",
        models.draft,
        "--max-new-tokens",
        "6",
    )
    told = run("--log-level", "info", *common, "--num-draft-tokens", "3").err
    assert all(part in told for part in (models.target, models.draft, "drafter model", "3 draft tokens"))
    assert re.search(r"drafted \(\d+, .*accepted \(", run("--log-level", "debug", *common).err)


class _Pressed:
    """Stands in for `write`; presses Ctrl-C at its first call."""

    def __init__(self, times: int = 1) -> None:
        self.text = ""
        self._times = times

    def __call__(self, text: str) -> None:
        self.text += text
        times, self._times = self._times, 0
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_keeps_what_was_generated(run: Callable, models, monkeypatch: pytest.MonkeyPatch):
    """Minutes of text would be lost, or shown without its statistics."""
    pressed = _Pressed()
    monkeypatch.setattr(generate_command, "write", pressed)
    outcome = run("generate", "hello", "--target", models.target, "--max-new-tokens", "900", "--ignore-eos")
    assert outcome.code == 130
    assert pressed.text.strip()
    assert "mean accepted length" in outcome.err
    assert int(outcome.err.split(" tokens")[0]) < 100
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_with_json(run: Callable, models, monkeypatch: pytest.MonkeyPatch):
    """Samples that Ctrl-C cut short would be missing from the output of a batch."""
    monkeypatch.setattr(generate_command, "write_json", _pressing(output.write_json))
    outcome = run(
        "generate", "hello", "--target", models.target, "--n", "3", "--max-batch-size", "1",
        "--temperature", "1", "--max-new-tokens", "20", "--ignore-eos", "--json",
    )  # fmt: skip
    assert outcome.code == 130
    records = _records(outcome.out)
    assert [record["finish_reason"] for record in records].count("cancelled") == 2
    assert len(records) == 3


def test_second_ctrl_c_aborts(run: Callable, models, monkeypatch: pytest.MonkeyPatch):
    """A round that does not end could not be left."""
    monkeypatch.setattr(generate_command, "write", _Pressed(times=2))
    outcome = run("generate", "hello", "--target", models.target, "--max-new-tokens", "900", "--ignore-eos")
    assert (outcome.code, outcome.err) == (130, "")


def test_error_in_the_middle(run: Callable, models, monkeypatch: pytest.MonkeyPatch):
    """A forward that fails would take the text before it along, or end with exit code 0."""
    from foredraft.execution import ReferenceRunner

    step, rounds = ReferenceRunner.step, []

    def failing(self, inputs):
        rounds.append(1)
        if len(rounds) > 12:
            raise ExecutionError("the model's forward failed: out of memory")
        return step(self, inputs)

    monkeypatch.setattr(ReferenceRunner, "step", failing)
    outcome = run(
        "generate", "hello", "--target", models.target, "--max-new-tokens", "50", "--ignore-eos",
        "--drafter", "none",
    )  # fmt: skip
    assert outcome.code == 1
    assert outcome.out.strip()
    assert "foredraft: the model's forward failed: out of memory" in outcome.err.splitlines()
    assert "Traceback" not in outcome.err


def test_unexpected_error_is_one_line(run: Callable, models, monkeypatch: pytest.MonkeyPatch):
    """A bug would show a traceback to users, or hide it from those who ask for it."""

    def broken(*arguments, **options):
        raise KeyError("secret")

    monkeypatch.setattr(generate_command, "load", broken)
    outcome = run("generate", "hello", "--target", models.target)
    assert outcome.code == 1
    assert len(outcome.err.splitlines()) == 1
    assert "unexpected KeyError" in outcome.err
    assert "Traceback" in run("--log-level", "debug", "generate", "hello", "--target", models.target).err


def test_terminal_without_unicode(monkeypatch: pytest.MonkeyPatch):
    """A terminal with an old encoding would stop the text at its first emoji."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    output.write("[bold]café 🙂[/bold]\n")
    assert raw.getvalue() == "[bold]café ?[/bold]\n".encode("latin-1")


def test_statistics_line_of_nothing():
    """Nothing generated would be a division by zero."""
    assert output.stats_line(SpeculationStats(), 0.0, "ngram").startswith("0 tokens, 0.0 tok/s")


def _pressing(write: Callable) -> Callable:
    presses = [1]

    def call(value) -> None:
        write(value)
        if presses:
            presses.pop()
            signal.raise_signal(signal.SIGINT)

    return call
