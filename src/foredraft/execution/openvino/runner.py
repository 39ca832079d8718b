"""`OpenVinoRunner`: llama-like models and GPT-2 on the CPU, through OpenVINO's paged attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from foredraft.errors import ExecutionError
from foredraft.execution.openvino.api import ov
from foredraft.execution.openvino.architecture import read_architecture
from foredraft.execution.openvino.block_pool import BlockPool, CacheLayout
from foredraft.execution.openvino.compilation import (
    CachePrecision,
    Precision,
    compile_model,
    weight_precision,
)
from foredraft.execution.openvino.flat_batch import FlatBatch
from foredraft.execution.openvino.model import build_model
from foredraft.execution.openvino.weights import WeightSource
from foredraft.execution.runner import RowInput, StepOutput


class OpenVinoRunner:
    """Runs one decoder compiled by OpenVINO; rows are lists of blocks of a shared cache.

    Args:
        config: the model's `transformers` configuration; the families are `architecture.FAMILIES`.
        tensors: weights by their Hugging Face names, as NumPy arrays or CPU tensors. They are read once,
            one after another, and not kept.
        precision: of the weight matrices. "auto" keeps the type that the model came in; "int8" is
            symmetric with one scale for each output channel. Products are float32, but bfloat16 for "bf16"
            on a CPU that multiplies it.
        cache_precision: of keys and values. "u8" is not exact: a key is rounded in a scale that it shares
            with its block, so a rejected token can change its neighbours; trees are then off.
        context_length: tokens that a row may hold; None takes the model's own limit.
        hidden_layers: layers whose hidden states each step returns (0 is the embedding output).
        num_threads: None leaves it to OpenVINO.
        compiled_folder: where compiled models are kept between processes.

    Raises:
        UnsupportedModelError: if the configuration asks for something the graphs lack.
        ExecutionError: if OpenVINO cannot compile the graph.
    """

    def __init__(
        self,
        config: Any,
        tensors: Mapping[str, np.ndarray | torch.Tensor],
        *,
        precision: Precision = "auto",
        cache_precision: CachePrecision = "auto",
        context_length: int | None = None,
        hidden_layers: Sequence[int] = (),
        num_threads: int | None = None,
        compiled_folder: Path | None = None,
    ) -> None:
        self._architecture = read_architecture(config, context_length)
        self._hidden_layers = tuple(hidden_layers)
        chosen = weight_precision(precision, getattr(config, "dtype", None))
        compiled = compile_model(
            build_model(self._architecture, WeightSource(tensors, chosen), self._hidden_layers),
            precision=chosen,
            cache_precision=cache_precision,
            num_threads=num_threads,
            compiled_folder=compiled_folder,
        )
        self._pool = BlockPool(_cache_layouts(compiled))
        self._request = compiled.create_infer_request()
        self.precision = chosen
        """Precision of the weights that "auto" came to."""
        self.vocab_size = self._architecture.vocab_size
        self.context_length = self._architecture.context_length
        self.device = torch.device("cpu")
        # A window counts slots of the cache, and the nodes of a tree lie in slots beyond their depth.
        self.supports_tree = self._pool.is_exact and not any(self._architecture.windows)

    @classmethod
    def from_model(cls, model: PreTrainedModel, **options: Any) -> OpenVinoRunner:
        """A runner with the weights of a model in memory; `options` as of the constructor."""
        precision = weight_precision(options.pop("precision", "auto"), model.dtype)
        return cls(model.config, model.state_dict(), precision=precision, **options)

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of keys and values for one token of one row."""
        return self._pool.bytes_per_token

    def reserve(self, num_rows: int, num_tokens: int) -> None:
        """Grow the cache; see `ModelRunner.reserve`."""
        if self._pool.reserve(num_rows, num_tokens):
            for name, tensor in self._pool.tensors().items():
                self._request.set_tensor(name, tensor)

    def length(self, row: int) -> int:
        """Tokens whose keys and values the row holds."""
        return self._pool.length(row)

    def truncate(self, row: int, length: int) -> None:
        """Forget the row's tokens from `length` on."""
        if not 0 <= length <= self._pool.length(row):
            raise ValueError(f"row {row} holds {self._pool.length(row)} tokens, cannot truncate to {length}")
        self._pool.set_length(row, length)

    def keep(self, row: int, start: int, kept: Sequence[int]) -> None:
        """Keep one root path of a tree step; see `ModelRunner.keep`."""
        self._pool.move_together(row, start, kept)
        self._pool.set_length(row, start + len(kept))

    def copy(self, source: int, destination: int, length: int) -> None:
        """Make `destination` hold the first `length` tokens of `source`."""
        self._pool.copy(source, destination, length)
        self._pool.set_length(destination, length)

    def step(self, inputs: Sequence[RowInput]) -> StepOutput:
        """One forward; see `ModelRunner.step`."""
        if not self.supports_tree and any(row_input.parents is not None for row_input in inputs):
            raise ExecutionError("this runner takes chains only (supports_tree is False), and a tree was fed")
        for row_input in inputs:
            self._pool.extend(row_input.row, self._pool.length(row_input.row) + len(row_input.tokens))
        for name, array in FlatBatch(inputs, self._pool).arrays().items():
            self._request.set_tensor(name, ov.Tensor(array))
        try:
            self._request.infer()
        except RuntimeError as error:
            raise ExecutionError(
                f"the model's forward failed in OpenVINO: {str(error).strip()[:300]!r}"
            ) from error
        for row_input in inputs:
            row = row_input.row
            self._pool.set_length(row, self._pool.length(row) + len(row_input.tokens))
        return StepOutput(
            self._output(0),
            {layer: self._output(1 + index) for index, layer in enumerate(self._hidden_layers)},
        )

    def _output(self, index: int) -> torch.Tensor:
        # The request writes its next results to the same memory.
        return torch.from_numpy(self._request.get_output_tensor(index).data.copy())


def _cache_layouts(compiled: Any) -> list[CacheLayout]:
    layouts: list[CacheLayout] = []
    for port in compiled.inputs:
        name = port.get_any_name()
        if name.startswith(("key_cache.", "value_cache.")):
            shape = tuple(dimension.get_length() for dimension in list(port.get_partial_shape())[1:])
            layouts.append(CacheLayout(name, shape, port.get_element_type()))
    return layouts
