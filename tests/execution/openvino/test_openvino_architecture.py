"""What the OpenVINO runner reads from a configuration, and what it refuses."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from transformers import GPT2Config, LlamaConfig, MistralConfig, OPTConfig, Qwen2Config

from foredraft.errors import UnsupportedModelError

# Not "openvino": this folder answers to that name where the package is missing.
pytest.importorskip("openvino.opset13")
read_architecture: Any = importlib.import_module(
    "foredraft.execution.openvino.architecture"
).read_architecture


def test_other_families_are_refused_by_name() -> None:
    """If this failed, a model would be run by a graph that is not its own."""
    with pytest.raises(UnsupportedModelError, match="'opt'"):
        read_architecture(OPTConfig())


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (LlamaConfig(hidden_act="relu"), "relu"),
        (LlamaConfig(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "dynamic"),
        (GPT2Config(activation_function="relu"), "relu"),
        (GPT2Config(scale_attn_by_inverse_layer_idx=True), "scale"),
    ],
)
def test_unknown_parts_are_refused(config: LlamaConfig | GPT2Config, named: str) -> None:
    """If this failed, a model would silently give other logits than it was trained to."""
    with pytest.raises(UnsupportedModelError, match=named):
        read_architecture(config)


def test_windows_follow_the_layer_types() -> None:
    """If this failed, layers with full attention would be cut, or cut ones would see everything."""
    config = Qwen2Config(
        num_hidden_layers=4,
        use_sliding_window=True,
        sliding_window=16,
        layer_types=["full_attention", "sliding_attention"] * 2,
    )
    assert read_architecture(config).windows == (0, 16, 0, 16)
    assert read_architecture(Qwen2Config(num_hidden_layers=2, sliding_window=16)).windows == (0, 0)


def test_a_window_beyond_the_context_is_dropped() -> None:
    """If this failed, trees would be refused for windows that never cut anything."""
    config = MistralConfig(num_hidden_layers=2, sliding_window=4096)
    assert read_architecture(config, 4096).windows == (0, 0)
    assert read_architecture(config, 5000).windows == (4096, 4096)
