"""The token file that a draft is trained on: one sample a line, appended in order of their index.

A line is `{"index": 3, "temperature": 1.0, "prompt_length": 31, "tokens": [...]}`; `settings.json` beside
it says how the samples were drawn, so that no run goes on with another model's or seed's file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from foredraft.errors import ParameterError

TOKENS_NAME = "tokens.jsonl"
SETTINGS_NAME = "settings.json"


@dataclass(frozen=True)
class Sample:
    """One conversation of the target with itself, or its answer to a given prompt."""

    index: int
    """Which draw of the seed this is."""
    temperature: float
    """Of the answer."""
    prompt_length: int
    """Tokens before the answer, chat template included."""
    tokens: tuple[int, ...]
    """Prompt and answer."""


class TokenFile:
    """A folder with samples and their settings; a line cut short by a kill is dropped when it is opened.

    Args:
        folder: made if it is not there.
        settings: what determines the samples; JSON values.

    Raises:
        ParameterError: if the folder holds samples of other settings, or cannot be written.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._path = folder / TOKENS_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._claim(folder / SETTINGS_NAME, settings)
            self.num_tokens, self.next_index = self._recover()
        except OSError as error:
            raise ParameterError(
                f"the training data cannot be written to {folder} ({error.strerror or error})"
            ) from None

    def append(self, sample: Sample) -> None:
        """Write one sample; it survives a kill from here on."""
        line = json.dumps(asdict(sample), separators=(",", ":")) + "\n"
        with self._path.open("a", encoding="ascii") as file:
            file.write(line)
        self.num_tokens += len(sample.tokens)
        self.next_index = sample.index + 1

    def _claim(self, path: Path, settings: Mapping[str, Any]) -> None:
        wanted: dict[str, Any] = json.loads(json.dumps(settings))
        if not path.exists():
            partial = path.with_suffix(".part")
            partial.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
            partial.replace(path)
            return
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        different = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
        if different:
            name = different[0]
            raise ParameterError(
                f"{path.parent} holds samples drawn with {name}={found.get(name)!r}, not "
                f"{wanted.get(name)!r}; choose the same settings or another folder"
            )

    def _recover(self) -> tuple[int, int]:
        """Tokens in the file and the index that follows its last sample."""
        if not self._path.exists():
            return 0, 0
        content = self._path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self._path, whole)
        samples = read_samples(self._path.parent)
        return sum(len(sample.tokens) for sample in samples), samples[-1].index + 1 if samples else 0


def read_samples(folder: Path) -> list[Sample]:
    """All complete samples of a folder, in order; one that is being written is left out.

    Raises:
        ParameterError: if there are none to read, or a line is not a sample.
    """
    path = folder / TOKENS_NAME
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise ParameterError(f"no training data in {folder} ({error.strerror or error})") from None
    samples: list[Sample] = []
    for number, line in enumerate(lines, start=1):
        try:
            record: dict[str, Any] = json.loads(line)
            samples.append(_sample(**record))
        except (ValueError, TypeError):
            raise ParameterError(f"{path}, line {number}: not a sample; delete the line") from None
    return samples


def _sample(index: int, temperature: float, prompt_length: int, tokens: Sequence[int]) -> Sample:
    return Sample(int(index), float(temperature), int(prompt_length), tuple(map(int, tokens)))


def stored_tokens(folder: Path, target: str) -> int:
    """Tokens in a folder, 0 if it holds no samples.

    Raises:
        ParameterError: if another target drew them.
    """
    settings = folder / SETTINGS_NAME
    if not settings.exists() or not (folder / TOKENS_NAME).exists():
        return 0
    drawn_by = json.loads(settings.read_text(encoding="utf-8")).get("target")
    if drawn_by != target:
        raise ParameterError(f"{folder} holds the text of target {drawn_by!r}, not of {target!r}")
    return sum(len(sample.tokens) for sample in read_samples(folder))


def fingerprint(samples: Sequence[Sample]) -> str:
    """Identifies the samples: a run must not be resumed over other data."""
    digest = hashlib.blake2b(digest_size=16)
    for sample in samples:
        digest.update(f"{sample.index}:{sample.prompt_length}:{sample.tokens}".encode())
    return digest.hexdigest()
