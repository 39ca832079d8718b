"""The command line as a process of its own: start-up, pipes, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-c", "import sys; from foredraft.cli.main import main; sys.exit(main())"]
"""What the console script does."""
SECONDS = 120
"""For a machine that does much else."""


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["generate", "--help"], ["models"]], ids=" ".join
)
def test_starts_without_pytorch(arguments: list[str]):
    """Help and a mistyped option would take as long as importing PyTorch."""
    program = (
        "import sys; from foredraft.cli.main import main; code = main(sys.argv[1:]); "
        "sys.exit(code or ('torch' in sys.modules or 'transformers' in sys.modules))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, timeout=SECONDS, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout


def test_bad_option_in_a_process():
    """The exit code would be lost between the function and the process, or Python would add its own lines."""
    ended = subprocess.run(
        [*COMMAND, "generate", "hello", "--top-p", "1.5"], capture_output=True, timeout=SECONDS, check=False
    )
    assert ended.returncode == 2
    assert ended.stdout == b""
    assert ended.stderr.count(b"\n") == 1


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGINT to send to another process")
def test_ctrl_c_in_a_process(models):
    """Ctrl-C would lose the text that is there, or leave Python's traceback behind."""
    with subprocess.Popen(
        [
            *COMMAND,
            "generate",
            "hello",
            "--target",
            models.target,
            "--max-new-tokens",
            "3000",
            "--ignore-eos",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = os.read(process.stdout.fileno(), 100)
        process.send_signal(signal.SIGINT)
        rest, error = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert len(first + rest) > 1
    assert error.count(b"\n") == 1, error
    assert b"tok/s" in error


@pytest.mark.skipif(os.name == "nt", reason="closed pipes are reported otherwise")
def test_reader_that_has_left():
    """`| head` would be answered with BrokenPipeError, from foredraft or from Python at exit."""
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [*COMMAND, "models", "--json"], stdout=writer, stderr=subprocess.PIPE, timeout=SECONDS, check=False
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk():
    """Text that could not be written would be reported as written."""
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [*COMMAND, "models", "--json"], stdout=full, stderr=subprocess.PIPE, timeout=SECONDS, check=False
        )
    assert ended.returncode == 2
    assert ended.stderr.startswith(b"foredraft: standard output cannot be written")
    assert ended.stderr.count(b"\n") == 1
