"""`ReferenceRunner`: any Hugging Face causal language model with attention layers."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from foredraft.errors import ExecutionError
from foredraft.execution.cache import RowCache, StepSlots
from foredraft.execution.masks import additive, depths, visible_slots
from foredraft.execution.runner import RowInput, StepOutput

logger = logging.getLogger(__name__)


class ReferenceRunner:
    """Runs the model's own forward over a `RowCache`, rows padded to the longest input of the step.

    Args:
        model: a causal language model in evaluation mode.
        context_length: tokens that a row may hold.
        hidden_layers: layers whose hidden states each step returns (0 is the embedding output).
    """

    supports_tree = True

    def __init__(
        self, model: PreTrainedModel, *, context_length: int, hidden_layers: Sequence[int] = ()
    ) -> None:
        self._model = model
        self._config: Any = model.config.get_text_config()
        self._hidden_layers = tuple(hidden_layers)
        self._cache = RowCache()
        self._unusable_rows: set[int] = set()
        parameters = inspect.signature(model.forward).parameters
        # The argument was renamed during the transformers 5 series.
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._selects_logits = "logits_to_keep" in parameters
        self.context_length = context_length
        self.device = model.device
        head: Any = model.get_output_embeddings()
        self.vocab_size = int(head.weight.shape[0])

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of keys and values for one token of one row."""
        measured = self._cache.bytes_per_token
        if measured is not None:
            return measured
        config = self._config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return 2 * config.num_hidden_layers * heads * head_size * self._model.dtype.itemsize

    @torch.inference_mode()
    def reserve(self, num_rows: int, num_tokens: int) -> None:
        """Grow the cache; see `ModelRunner.reserve`."""
        self._cache.reserve(num_rows, num_tokens)

    def length(self, row: int) -> int:
        """Tokens whose keys and values the row holds."""
        return self._cache.length(row)

    def truncate(self, row: int, length: int) -> None:
        """Forget the row's tokens from `length` on."""
        if not 0 <= length <= self._cache.length(row):
            raise ValueError(f"row {row} holds {self._cache.length(row)} tokens, cannot truncate to {length}")
        self._cache.set_length(row, length)
        if not length and row in self._unusable_rows:
            # A masked slot weighs nothing, but nothing times NaN is NaN: it would reach the next sequence.
            self._cache.clear_row(row)
            self._unusable_rows.discard(row)

    @torch.inference_mode()
    def keep(self, row: int, start: int, kept: Sequence[int]) -> None:
        """Keep one root path of a tree step; see `ModelRunner.keep`."""
        self._cache.move_together(row, start, kept)
        self._cache.set_length(row, start + len(kept))

    @torch.inference_mode()
    def copy(self, source: int, destination: int, length: int) -> None:
        """Make `destination` hold the first `length` tokens of `source`."""
        self._cache.copy_row(source, destination, length)
        self._cache.set_length(destination, length)

    @torch.inference_mode()
    def step(self, inputs: Sequence[RowInput]) -> StepOutput:
        """One forward; see `ModelRunner.step`."""
        tokens, positions, lengths = self._padded(inputs)
        width = int(lengths.max()) + tokens.shape[1]
        self._cache.reserve(self._cache.num_rows, width)
        slots = lengths[:, None] + torch.arange(tokens.shape[1])
        rows = torch.tensor([row_input.row for row_input in inputs])
        self._cache.begin(StepSlots(rows, slots, width))
        arguments: dict[str, Any] = {
            "input_ids": tokens.to(self.device),
            "position_ids": positions.to(self.device),
            "attention_mask": self._masks(inputs, lengths, positions, width),
            self._cache_argument: self._cache,
            "use_cache": True,
        }
        if self._hidden_layers:
            arguments["output_hidden_states"] = True
        kept = _kept_columns(inputs)
        if self._selects_logits:
            arguments["logits_to_keep"] = torch.tensor(kept or [0], device=self.device)
        try:
            output = self._model(**arguments)
        except Exception as error:
            reason = (str(error).strip() or "no message").splitlines()[0]
            raise ExecutionError(f"the model's forward failed: {type(error).__name__}: {reason}") from error
        for row_input in inputs:
            row = row_input.row
            self._cache.set_length(row, self._cache.length(row) + len(row_input.tokens))
        return self._output(inputs, output, kept)

    def _padded(self, inputs: Sequence[RowInput]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens and positions `[batch, tokens]`, padded at the end, and cached lengths `[batch]`."""
        longest = max(len(row_input.tokens) for row_input in inputs)
        tokens = torch.zeros(len(inputs), longest, dtype=torch.int64)
        lengths = torch.tensor([self._cache.length(row_input.row) for row_input in inputs])
        positions = lengths[:, None] + torch.arange(longest)
        for index, row_input in enumerate(inputs):
            fed = len(row_input.tokens)
            tokens[index, :fed] = torch.tensor(row_input.tokens)
            if row_input.parents is not None:
                positions[index, :fed] = lengths[index] + torch.tensor(depths(row_input))
        # Padding behind a nearly full row would leave a learned position table.
        return tokens, positions.clamp_(max=self.context_length - 1), lengths

    def _masks(
        self, inputs: Sequence[RowInput], lengths: torch.Tensor, positions: torch.Tensor, width: int
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """A ready 4-D mask, or one for each kind of layer where a model mixes kinds."""
        window = getattr(self._config, "sliding_window", None)
        chunk = getattr(self._config, "attention_chunk_size", None)
        kinds = sorted(set(getattr(self._config, "layer_types", None) or ()))
        if not kinds:
            kinds = ["sliding_attention" if window else "full_attention"]
        masks: dict[str, torch.Tensor] = {}
        for kind in kinds:
            visible = visible_slots(
                inputs,
                lengths,
                positions,
                width,
                window=window if kind == "sliding_attention" else None,
                chunk=chunk if kind == "chunked_attention" else None,
            )
            masks[kind] = additive(visible, self._model.dtype).to(self.device)
        return masks if len(masks) > 1 else masks[kinds[0]]

    def _output(self, inputs: Sequence[RowInput], output: Any, kept: list[int]) -> StepOutput:
        column = {token: index for index, token in enumerate(kept)}
        batch_index: list[int] = []
        token_index: list[int] = []
        for index, row_input in enumerate(inputs):
            fed = len(row_input.tokens)
            batch_index += [index] * row_input.num_logits
            token_index += range(fed - row_input.num_logits, fed)
        columns = [column[token] for token in token_index] if self._selects_logits else token_index
        logits = output.logits[batch_index, columns].float()
        hidden = {
            layer: output.hidden_states[layer][batch_index, token_index] for layer in self._hidden_layers
        }
        # One NaN or infinity in a hidden state reaches every logit, so one column tells.
        for index in (~logits[:, 0].isfinite()).nonzero().flatten().tolist():
            self._unusable_rows.add(inputs[batch_index[index]].row)
        return StepOutput(logits, hidden)


def _kept_columns(inputs: Sequence[RowInput]) -> list[int]:
    """Ascending token columns for which some row wants logits."""
    columns: set[int] = set()
    for row_input in inputs:
        fed = len(row_input.tokens)
        columns.update(range(fed - row_input.num_logits, fed))
    return sorted(columns)
