"""`load_model` on folders and names: every family, every refusal, and what is left as it was."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import huggingface_hub.utils as hub
import pytest
import torch
import transformers
from gguf_writing import SIZES, tiny
from transformers import AutoConfig, GenerationConfig

from foredraft.errors import (
    ForedraftError,
    ModelError,
    ModelNotFoundError,
    ParameterError,
    UnsupportedModelError,
)
from foredraft.models.loader import context_length, load_config, load_model
from foredraft.models.resolve import resolve
from foredraft.models.support import unsupported_reason

SMALL = {**SIZES, "head_dim": 16, "sliding_window": 8, "pad_token_id": 0}
FAMILIES = {
    "gpt2": {"vocab_size": 300, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "llama": SIZES,
    "qwen2": SIZES,
    "qwen3": {**SIZES, "head_dim": 16},
    "mistral": SMALL,
    "phi": {**SIZES, "num_key_value_heads": 4, "pad_token_id": 0},
    "gemma2": SMALL,
    "gemma3_text": SMALL,
    "gpt_neox": SIZES,
}
IDS = torch.arange(20)[None] + 3


def save(folder: Path, family: str, **changes: object) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**FAMILIES[family], **changes})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_families_load_as_saved(tmp_path, family):
    """A decoder-only family would be refused, changed on the way, or left ready for training."""
    saved = save(tmp_path, family)
    loaded = load_model(tmp_path)
    assert loaded.attention == ("eager" if family == "gemma2" else "sdpa")
    saved.set_attn_implementation(loaded.attention)
    with torch.no_grad():
        assert torch.equal(loaded.model(IDS).logits, saved(IDS).logits)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert (loaded.device.type, loaded.dtype, loaded.tokenizer) == ("cpu", torch.float32, None)
    assert loaded.source == tmp_path


def test_explicit_dtype_and_attention(tmp_path):
    """An explicit choice would be overruled."""
    save(tmp_path, "llama")
    loaded = load_model(tmp_path, dtype="float16", attention="eager", device="cpu")
    assert loaded.model.dtype == loaded.dtype == torch.float16
    assert loaded.model.config._attn_implementation == loaded.attention == "eager"


@pytest.mark.parametrize(
    "choice",
    [
        {"dtype": "int8"},
        {"device": "gpu"},
        {"device": "cuda:99"},
        {"attention": "flash"},
        {"device": "meta:x"},
    ],
)
def test_unknown_choices_are_parameter_errors(tmp_path, choice):
    """A misspelt dtype, device or attention would end in a traceback or be replaced silently."""
    save(tmp_path, "llama")
    with pytest.raises(ParameterError, match=next(iter(choice))) as caught:
        load_model(tmp_path, **choice)
    assert "\n" not in str(caught.value)


def test_sdpa_is_refused_where_it_computes_something_else(tmp_path):
    """A model with soft-capped attention would run without its cap."""
    save(tmp_path, "gemma2")
    with pytest.raises(ParameterError, match="use eager"):
        load_model(tmp_path, attention="sdpa")


def test_ends_come_from_the_generation_config_and_it_stays(tmp_path):
    """A second end token would be ignored, or the model's generation settings be rewritten by loading."""
    model = save(tmp_path, "llama")
    model.generation_config = GenerationConfig(
        eos_token_id=[2, 5], bos_token_id=1, cache_implementation="static"
    )
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.eos_token_ids == (2, 5)
    assert loaded.model.generation_config.cache_implementation == "static"


def test_context_length_falls_back():
    """A model that states no length would crash, or one with LongRoPE change its past at its border."""
    assert context_length(AutoConfig.for_model("gpt2", n_positions=77)) == 77
    assert context_length(AutoConfig.for_model("bloom")) == 2048
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    rope |= {"original_max_position_embeddings": 32, "factor": 4.0}
    config = AutoConfig.for_model("llama", **{**SIZES, "rope_parameters": rope})
    assert context_length(config) == 32


REFUSED = [
    ("t5", {}, "encoder-decoder"),
    ("bart", {}, "encoder-decoder"),
    ("bert", {}, "encoder"),
    ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "does not predict the next token"),
    ("gemma3", {}, "several models"),
    ("mamba", {}, "rolled back"),
    ("rwkv", {}, "rolled back"),
    ("jamba", {}, "rolled back"),
    ("qwen3_next", {}, "rolled back"),
    ("falcon_h1", {}, "rolled back"),
    ("gpt_neo", {}, "local attention"),
    ("openai-gpt", {}, "no key-value cache"),
    ("vit", {}, "no causal language model"),
]


@pytest.mark.parametrize(("kind", "changes", "reason"), REFUSED)
def test_models_that_cannot_be_run_are_refused_by_their_config(tmp_path, kind, changes, reason):
    """A model whose text would be wrong under speculation would be run, or fail after loading its weights."""
    config = AutoConfig.for_model(kind, **changes)
    config.save_pretrained(tmp_path)
    assert reason in (unsupported_reason(load_config(tmp_path)) or "")
    with pytest.raises(UnsupportedModelError, match=reason) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


def write_config(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)


def no_config(folder: Path) -> None:
    (folder / "notes.txt").write_text("nothing here")


def only_gguf(folder: Path) -> None:
    (folder / "some.gguf").write_bytes(b"GGUF")


def broken_json(folder: Path) -> None:
    write_config(folder, '{"model_type": "llama",')


def json_list(folder: Path) -> None:
    write_config(folder, "[]")


def nonsense_values(folder: Path) -> None:
    write_config(folder, json.dumps({"model_type": "llama", "hidden_size": "many"}))


def unknown_type(folder: Path) -> None:
    write_config(folder, '{"model_type": "nobody_knows"}')


def own_code(folder: Path) -> None:
    write_config(
        folder, '{"model_type": "mine", "auto_map": {"AutoConfig": "c.C", "AutoModelForCausalLM": "m.M"}}'
    )
    (folder / "c.py").write_text("raise SystemExit('ran')")


def adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "x"}')


def pickled(folder: Path) -> None:
    model = tiny("llama")
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")


def no_weights(folder: Path) -> None:
    tiny("llama").config.save_pretrained(folder)


def truncated(folder: Path) -> None:
    save(folder, "llama")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-50])


def junk_weights(folder: Path) -> None:
    save(folder, "llama")
    (folder / "model.safetensors").write_bytes(b"\xff" * 300)


def other_shape(folder: Path) -> None:
    save(folder, "llama")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_size": 32}))


def missing_layer(folder: Path) -> None:
    save(folder, "llama")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 3}))


def broken_tokenizer(folder: Path) -> None:
    save(folder, "llama")
    (folder / "tokenizer.json").write_text("{")


BROKEN = [
    (no_config, ModelError, "config.json"),
    (only_gguf, ModelError, r"some\.gguf"),
    (broken_json, ModelError, r"config\.json"),
    (json_list, ModelError, "JSON object"),
    (nonsense_values, ModelError, r"config\.json"),
    (unknown_type, UnsupportedModelError, "nobody_knows"),
    (own_code, UnsupportedModelError, "trust_remote_code"),
    (adapter, UnsupportedModelError, "merge"),
    (pickled, UnsupportedModelError, "can run code when read"),
    (no_weights, ModelError, "no weights"),
    (truncated, ModelError, r"model\.safetensors"),
    (junk_weights, ModelError, r"model\.safetensors"),
    (other_shape, ModelError, "another shape"),
    (missing_layer, ModelError, "lacks"),
    (broken_tokenizer, ModelError, "tokenizer"),
]


@pytest.mark.parametrize(
    ("damage", "kind", "says"), BROKEN, ids=lambda value: getattr(value, "__name__", None)
)
def test_broken_folders_are_one_line(tmp_path, damage, kind, says):
    """A folder that cannot be used would end in a traceback, run code, or load with random weights."""
    damage(tmp_path)
    with pytest.raises(kind, match=says) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["./nothing", "/no/such/folder", "nothing.gguf", "a/b/c", "", "  ", "a\0b"])
def test_paths_that_do_not_exist_are_named(name):
    """A misspelt path would be looked up on the hub, or end in a traceback."""
    with pytest.raises(ModelNotFoundError):
        resolve(name)


@pytest.mark.parametrize("name", ["nobody/nothing", "smolm2", "what is this?"])
def test_unknown_names_are_one_line(monkeypatch, tmp_path, name):
    """An unknown name would end in the hub's traceback, or not say which names are built in."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFoundError, match="smollm2") as caught:
        load_model(name)
    assert "\n" not in str(caught.value)


def test_names_resolve_in_order(tmp_path, monkeypatch, write_gguf):
    """A built-in name would be hidden by a folder of that name, or a local path be taken for a hub id."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path / "home"))
    (tmp_path / "smollm2").mkdir()
    assert resolve("smollm2").kind == "catalogue"
    assert resolve("./smollm2").kind == resolve(Path("smollm2")).kind == "folder"
    assert resolve(write_gguf("llama")).kind == "gguf"
    assert resolve("owner/name").kind == "hub"


def test_a_file_that_is_not_gguf_is_refused(tmp_path):
    """A lone safetensors file would end in a traceback."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\0" * 100)
    with pytest.raises(UnsupportedModelError, match=r"config\.json"):
        load_model(path)


def test_loading_is_silent_and_leaves_no_trace(tmp_path, capfd):
    """Loading would print progress bars and warnings, or leave the caller's logging changed."""
    save(tmp_path, "llama")
    capfd.readouterr()
    logging.getLogger("transformers").setLevel(logging.INFO)
    before = (transformers.logging.is_progress_bar_enabled(), hub.are_progress_bars_disabled())
    load_model(tmp_path)
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("transformers").level == logging.INFO
    assert (transformers.logging.is_progress_bar_enabled(), hub.are_progress_bars_disabled()) == before


def test_trusted_code_runs(tmp_path):
    """A model with its own code could not be used although the user trusts it, or its text be wrong."""
    save(tmp_path, "llama")
    source = (
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class MineConfig(LlamaConfig):\n    model_type = 'mine'\n"
        "class MineForCausalLM(LlamaForCausalLM):\n    config_class = MineConfig\n"
    )
    (tmp_path / "mine.py").write_text(source)
    path = tmp_path / "config.json"
    raw = json.loads(path.read_text()) | {"model_type": "mine", "architectures": ["MineForCausalLM"]}
    raw["auto_map"] = {"AutoConfig": "mine.MineConfig", "AutoModelForCausalLM": "mine.MineForCausalLM"}
    path.write_text(json.dumps(raw))
    with pytest.raises(ForedraftError, match="trust_remote_code"):
        load_model(tmp_path)
    assert type(load_model(tmp_path, trust_remote_code=True).model).__name__ == "MineForCausalLM"
