"""Reading a GGUF file: its metadata and where its tensors lie.

The format is described in the `ggml` project's docs/gguf.md. The reader of the `gguf` package makes
several NumPy views for every string, seconds for a vocabulary; this one walks one buffer with `struct`.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from foredraft.errors import ModelError, UnsupportedModelError

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True)
class GGUFTensor:
    """Where one tensor lies in the file."""

    name: str
    shape: tuple[int, ...]
    """In the order of NumPy and PyTorch: rows first."""
    kind: GGMLQuantizationType
    start: int
    """First byte, from the start of the file."""
    num_bytes: int


@dataclass(frozen=True)
class GGUFFile:
    """A parsed GGUF file; `buffer` maps the whole of it."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]
    buffer: npt.NDArray[np.uint8]

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture."""
        return str(self.metadata.get("general.architecture", ""))

    def dequantized(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor as float32, exactly as its quantisation defines it; a copy.

        Raises:
            UnsupportedModelError: for a quantisation that the `gguf` package cannot undo.
        """
        tensor = self.tensors[name]
        raw = self.buffer[tensor.start : tensor.start + tensor.num_bytes]
        rows = raw.reshape(math.prod(tensor.shape[:-1]), -1)
        try:
            values = dequantize(rows, tensor.kind).reshape(tensor.shape)
            return np.array(values, dtype=np.float32, copy=tensor.kind == GGMLQuantizationType.F32 or None)
        except NotImplementedError:
            raise UnsupportedModelError(
                f"{self.path}: tensors quantised as {tensor.kind.name} cannot be read; "
                "use a file in F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 or a K-quant"
            ) from None


class _Cursor:
    """A position in the file's bytes."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def scalar(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        (value,) = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        if length > len(self.data) - self.at:
            raise struct.error("string runs past the end")
        text = self.data[self.at : self.at + length].decode("utf-8", errors="replace")
        self.at += length
        return text

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise struct.error(f"unknown value type {kind}")
        return self.scalar(_SCALARS[kind])

    def _array(self) -> list[Any]:
        kind, length = self.scalar("I"), self.scalar("Q")
        if length > len(self.data) - self.at:
            raise struct.error("array runs past the end")
        if kind == _STRING:
            return self._strings(length)
        if kind not in _SCALARS:
            return [self.value(kind) for _ in range(length)]
        layout = struct.Struct(f"<{length}{_SCALARS[kind]}")
        values = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return list(values)

    def _strings(self, count: int) -> list[str]:
        """`count` strings; vocabularies hold a hundred thousand, so this loop is kept tight."""
        data, at, unpack = self.data, self.at, struct.Struct("<Q").unpack_from
        raw: list[bytes] = []
        for _ in range(count):
            (length,) = unpack(data, at)
            at += 8 + length
            raw.append(data[at - length : at])
        if at > len(data):
            raise struct.error("string runs past the end")
        self.at = at
        return [text.decode("utf-8", errors="replace") for text in raw]


def is_gguf(path: Path) -> bool:
    """Whether the file starts as a GGUF file does."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_gguf(path: Path) -> GGUFFile:
    """Read the metadata and the table of tensors; no tensor data is touched.

    Raises:
        ModelError: if the file is not GGUF, is of another version, or is cut short.
    """
    try:
        if not is_gguf(path):
            raise ModelError(f"{path} is not a GGUF file (it does not begin with the letters GGUF)")
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None
    try:
        return _parse(path, _Cursor(data))
    except (struct.error, UnicodeError, OverflowError, MemoryError) as error:
        raise ModelError(f"{path} is a broken GGUF file ({error}); fetch it again") from None


def _parse(path: Path, cursor: _Cursor) -> GGUFFile:
    cursor.at = len(MAGIC)
    version = cursor.scalar("I")
    if version not in _VERSIONS:
        raise UnsupportedModelError(
            f"{path} is GGUF version {version}; versions {' and '.join(map(str, _VERSIONS))} can be read"
        )
    num_tensors, num_keys = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("I"))
    table = [_tensor_row(cursor) for _ in range(num_tensors)]
    alignment = int(metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
    if alignment < 1:
        raise struct.error(f"alignment {alignment}")
    start = -(-cursor.at // alignment) * alignment
    tensors = {row[0]: _located(path, row, start, len(cursor.data)) for row in table}
    return GGUFFile(path, metadata, tensors, np.frombuffer(cursor.data, dtype=np.uint8))


def _tensor_row(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    num_dims = cursor.scalar("I")
    if not 1 <= num_dims <= 4:
        raise struct.error(f"tensor {name!r} of {num_dims} dimensions")
    shape = tuple(cursor.scalar("Q") for _ in range(num_dims))[::-1]
    return name, shape, cursor.scalar("I"), cursor.scalar("Q")


def _located(path: Path, row: tuple[str, tuple[int, ...], int, int], start: int, end: int) -> GGUFTensor:
    name, shape, number, offset = row
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise UnsupportedModelError(
            f"{path}: tensor {name!r} is of type number {number}, which this version of gguf does not know"
        ) from None
    block, block_bytes = GGML_QUANT_SIZES[kind]
    num_values = math.prod(shape)
    if num_values == 0 or shape[-1] % block:
        raise struct.error(f"tensor {name!r} of shape {shape} in blocks of {block}")
    num_bytes = num_values // block * block_bytes
    if start + offset + num_bytes > end:
        raise ModelError(
            f"{path} is cut short: tensor {name!r} ends at byte {start + offset + num_bytes}, "
            f"the file at {end}; fetch it again"
        )
    return GGUFTensor(name, shape, kind, start + offset, num_bytes)
