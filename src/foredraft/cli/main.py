"""The `foredraft` command: its sub-commands, logging, and errors as one line."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from foredraft import __version__
from foredraft.cli.bench import bench
from foredraft.cli.chat import chat
from foredraft.cli.distill import distill
from foredraft.cli.generate import generate
from foredraft.cli.interrupt import INTERRUPTED
from foredraft.cli.models import info, models, pull
from foredraft.cli.output import OutputClosedError, note, write
from foredraft.cli.verify import verify
from foredraft.errors import ForedraftError, ParameterError

# Newer typer carries its own click: its errors are found through its public ones.
_USAGE_ERRORS = tuple(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
_LOG_LEVELS = ("debug", "info", "warning", "error")

app = typer.Typer(
    name="foredraft",
    help="Lossless speculative decoding: the target's own text, sooner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (generate, chat, verify, distill, models, pull, info):
    app.command()(command)
app.add_typer(bench, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        write(f"foredraft {__version__}\n")
        raise typer.Exit


@app.callback()
def _settings(
    log_level: Annotated[
        str, typer.Option("--log-level", help="debug (drafted and accepted tokens), info, warning or error.")
    ] = "warning",
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    if log_level not in _LOG_LEVELS:
        raise ParameterError(f"log-level: must be one of {', '.join(_LOG_LEVELS)} (got {log_level!r})")
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s", force=True)
    logging.getLogger("foredraft").setLevel(log_level.upper())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; never raises."""
    try:
        code = app(args=list(arguments) if arguments is not None else None, standalone_mode=False)
    except typer.Exit as stop:
        code = stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except SystemExit as stop:
        # Typer's own way out when a table or help meets a closed pipe.
        code = stop.code
    except OutputClosedError:
        # Nothing more can be said to the reader, at exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:
        code = _explained(error)
    return code if isinstance(code, int) else 0


def _explained(error: Exception) -> int:
    """Say in one line what went wrong; returns the exit code."""
    if isinstance(error, ForedraftError):
        note(f"foredraft: {error}")
        return error.exit_code
    if isinstance(error, _USAGE_ERRORS):
        usage: Any = error
        message = usage.format_message()
        note(message if type(error).__name__ == "NoArgsIsHelpError" else f"foredraft: {message}")
        return 2
    if logging.getLogger("foredraft").isEnabledFor(logging.DEBUG):
        traceback.print_exception(error)
    lines = str(error).strip().splitlines()
    note(
        f"foredraft: unexpected {type(error).__name__}: {lines[0] if lines else 'no message'} "
        "(foredraft --log-level debug COMMAND shows where)"
    )
    return 1
