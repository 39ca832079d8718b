"""Prompts from the command line, standard input or a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from foredraft.errors import PromptError


def read_prompts(argument: str | None, file: Path | None) -> list[str]:
    """The prompts asked for.

    Args:
        argument: the prompt itself, or "-" for standard input.
        file: one prompt a line; in a .jsonl file each line is an object with a "prompt".

    Raises:
        PromptError: if none or both are given, or what is given cannot be read as text.
    """
    if (argument is None) == (file is None):
        raise PromptError("give either a prompt (- reads standard input) or --prompts FILE")
    if file is not None:
        return _from_file(file)
    if argument != "-":
        return [argument or ""]
    return [_decoded(sys.stdin.buffer.read(), "standard input").removesuffix("\n")]


def _from_file(file: Path) -> list[str]:
    try:
        text = _decoded(file.read_bytes(), str(file))
    except OSError as error:
        raise PromptError(f"{file}: cannot be read ({error.strerror or error})") from None
    lines = [
        (number, line.removesuffix("\r"))
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    ]
    if not lines:
        raise PromptError(f"{file}: no prompt in it; write one a line")
    if file.suffix == ".jsonl":
        return [_from_json(line, f"{file}, line {number}") for number, line in lines]
    return [line for _, line in lines]


def _from_json(line: str, where: str) -> str:
    try:
        record: Any = json.loads(line)
    except ValueError:
        raise PromptError(f"{where}: not JSON") from None
    prompt: Any = record.get("prompt") if isinstance(record, dict) else None
    if not isinstance(prompt, str):
        raise PromptError(f'{where}: want an object with a text "prompt"')
    return prompt


def _decoded(content: bytes, where: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise PromptError(f"{where}: not UTF-8 text") from None
    if "\0" in text:
        raise PromptError(f"{where}: not text (it has NUL characters)")
    return text
