"""`Oracle`: a model's own logits, from plain uncached forwards outside the engine."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from foredraft.models import LoadedModel

_BATCH_TOKENS = 4096
"""Tokens in one forward, which bounds memory."""


class Oracle:
    """What the model says of given texts, computed without cache, rows or speculation."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._model = loaded.model
        self._device = loaded.device

    @torch.inference_mode()
    def logits(self, prompt: Sequence[int], outputs: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Raw logits float32 `[len(output), vocab]` that precede each token of each output.

        Equal outputs share a forward.
        """
        distinct = sorted({tuple(output) for output in outputs}, key=len)
        known: dict[tuple[int, ...], torch.Tensor] = {}
        longest = len(prompt) + max((len(output) for output in distinct), default=0)
        size = max(1, _BATCH_TOKENS // longest)
        for start in range(0, len(distinct), size):
            batch = distinct[start : start + size]
            known |= zip(batch, self._forward(list(prompt), batch), strict=True)
        return [known[tuple(output)] for output in outputs]

    def _forward(self, prompt: list[int], outputs: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
        longest = max(len(output) for output in outputs)
        # Attention is causal: padding at the end cannot reach the positions that are read.
        padded = [[*prompt, *output, *[0] * (longest - len(output))] for output in outputs]
        input_ids = torch.tensor(padded, device=self._device)
        attention_mask = torch.ones_like(input_ids)
        logits = self._model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
        first = len(prompt) - 1
        return [row[first : first + len(output)].float() for row, output in zip(logits, outputs, strict=True)]
