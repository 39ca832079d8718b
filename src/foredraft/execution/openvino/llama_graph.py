"""The graph of a llama-like decoder: RMSNorm, rotary positions, grouped queries, SwiGLU."""

from __future__ import annotations

from typing import Any

import numpy as np

from foredraft.execution.openvino.api import ops
from foredraft.execution.openvino.architecture import DecoderArchitecture
from foredraft.execution.openvino.nodes import integers, linear, real, select_rows, split
from foredraft.execution.openvino.paged_attention import BatchInputs, paged_attention
from foredraft.execution.openvino.weights import WeightSource


class LlamaGraph:
    """Builds the nodes of llama, mistral, qwen2 and qwen3.

    Biases, and the norms on queries and keys, are there where the tensors are.
    """

    def __init__(
        self, architecture: DecoderArchitecture, weights: WeightSource, token_ids: Any, position_ids: Any
    ) -> None:
        self._architecture = architecture
        self._weights = weights
        self._embedding = weights.matrix(weights.tensor("model.embed_tokens.weight"))
        self._cosines, self._sines = self._rotations(position_ids)
        self.embedded = select_rows(self._embedding, token_ids)
        """Hidden states `[tokens, hidden]` before the first layer."""

    def layer(self, index: int, hidden: Any, caches: tuple[Any, Any], batch: BatchInputs) -> Any:
        """Hidden states after layer `index`."""
        prefix = f"model.layers.{index}."
        normed = self._norm(hidden, prefix + "input_layernorm.weight")
        hidden = ops.add(hidden, self._attention(index, normed, caches, batch))
        normed = self._norm(hidden, prefix + "post_attention_layernorm.weight")
        return ops.add(hidden, self._mlp(prefix + "mlp.", normed))

    def final_norm(self, hidden: Any) -> Any:
        """What the head is applied to."""
        return self._norm(hidden, "model.norm.weight")

    def head(self, normed: Any) -> Any:
        """Logits `[rows, vocab]`."""
        if self._architecture.tied_head:
            return ops.matmul(normed, self._embedding, False, True)
        return linear(self._weights, normed, ["lm_head"])

    def _attention(self, index: int, states: Any, caches: tuple[Any, Any], batch: BatchInputs) -> Any:
        architecture = self._architecture
        prefix = f"model.layers.{index}.self_attn."
        query_width = architecture.num_heads * architecture.head_size
        kv_width = architecture.num_kv_heads * architecture.head_size
        projected = linear(self._weights, states, [prefix + part for part in ("q_proj", "k_proj", "v_proj")])
        query, key, value = split(projected, [query_width, kv_width, kv_width])
        query = self._rotated(query, architecture.num_heads, prefix + "q_norm.weight")
        key = self._rotated(key, architecture.num_kv_heads, prefix + "k_norm.weight")
        attended = paged_attention(
            query, key, value, caches, batch, architecture, architecture.windows[index]
        )
        return linear(self._weights, attended, [prefix + "o_proj"])

    def _mlp(self, prefix: str, states: Any) -> Any:
        gate = linear(self._weights, states, [prefix + "gate_proj"])
        up = linear(self._weights, states, [prefix + "up_proj"])
        return linear(self._weights, ops.multiply(ops.swish(gate), up), [prefix + "down_proj"])

    def _norm(self, states: Any, name: str) -> Any:
        """RMSNorm over the last axis, written in the form that the plugin fuses into one node."""
        mean = ops.reduce_mean(ops.power(states, real(2.0)), integers(-1), keep_dims=True)
        root = ops.sqrt(ops.add(mean, real(self._architecture.norm_epsilon)))
        return ops.multiply(self._weights.vector(name), ops.multiply(states, ops.divide(real(1.0), root)))

    def _rotations(self, position_ids: Any) -> tuple[Any, Any]:
        """Cosines and sines `[tokens, 1, head size]`; the sines of the first half are negated."""
        frequencies = np.array(self._architecture.inverse_frequencies, np.float32)
        positions = ops.unsqueeze(ops.convert(position_ids, "f32"), integers(1))
        angles = ops.unsqueeze(ops.multiply(positions, ops.constant(frequencies[None])), integers(1))
        scale = real(self._architecture.rope_scale)
        cosines, sines = ops.multiply(ops.cos(angles), scale), ops.multiply(ops.sin(angles), scale)
        return ops.concat([cosines, cosines], 2), ops.concat([ops.negative(sines), sines], 2)

    def _rotated(self, states: Any, num_heads: int, norm_name: str) -> Any:
        """Rotate `[tokens, heads * head size]` by the positions, normed first where there is a norm."""
        size = self._architecture.head_size
        heads = ops.reshape(states, integers([0, num_heads, size]), True)
        if norm_name in self._weights:
            heads = self._norm(heads, norm_name)
        halves_swapped = ops.gather(
            heads, integers([*range(size // 2, size), *range(size // 2)]), integers(2)
        )
        rotated = ops.add(ops.multiply(heads, self._cosines), ops.multiply(halves_swapped, self._sines))
        return ops.reshape(rotated, integers([0, num_heads * size]), True)
