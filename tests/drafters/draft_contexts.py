"""A context without an engine, for drafters."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from foredraft.laws import LawProcessor, NoiseStream, noise_key
from foredraft.params import SamplingParams

_ids = itertools.count(10_000)


class Context:
    """Committed tokens that a test appends to."""

    def __init__(self, tokens: Sequence[int], **params) -> None:
        self.id = next(_ids)
        self.tokens = list(tokens)
        self.processor = LawProcessor(SamplingParams(**params), prompt_length=len(tokens))
        self.round_index = 0

    def noise_key(self, stream: NoiseStream, position: int) -> int:
        round_index = 0 if stream is NoiseStream.TARGET else self.round_index
        return noise_key(7, 0, stream, position, round_index)

    def commit(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        self.round_index += 1
