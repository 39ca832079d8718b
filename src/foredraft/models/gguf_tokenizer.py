"""Building a fast tokenizer from the vocabulary that a GGUF file carries.

A GGUF file names its pre-tokenizer (`tokenizer.ggml.pre`) but does not contain it; the splitting rules
below are those of the original tokenizers under llama.cpp's names for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from foredraft.errors import ModelError, UnsupportedModelError
from foredraft.models.gguf_file import GGUFFile
from foredraft.models.reporting import one_line

_CONTROL, _USER_DEFINED = 3, 4

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CASED_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CASED_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_QWEN2 = _CASED_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class _Splitting:
    """How text is cut before byte pairs are merged."""

    patterns: tuple[str, ...]
    """Applied one after the other, each to the pieces that the one before left."""
    ignore_merges: bool = False
    """A piece that is a token as a whole is taken as it is."""
    add_bos: bool = False
    """Where the file does not say."""
    normalize: bool = False
    """NFC first."""


_SPLITTINGS: dict[str, _Splitting] = {
    # What llama.cpp does for files that do not name a pre-tokenizer.
    "default": _Splitting((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt"), _Splitting((_GPT2,))),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell"), _Splitting((r"\p{N}", _GPT2))),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3"),
        _Splitting((_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _Splitting((_LLAMA3,))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _Splitting((_QWEN2,), normalize=True)),
    "tekken": _Splitting((_TEKKEN,), ignore_merges=True, add_bos=True),
}


def load_gguf_tokenizer(file: GGUFFile) -> Any | None:
    """The file's tokenizer as a transformers fast tokenizer; None for a file without a vocabulary.

    Raises:
        UnsupportedModelError: if its kind or its pre-tokenizer is not known.
        ModelError: if the vocabulary is broken.
    """
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind is None or kind == "no_vocab":
        return None
    build = _BUILDERS.get(kind)
    if build is None:
        raise UnsupportedModelError(
            f"{file.path}: tokenizers of kind {kind!r} are not supported in GGUF files "
            f"(supported: {', '.join(_BUILDERS)}); use the model's safetensors instead"
        )
    tokens = _strings(file, "tokenizer.ggml.tokens")
    try:
        backend, add_bos = build(file, tokens)
        _add_whole_tokens(backend, file, tokens)
        _add_ends(backend, file, tokens, add_bos)
    except UnsupportedModelError:
        raise
    except Exception as error:  # the tokenizers library raises bare Exceptions
        raise ModelError(f"{file.path}: the GGUF file's vocabulary is broken ({one_line(error)})") from error
    return _wrapped(backend, file, tokens)


def _strings(file: GGUFFile, key: str) -> list[str]:
    value = file.metadata.get(key)
    if not isinstance(value, list) or not value:
        raise ModelError(f"{file.path}: the GGUF file lacks the key {key!r}")
    return value


def _byte_level(file: GGUFFile, tokens: list[str]) -> tuple[Tokenizer, bool]:
    name = file.metadata.get("tokenizer.ggml.pre", "default")
    splitting = _SPLITTINGS.get(name)
    if splitting is None:
        raise UnsupportedModelError(
            f"{file.path}: pre-tokenizer {name!r} is not supported in GGUF files "
            f"(supported: {', '.join(_SPLITTINGS)}); use the model's safetensors instead"
        )
    merges = [_pair(merge) for merge in _strings(file, "tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(BPE(vocabulary, merges, ignore_merges=splitting.ignore_merges))
    if splitting.normalize:
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in splitting.patterns]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, last])
    backend.decoder = decoders.ByteLevel()
    return backend, splitting.add_bos


def _pair(merge: str) -> tuple[str, str]:
    # The parts of a merge may themselves begin with a space only in vocabularies that are not byte-level.
    left, _, right = merge.partition(" ")
    return left, right


def _sentencepiece(file: GGUFFile, tokens: list[str]) -> tuple[Tokenizer, bool]:
    scores: list[float] = file.metadata.get("tokenizer.ggml.scores") or [0.0] * len(tokens)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = file.metadata.get("tokenizer.ggml.unknown_token_id", 0)
    backend = Tokenizer(
        BPE(
            vocabulary,
            _merges_of_scores(vocabulary, scores),
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", "▁")
    has_prefix = file.metadata.get("tokenizer.ggml.add_space_prefix", True)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if has_prefix else spaces
    strip = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend, True


def _merges_of_scores(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """SentencePiece stores no merges: every split of a token into two tokens is one, best score first."""
    found: list[tuple[float, int, int, tuple[str, str]]] = []
    for token, index in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                found.append((-scores[index], vocabulary[left], vocabulary[right], (left, right)))
    return [merge for *_, merge in sorted(found)]


_BUILDERS: dict[str, Callable[[GGUFFile, list[str]], tuple[Tokenizer, bool]]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
}


def _add_whole_tokens(backend: Tokenizer, file: GGUFFile, tokens: list[str]) -> None:
    """Control tokens are special; user-defined ones are ordinary text, but matched whole."""
    kinds: list[int] = file.metadata.get("tokenizer.ggml.token_type") or []
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        chosen = [token for token, found in zip(tokens, kinds, strict=False) if found == kind and token]
        added = [AddedToken(token, special=special, normalized=False) for token in chosen]
        if special:
            backend.add_special_tokens(added)
        else:
            backend.add_tokens(added)


def _add_ends(backend: Tokenizer, file: GGUFFile, tokens: list[str], add_bos: bool) -> None:
    """Begin and end tokens around every text, where the file asks for them."""
    first = _id(file, "bos") if file.metadata.get("tokenizer.ggml.add_bos_token", add_bos) else None
    last = _id(file, "eos") if file.metadata.get("tokenizer.ggml.add_eos_token", False) else None
    used = {tokens[index]: index for index in (first, last) if index is not None}
    if used:
        before = [] if first is None else [tokens[first]]
        after = [] if last is None else [tokens[last]]
        backend.post_processor = TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *before, "$B:1", *after],
            special_tokens=list(used.items()),
        )


def _id(file: GGUFFile, name: str) -> int | None:
    return file.metadata.get(f"tokenizer.ggml.{name}_token_id")


def _wrapped(backend: Tokenizer, file: GGUFFile, tokens: list[str]) -> Any:
    ids = {name: _id(file, key) for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"))}
    ids["pad"] = _id(file, "padding")
    named = {f"{name}_token": tokens[index] for name, index in ids.items() if index is not None}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        model_max_length=file.metadata.get(f"{file.architecture}.context_length", int(1e30)),
        **named,
    )
    tokenizer.chat_template = file.metadata.get("tokenizer.chat_template")
    return tokenizer
