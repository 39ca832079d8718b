"""`build_model`: an OpenVINO model of one decoder in paged-attention form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foredraft.execution.openvino.api import ops, ov
from foredraft.execution.openvino.architecture import DecoderArchitecture
from foredraft.execution.openvino.gpt2_graph import Gpt2Graph
from foredraft.execution.openvino.llama_graph import LlamaGraph
from foredraft.execution.openvino.nodes import select_rows
from foredraft.execution.openvino.paged_attention import BatchInputs, cache_parameters, parameter
from foredraft.execution.openvino.weights import WeightSource


def build_model(
    architecture: DecoderArchitecture, weights: WeightSource, hidden_layers: Sequence[int]
) -> Any:
    """The graph from flat tokens to the logits of chosen tokens.

    Inputs: int32 `token_ids` and `position_ids` `[tokens]`, int32 `logit_rows` `[rows]` (indices into the
    tokens), those of `BatchInputs`, and a key and a value cache for each layer. Outputs: float32 logits
    `[rows, vocab]`, then hidden states `[rows, hidden]` for each of `hidden_layers`.
    """
    token_ids = parameter("token_ids", ov.Type.i32, [-1])
    position_ids = parameter("position_ids", ov.Type.i32, [-1])
    logit_rows = parameter("logit_rows", ov.Type.i32, [-1])
    batch = BatchInputs.create()
    caches = cache_parameters(architecture.num_layers)
    graph_class = Gpt2Graph if architecture.family == "gpt2" else LlamaGraph
    graph = graph_class(architecture, weights, token_ids, position_ids)
    states = [graph.embedded]
    for layer in range(architecture.num_layers):
        states.append(graph.layer(layer, states[-1], caches[layer], batch))
    # The head is wide, so it is given the rows that were asked for and no others.
    normed = graph.final_norm(select_rows(states[-1], logit_rows))
    chosen = [
        # As in transformers, the last layer's state is the normed one.
        normed if layer == architecture.num_layers else select_rows(states[layer], logit_rows)
        for layer in hidden_layers
    ]
    inputs = [token_ids, position_ids, logit_rows, *batch.parameters()]
    inputs += [cache for pair in caches for cache in pair]
    outputs = {"logits": graph.head(normed)}
    outputs |= {f"hidden.{layer}": node for layer, node in zip(hidden_layers, chosen, strict=True)}
    model = ov.Model(_results(outputs), inputs, architecture.family)
    _name_nodes(model)
    return model


def _results(outputs: dict[str, Any]) -> list[Any]:
    for name, node in outputs.items():
        node.output(0).get_tensor().set_names({name})
    return [ops.result(node) for node in outputs.values()]


def _name_nodes(model: Any) -> None:
    """Names are part of the hash by which compiled models are found; the default ones count from the start
    of the process, so they are replaced. Inputs have names already."""
    for index, node in enumerate(model.get_ordered_ops()):
        if node.get_type_name() != "Parameter":
            node.set_friendly_name(f"{node.get_type_name()}_{index}")
