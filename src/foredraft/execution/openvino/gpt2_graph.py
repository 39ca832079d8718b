"""The graph of GPT-2: LayerNorm, learned positions, one head a key, GELU."""

from __future__ import annotations

from typing import Any

from foredraft.execution.openvino.api import ops
from foredraft.execution.openvino.architecture import DecoderArchitecture
from foredraft.execution.openvino.nodes import integers, linear, select_rows, split
from foredraft.execution.openvino.paged_attention import BatchInputs, paged_attention
from foredraft.execution.openvino.weights import WeightSource


class Gpt2Graph:
    """Builds the nodes of GPT-2; the same steps as `LlamaGraph`."""

    def __init__(
        self, architecture: DecoderArchitecture, weights: WeightSource, token_ids: Any, position_ids: Any
    ) -> None:
        self._architecture = architecture
        self._weights = weights
        self._embedding = weights.matrix(weights.tensor("transformer.wte.weight"))
        positions = weights.matrix(weights.tensor("transformer.wpe.weight"))
        self.embedded = ops.add(select_rows(self._embedding, token_ids), select_rows(positions, position_ids))
        """Hidden states `[tokens, hidden]` before the first layer."""

    def layer(self, index: int, hidden: Any, caches: tuple[Any, Any], batch: BatchInputs) -> Any:
        """Hidden states after layer `index`."""
        prefix = f"transformer.h.{index}."
        normed = self._norm(hidden, prefix + "ln_1")
        hidden = ops.add(hidden, self._attention(prefix + "attn.", normed, caches, batch))
        normed = self._norm(hidden, prefix + "ln_2")
        return ops.add(hidden, self._mlp(prefix + "mlp.", normed))

    def final_norm(self, hidden: Any) -> Any:
        """What the head is applied to."""
        return self._norm(hidden, "transformer.ln_f")

    def head(self, normed: Any) -> Any:
        """Logits `[rows, vocab]`."""
        if self._architecture.tied_head:
            return ops.matmul(normed, self._embedding, False, True)
        return linear(self._weights, normed, ["lm_head"])

    def _attention(self, prefix: str, states: Any, caches: tuple[Any, Any], batch: BatchInputs) -> Any:
        projected = linear(self._weights, states, [prefix + "c_attn"], input_major=True)
        query, key, value = split(projected, [self._architecture.hidden_size] * 3)
        attended = paged_attention(query, key, value, caches, batch, self._architecture, window=0)
        return linear(self._weights, attended, [prefix + "c_proj"], input_major=True)

    def _mlp(self, prefix: str, states: Any) -> Any:
        widened = linear(self._weights, states, [prefix + "c_fc"], input_major=True)
        return linear(self._weights, ops.gelu(widened, "tanh"), [prefix + "c_proj"], input_major=True)

    def _norm(self, states: Any, name: str) -> Any:
        normed = ops.mvn(states, integers([-1]), True, self._architecture.norm_epsilon, "inside_sqrt")
        scaled = ops.multiply(normed, self._weights.vector(name + ".weight"))
        return ops.add(scaled, self._weights.vector(name + ".bias"))
