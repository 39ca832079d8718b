"""GGUF files: every family against the model it was written from, tokenizers, and broken files."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf_writing import SIZES, tiny
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM

from foredraft.errors import ForedraftError, ModelError, UnsupportedModelError
from foredraft.models.gguf_file import read_gguf
from foredraft.models.gguf_tokenizer import load_gguf_tokenizer
from foredraft.models.loader import load_config, load_model

Kind = gguf.GGMLQuantizationType
IDS = torch.arange(40).remainder(290)[None] + 3


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt2"])
def test_f32_files_give_the_exported_model(write_gguf, family):
    """A family's tensors would be misnamed, misordered or transposed, and its text be nonsense."""
    model = tiny(family)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms at their defaults would hide mistakes
            parameter.add_(torch.randn_like(parameter) * 0.05)
    loaded = load_model(write_gguf(family, model))
    assert torch.equal(logits(loaded.model), logits(model))
    assert loaded.eos_token_ids == ()
    assert loaded.context_length == 128
    assert loaded.tokenizer is None


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_1, Kind.F16, Kind.BF16])
def test_quantised_files_are_dequantised_exactly(write_gguf, kind):
    """Quantised weights would be rounded again or scaled wrongly on the way to float32."""
    model = tiny("qwen2")
    path = write_gguf("qwen2", model, kind)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            packed = gguf.quants.quantize(parameter.detach().numpy(), kind)
            parameter.data = torch.from_numpy(np.array(gguf.quants.dequantize(packed, kind)))
    assert torch.equal(logits(load_model(path).model), logits(model))


def test_dtype_is_applied_after_dequantisation(write_gguf):
    """An explicit dtype would be ignored for GGUF files."""
    loaded = load_model(write_gguf("llama", kind=Kind.Q8_0), dtype="bfloat16")
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}
    assert loaded.dtype == torch.bfloat16


def test_rotary_divisors_act_as_llama3_scaling(write_gguf):
    """Llama 3 files would be run with unscaled rotary frequencies, wrong beyond their first tokens."""
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, rope_parameters=rope, **SIZES)).eval()
    plain = 1.0 / 10000.0 ** (np.arange(0, 16, 2, dtype=np.float32) / 16)
    divisors = (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    assert divisors.max() > 2
    path = write_gguf("llama", model, extra=lambda writer: writer.add_tensor("rope_freqs.weight", divisors))
    loaded = load_model(path)
    assert torch.allclose(loaded.model.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq, rtol=1e-6)
    assert torch.allclose(logits(loaded.model), logits(model), atol=1e-5)
    assert loaded.context_length == 128


def test_config_needs_no_weights(write_gguf):
    """`foredraft info` would load a model's weights to show its sizes."""
    config = load_config(write_gguf("qwen3"))
    assert (config.model_type, config.num_hidden_layers, config.head_dim) == ("qwen3", 2, 32)


def test_end_of_turn_also_ends_the_text(write_gguf):
    """Chat models with an end-of-turn token of its own would run on past their answer."""

    def ends(writer: gguf.GGUFWriter) -> None:
        writer.add_eos_token_id(2)
        writer.add_eot_token_id(7)

    assert load_model(write_gguf("llama", extra=ends)).eos_token_ids == (2, 7)


def test_unknown_settings_are_refused(write_gguf):
    """A file whose mathematics differs from the plain family would be run as if it did not."""
    path = write_gguf("llama", extra=lambda writer: writer.add_expert_count(4))
    with pytest.raises(UnsupportedModelError, match="expert_count"):
        load_model(path)


def test_tensors_without_a_place_are_refused(write_gguf):
    """A tensor that the architecture does not know would be dropped silently."""
    extra = np.zeros(4, dtype=np.float32)
    path = write_gguf("llama", extra=lambda writer: writer.add_tensor("blk.0.attn_sinks.weight", extra))
    with pytest.raises(UnsupportedModelError, match="attn_sinks"):
        load_model(path)


def test_missing_tensors_are_refused(write_gguf):
    """A file with a layer missing would be filled up with random weights."""
    path = write_gguf("llama", tiny("llama", num_hidden_layers=1))
    with pytest.raises(ModelError, match="lacks tensors"):
        load_model(path)


def test_other_architectures_are_named(tmp_path):
    """An architecture that is not handled would end in a traceback."""
    path = tmp_path / "mamba.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match="'mamba'"):
        load_config(path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_are_one_line(write_gguf, tmp_path, data):
    """A file cut short or with flipped bytes in its header would end in a traceback or exhaust the memory."""
    whole = Path(write_gguf("llama")).read_bytes()
    damaged = bytearray(whole[: data.draw(st.integers(4, len(whole) - 1))])
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, min(600, len(damaged) - 1)))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged)
    with pytest.raises(ForedraftError) as caught:
        config = load_config(path)
        raise ModelError(f"read as {config.model_type}")  # the damage is in what is read later
    assert "\n" not in str(caught.value)


def test_a_file_cut_short_is_named_so(write_gguf):
    """A download that stopped early would load as a model with garbage at its end."""
    path = write_gguf("llama")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match="cut short"):
        load_model(path)


@pytest.mark.parametrize(
    "content", [b"", b"GGU", b"\x00\xff" * 500, b"GGUF", b"GGUF" + struct.pack("<I", 99)]
)
def test_junk_named_gguf_is_one_line(tmp_path, content):
    """Binary junk or an empty file would end in a traceback."""
    path = tmp_path / "junk.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)


CORPUS = [
    "the cat sat on the mat, 12 34 567 times;",
    "naïve café 🙂 日本語",
    "def f(x):\n    return x  # 1",
] * 20


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    """A byte-level tokenizer with SmolLM's pre-tokenizer, as the original's tokenizer.json spells it."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|end|>", "<|turn|>"],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def vocabulary(trained: Tokenizer, pre: str = "smollm", **flags: object):
    """What writes `trained` into a GGUF file."""
    model = json.loads(trained.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
        writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(0)
        writer.add_chat_template("{{ messages[0]['content'] }}")
        if "add_bos" in flags:
            writer.add_add_bos_token(bool(flags["add_bos"]))

    return extra


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text() | st.text(alphabet="ab \n\t12'st.🙂日", max_size=40))
def test_byte_level_tokens_are_the_originals(gguf_tokenizer, trained, text):
    """A text would be cut into other tokens than the model was trained on."""
    assert gguf_tokenizer(text).input_ids == trained.encode(text).ids
    assert gguf_tokenizer.decode(trained.encode(text).ids) == text


@pytest.fixture
def gguf_tokenizer(write_gguf, trained):
    return load_gguf_tokenizer(read_gguf(write_gguf("llama", extra=vocabulary(trained))))


def test_special_tokens_are_whole_and_can_be_left_out(gguf_tokenizer):
    """Control tokens would be spelled out in pieces, or appear in the text shown."""
    ids = gguf_tokenizer("the<|end|>cat").input_ids
    assert ids.count(0) == 1
    assert gguf_tokenizer.decode(ids, skip_special_tokens=True) == "thecat"
    assert gguf_tokenizer.eos_token_id == 0
    assert gguf_tokenizer.bos_token_id == 1
    messages = [{"role": "user", "content": "hello"}]
    assert gguf_tokenizer.apply_chat_template(messages, tokenize=False) == "hello"


@pytest.mark.parametrize(("pre", "flag", "starts"), [("smollm", None, False), ("llama-bpe", None, True)])
def test_begin_token_follows_the_pre_tokenizer(write_gguf, trained, pre, flag, starts):
    """A model would be prompted without the begin token it was trained with, or with one it never saw."""
    path = write_gguf("llama", extra=vocabulary(trained, pre))
    assert (load_gguf_tokenizer(read_gguf(path))("cat").input_ids[0] == 1) is starts


def test_begin_token_flag_wins(write_gguf, trained):
    """The file's own word on the begin token would be ignored."""
    path = write_gguf("llama", extra=vocabulary(trained, "llama-bpe", add_bos=False))
    assert load_gguf_tokenizer(read_gguf(path))("cat").input_ids[0] != 1


def test_digits_follow_the_pre_tokenizer(write_gguf, trained):
    """Numbers would be cut in threes for a model that takes digits one by one, or the other way round."""
    pieces = {}
    for pre in ("smollm", "qwen2", "llama-bpe", "gpt-2", "default", "tekken"):
        backend = load_gguf_tokenizer(
            read_gguf(write_gguf("llama", extra=vocabulary(trained, pre), name=f"{pre}.gguf"))
        ).backend_tokenizer
        pieces[pre] = [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str("a 12345")]
    assert pieces["smollm"] == ["a", "Ġ", "1", "2", "3", "4", "5"]
    assert pieces["qwen2"] == pieces["tekken"] == ["a", "Ġ", "1", "2", "3", "4", "5"]
    assert pieces["llama-bpe"] == ["a", "Ġ", "123", "45"]
    assert pieces["gpt-2"] == ["a", "Ġ12345"]
    assert pieces["default"] == ["a", "Ġ", "123", "45"]


def test_unknown_pre_tokenizers_are_named(write_gguf, trained):
    """A pre-tokenizer that is not known would be replaced by another silently."""
    path = write_gguf("llama", extra=vocabulary(trained, "nobody-knows"))
    with pytest.raises(UnsupportedModelError, match="nobody-knows"):
        load_model(path)


def test_unknown_tokenizer_kinds_are_named(write_gguf):
    """A tokenizer of another kind would end in a traceback."""
    path = write_gguf("llama", extra=lambda writer: writer.add_tokenizer_model("rwkv"))
    with pytest.raises(UnsupportedModelError, match="'rwkv'"):
        load_model(path)


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes(write_gguf):
    """SentencePiece vocabularies would be merged in the wrong order, or lose characters they do not hold."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["▁", "a", "b", "c", "▁a", "ab", "bc", "abc"]
    scores = [0.0] * 259 + [-9.0, -9.0, -9.0, -9.0, -4.0, -3.0, -2.0, -1.0]
    types = [2, 3, 3] + [6] * 256 + [1] * 8

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores(scores)
        writer.add_token_types(types)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)

    tokenizer = load_gguf_tokenizer(read_gguf(write_gguf("llama", extra=extra)))
    assert tokenizer.tokenize("abc") == ["▁", "abc"]
    assert tokenizer.tokenize("ab c") == ["▁", "ab", "▁", "c"]
    ids = tokenizer("é").input_ids
    assert ids == [1, tokens.index("▁"), tokens.index("<0xC3>"), tokens.index("<0xA9>")]
    assert tokenizer.decode(tokenizer("abc é b").input_ids, skip_special_tokens=True) == "abc é b"


@pytest.mark.slow
@pytest.mark.model
def test_the_built_in_model_answers():
    """The built-in model would be fetched or read wrongly, and babble."""
    loaded = load_model("smollm2")
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = loaded.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    inputs = loaded.tokenizer(prompt, return_tensors="pt")
    ids = loaded.model.generate(**inputs, max_new_tokens=20, do_sample=False)[0]
    assert "Paris" in loaded.tokenizer.decode(ids[inputs.input_ids.shape[1] :])
