"""A suffix index on disk: one .npz file with the text and the sorted order of every segment."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np

from foredraft.drafters.suffix_index import DEFAULT_CAPACITY, DEFAULT_MIN_PROBABILITY, SuffixIndex
from foredraft.drafters.suffix_index_segment import SEPARATOR, SuffixSegment
from foredraft.errors import ParameterError

_FORMAT = 1


def save_index(index: SuffixIndex, path: Path, *, tokenizer: str) -> None:
    """Write `index` to `path`. A reader finds the old file or the new one, never half of one.

    Args:
        index: what is kept.
        path: the file, whose folder must exist.
        tokenizer: identifies the tokenizer that the token ids belong to; asked for again by `load_index`.

    Raises:
        ParameterError: if the file cannot be written.
    """
    arrays: dict[str, Any] = {"format": np.int64(_FORMAT), "tokenizer": np.str_(tokenizer)}
    for number, segment in enumerate(index.segments):
        arrays[f"text_{number}"] = np.frombuffer(segment.text, dtype=np.uint8)
        arrays[f"order_{number}"] = segment.order
    temporary: Path | None = None
    try:
        with NamedTemporaryFile(dir=path.parent, prefix=path.name, suffix=".part", delete=False) as file:
            temporary = Path(file.name)
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise ParameterError(
            f"the suffix index cannot be written to {path} ({error.strerror}); choose a writable path"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def load_index(
    path: Path,
    *,
    tokenizer: str,
    capacity: int = DEFAULT_CAPACITY,
    min_probability: float = DEFAULT_MIN_PROBABILITY,
) -> SuffixIndex:
    """Read an index that `save_index` wrote; of one that is larger than `capacity`, the newest part.

    Raises:
        ParameterError: if the file is missing, damaged, of another format, or of another tokenizer.
    """
    index = SuffixIndex(capacity=capacity, min_probability=min_probability)
    try:
        # zip members carry a checksum, which reading them verifies.
        with np.load(path, allow_pickle=False) as arrays:
            if int(arrays["format"]) != _FORMAT:
                raise ValueError(f"format {int(arrays['format'])} instead of {_FORMAT}")
            written_for = str(arrays["tokenizer"])
            segments = [_segment(arrays, number) for number in range((len(arrays.files) - 2) // 2)]
    except FileNotFoundError:
        raise ParameterError(f"there is no suffix index at {path}; save one there first") from None
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ParameterError(
            f"the suffix index at {path} is damaged ({reason}); delete it to start a new one"
        ) from error
    if written_for != tokenizer:
        raise ParameterError(
            f"the suffix index at {path} belongs to tokenizer {written_for!r}, not {tokenizer!r}; "
            "use another file for each tokenizer"
        )
    for segment in segments:
        index.append_segment(segment)
    return index


def _segment(arrays: Any, number: int) -> SuffixSegment:
    text, order = arrays[f"text_{number}"], arrays[f"order_{number}"]
    if text.dtype != np.uint8 or order.dtype != np.int32 or text.shape != (4 * len(order),):
        raise ValueError(f"segment {number} has arrays of the wrong shape")
    places = np.bincount(order, minlength=len(order)) if len(order) and order.min() >= 0 else order
    if len(places) != len(order) or not bool((places == 1).all()):
        raise ValueError(f"segment {number} is not sorted")
    stored = text.tobytes()
    if not stored.startswith(SEPARATOR.to_bytes(4, "big")):
        raise ValueError(f"segment {number} does not start with a document")
    return SuffixSegment(stored, order)
