from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest
import tiny_tokenizers
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from foredraft.errors import PromptError
from foredraft.text import TextTokenizer

HELLO = [{"role": "user", "content": "Hello"}]


def words(vocabulary: list[str], added: list[str] | None = None) -> TextTokenizer:
    """A tokenizer of whole words: ids in the order of the list, then the added tokens."""
    ids = {word: token_id for token_id, word in enumerate(vocabulary)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(ids, unk_token=vocabulary[0]))
    )
    tokenizer.add_tokens(added or [], special_tokens=True)
    return TextTokenizer(tokenizer)


def with_template(template: Any) -> TextTokenizer:
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.chat_template = template
    return TextTokenizer(tokenizer)


def test_bos_is_added_where_the_tokenizer_adds_it(byte_level: TextTokenizer) -> None:
    """If this failed, models would see prompts without the BOS they were trained with."""
    ids = byte_level.encode("Hello")
    assert ids[0] == byte_level.bos_token_id == 0
    assert byte_level.decode(ids) == "Hello"
    assert byte_level.decode(ids, skip_special_tokens=False) == "<|bos|>Hello"


def test_empty_prompt_starts_from_bos(byte_level: TextTokenizer) -> None:
    """If this failed, an empty prompt would reach the model as a tensor without columns."""
    assert byte_level.encode("") == [0]
    silent = tiny_tokenizers.byte_level(bos=False)
    silent.bos_token = "<|bos|>"  # has a BOS, but does not add it (GPT-2)
    assert TextTokenizer(silent).encode("") == [0]


def test_empty_prompt_without_bos_is_refused() -> None:
    """If this failed, a model without BOS would be run on nothing at all."""
    tokenizer = TextTokenizer(tiny_tokenizers.byte_level(bos=False))
    with pytest.raises(PromptError, match="the prompt is empty"):
        tokenizer.encode("")
    assert tokenizer.encode(" ")
    assert tokenizer.encode("\n")


@pytest.mark.parametrize("text", ["\ud83d", "a\udc80b", None, 3, b"bytes", ["list"]])
def test_what_is_not_text_is_refused_in_one_line(byte_level: TextTokenizer, text: Any) -> None:
    """If this failed, a lone surrogate (or a non-string) would end in a traceback of the tokenizer."""
    with pytest.raises(PromptError) as caught:
        byte_level.encode(text)
    assert "\n" not in str(caught.value)


def test_control_characters_are_text(byte_level: TextTokenizer) -> None:
    """If this failed, unusual but valid prompts would be refused or changed."""
    for text in ("\x00", "\u200d", " " * 300, "漢字\r\n", "\ufffd"):
        assert byte_level.decode(byte_level.encode(text)) == text


def test_decode_keeps_spaces_before_punctuation() -> None:
    """If this failed, transformers' tidying would change what the model wrote."""
    tokenizer = tiny_tokenizers.word_level()
    tokenizer.clean_up_tokenization_spaces = True
    tokenizer.add_tokens([".", "n't"])
    ids = tokenizer.convert_tokens_to_ids(["a", ".", "n't"])
    assert TextTokenizer(tokenizer).decode(ids) == "a . n't"


def test_unknown_ids_give_no_text(any_tokenizer: TextTokenizer) -> None:
    """If this failed, padded rows of a model would crash the decoding of its text."""
    assert any_tokenizer.decode([-1, any_tokenizer.vocab_size + 5, 2**40]) == ""
    assert any_tokenizer.decode([]) == ""
    assert any_tokenizer.token(2**40) is None


def test_chat_template_is_applied_once(byte_level: TextTokenizer) -> None:
    """If this failed, the assistant's turn would not be opened, or a second BOS would be added."""
    text = byte_level.decode(byte_level.encode_chat(HELLO), skip_special_tokens=False)
    assert text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


def test_empty_content_is_a_message(byte_level: TextTokenizer) -> None:
    """If this failed, an empty user turn would be refused although the template makes a prompt of it."""
    assert byte_level.encode_chat([{"role": "user", "content": ""}])


@pytest.mark.parametrize(
    ("messages", "line"),
    [
        ([], "conversation is empty"),
        ("Hello", "must be a list"),
        (None, "must be a list"),
        ({"role": "user", "content": "a"}, "must be a list"),
        (["Hello"], "message 0 must be a dictionary"),
        ([*HELLO, {"role": "user"}], 'message 1 has no "content"'),
        ([*HELLO, {"content": "a"}], 'message 1 has no "role"'),
        ([{"role": "robot", "content": "a"}], "message 0 has the unknown role 'robot'"),
        ([{"role": ["user"], "content": "a"}], "message 0 has the unknown role"),
        ([{"role": "user", "content": None}], "content of message 0 must be text, not NoneType"),
        ([*HELLO, {"role": "user", "content": "\ud83d"}], "content of message 1 is not valid Unicode"),
    ],
)
def test_malformed_conversation_is_refused(byte_level: TextTokenizer, messages: Any, line: str) -> None:
    """If this failed, a malformed message would end in a traceback, or be answered as something else."""
    with pytest.raises(PromptError, match=line) as caught:
        byte_level.encode_chat(messages)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("{{ raise_exception('roles must\nalternate') }}", "roles must alternate"),
        ("{% for %}", "refused"),
        ("{{ messages[0]['content'] + 1 }}", "refused"),
        ("{{ 1 / 0 }}", "division"),
        ({"tool_use": "{{ messages }}"}, "refused"),
        ("{# nothing #}", "empty prompt"),
        (None, "no chat template; give the prompt as plain text"),
    ],
)
def test_template_that_fails_is_one_line(template: Any, line: str) -> None:
    """If this failed, an error inside a model's own template would be shown as a crash of foredraft."""
    with pytest.raises(PromptError, match=line) as caught:
        with_template(template).encode_chat(HELLO)
    assert "\n" not in str(caught.value)


def test_user_turn_is_the_start_of_every_chat(byte_level: TextTokenizer) -> None:
    """If this failed, the model would complete something else than the turn of a user."""
    ids, ends = byte_level.encode_user_turn()
    assert byte_level.encode_chat(HELLO)[: len(ids)] == ids
    assert byte_level.decode(ids, skip_special_tokens=False) == "<|im_start|>user\n"
    assert [byte_level.token(token_id) for token_id in ends] == ["<|im_end|>"]


def test_user_turn_that_ends_in_plain_text_has_no_end_id() -> None:
    """If this failed, every question would stop at the first token that also begins that text."""
    ids, ends = with_template("<|im_start|>[{{ messages[0]['content'] }} END]").encode_user_turn()
    assert len(ids) == 2 and ends == ()


@pytest.mark.parametrize("template", [None, "{{ messages[0]['content'] }}<|im_end|>", "{{ nothing.at.all }}"])
def test_user_turn_without_a_start(template: str | None) -> None:
    """If this failed, the model would be run on an empty prompt, or the user see a traceback."""
    with pytest.raises(PromptError, match="chat template"):
        with_template(template).encode_user_turn()


def test_has_chat_template(byte_level: TextTokenizer, sentencepiece: TextTokenizer) -> None:
    """If this failed, a base model would be asked to chat, or a chat model would not."""
    assert byte_level.has_chat_template
    assert not sentencepiece.has_chat_template


def test_padded_vocabulary_is_the_same() -> None:
    """If this failed, a smaller draft of the target's own family would be refused."""
    short, long = words(["a", "b", "c"]), words(["a", "b", "c", "d"], ["<pad>"])
    assert short.same_vocabulary(long)
    assert long.same_vocabulary(short)
    assert short.describe_difference(long) == ""


def test_different_string_of_one_id_is_found() -> None:
    """If this failed, a draft whose ids mean other words would be accepted."""
    first, second = words(["a", "b", "c", "x"]), words(["a", "c", "b"])
    assert not first.same_vocabulary(second)
    line = first.describe_difference(second)
    assert line == "2 of 3 token ids differ; the first is 1, which is 'b' in one and 'c' in the other"


def test_added_special_tokens_are_compared() -> None:
    """If this failed, <|im_end|> of the target could be another token of the draft."""
    assert not words(["a"], ["<s>", "</s>"]).same_vocabulary(words(["a"], ["</s>", "<s>"]))
    assert words(["a"], ["<s>", "</s>"]).same_vocabulary(words(["a", "<s>"], ["</s>"]))


def test_kinds_differ_from_each_other(byte_level: TextTokenizer, sentencepiece: TextTokenizer) -> None:
    """If this failed, unrelated tokenizers would pass as the same."""
    assert not byte_level.same_vocabulary(sentencepiece)
    assert byte_level.same_vocabulary(TextTokenizer(tiny_tokenizers.byte_level()))


def test_large_vocabularies_are_compared_quickly() -> None:
    """If this failed, starting with a draft would take many seconds for the check alone."""
    vocabulary = [f"word{number}" for number in range(150_000)]
    first, second = words(vocabulary), words(vocabulary, ["<extra>"])
    start = perf_counter()
    assert first.same_vocabulary(second)
    assert perf_counter() - start < 5
