"""Tiny tokenizers of every kind that matters, built on the spot: no hub, no files."""

from __future__ import annotations

import json

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import ByT5Tokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

CORPUS = [
    "Hello world, hello there. The quick brown fox doesn't jump over the lazy dog.",
    "naïve café déjà vu — el niño, Straße, 1, 2, 3, 4, 5, 6\n\n    indented code",
    "🙂🙂 👩‍👩‍👧 👨‍👩‍👧‍👦 é 漢字 汉语 日本語 한국어",
]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level(bos: bool = True, vocab_size: int = 400) -> PreTrainedTokenizerFast:
    """GPT-2's kind: every byte has a token, emoji and Chinese fall into several; ChatML template."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<|bos|> $A", special_tokens=[("<|bos|>", 0)]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|bos|>" if bos else None, eos_token="<|eos|>"
    )
    # One plain, one with characters outside the byte alphabet, one spelled like a byte token.
    tokenizer.add_tokens(
        [
            AddedToken("<tool>", special=False),
            AddedToken("▁漢 ", special=False),
            AddedToken("<0x41>", special=False),
        ]
    )
    tokenizer.chat_template = CHATML
    return tokenizer


def _sentencepiece_backend() -> Tokenizer:
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=["<unk>", "<s>", "</s>", *bytes_],
        limit_alphabet=50,
        show_progress=False,
    )
    backend.train_from_iterator([CORPUS[0], "a  b   c � ▁ d"], trainer)
    # The trainer flags all of these as special; byte tokens are ordinary ones in real vocabularies.
    model = json.loads(backend.to_str())["model"]
    vocabulary = {**model["vocab"], "": len(model["vocab"]), "�": len(model["vocab"]) + 1}
    merges = [tuple(pair) for pair in model["merges"]]
    rebuilt = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    rebuilt.normalizer = backend.normalizer
    rebuilt.add_special_tokens(["<unk>", "<s>", "</s>"])
    return rebuilt


def sentencepiece(strip: bool = True) -> PreTrainedTokenizerFast:
    """Llama 2's kind (without `strip`: Gemma's): spaces are ▁, unknown characters are byte tokens."""
    backend = _sentencepiece_backend()
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def metaspace() -> PreTrainedTokenizerFast:
    """T5's kind: the decoder drops every ▁ of the first token."""
    backend = _sentencepiece_backend()
    backend.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")


def word_piece() -> PreTrainedTokenizerFast:
    """BERT's kind: words are joined by spaces, ## continues one, and the decoder tidies punctuation."""
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=True)
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=["[UNK]", "[PAD]", "[EOS]"], show_progress=False
    )
    backend.train_from_iterator([*CORPUS, "do not , . ! ? n't 's 've"], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]", eos_token="[EOS]"
    )


def word_level() -> PreTrainedTokenizerFast:
    """No decoder at all: tokens are joined by spaces."""
    vocabulary = {"[UNK]": 0, "[EOS]": 1, "a": 2, "b": 3, "": 4, "c d": 5, "�": 6}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", eos_token="[EOS]")


def suffix_bpe() -> PreTrainedTokenizerFast:
    """The first GPT's kind: </w> ends a word, and the decoder drops it from the last token."""
    vocabulary = {"a": 0, "b</w>": 1, "ab</w>": 2, "c": 3, "</w>": 4}
    backend = Tokenizer(models.BPE(vocabulary, [("a", "b</w>")], end_of_word_suffix="</w>"))
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def slow_bytes() -> PreTrainedTokenizerBase:
    """A tokenizer in pure Python (ByT5), which leaves undecodable bytes out."""
    return ByT5Tokenizer(extra_ids=3)


KINDS = {
    "byte_level": byte_level,
    "sentencepiece": sentencepiece,
    "sentencepiece_unstripped": lambda: sentencepiece(strip=False),
    "metaspace": metaspace,
    "word_piece": word_piece,
    "word_level": word_level,
    "suffix_bpe": suffix_bpe,
    "slow_bytes": slow_bytes,
}
