from __future__ import annotations

import pytest

from foredraft.text import TextStream, TextTokenizer

COUNTING = "1, 2, 3, 4, 5, 6, 7, 8\n\nHello there, the 🙂 漢字 world"


def stream(tokenizer: TextTokenizer, text: str, stops: tuple[str, ...]) -> tuple[list[str], TextStream, int]:
    """Pushes ids of the text until a stop string; the pieces, the stream, and how many ids were pushed."""
    output = TextStream(tokenizer, stops)
    shown: list[str] = []
    pushed = 0
    for token_id in tokenizer.encode(text):
        pushed += 1
        stopped = output.push(token_id)
        shown.append(output.take())
        if stopped:
            break
    return [*shown, output.finish()], output, pushed


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
@pytest.mark.parametrize("length", [1, 3, 5, 7])
def test_every_substring_stops_the_text_before_its_first_match(
    kind: str, length: int, request: pytest.FixtureRequest
) -> None:
    """If this failed, a stop string across token borders would be missed or cut at the wrong place."""
    tokenizer: TextTokenizer = request.getfixturevalue(kind)
    whole = tokenizer.decode(tokenizer.encode(COUNTING))
    for start in range(len(whole) - length + 1):
        stop = whole[start : start + length]
        shown, output, _ = stream(tokenizer, COUNTING, (stop,))
        assert "".join(shown) == output.text == whole[: whole.index(stop)]
        assert output.stopped
        assert output.matched == stop


def test_stop_in_the_middle_of_a_token_ends_at_that_token(byte_level: TextTokenizer) -> None:
    """If this failed, generation would go on after a stop string that a token contains whole."""
    ids = byte_level.encode("Hello world")
    holder = next(n for n, token_id in enumerate(ids) if "ll" in byte_level.decode([token_id]))
    shown, _, pushed = stream(byte_level, "Hello world", ("ll",))
    assert "".join(shown) == "He"
    assert pushed == holder + 1


def test_chinese_stop_string_of_several_tokens(byte_level: TextTokenizer) -> None:
    """If this failed, a stop string whose bytes come in several tokens would not be seen."""
    shown, output, _ = stream(byte_level, "🙂👩‍👩‍👧 é 漢字 end", ("字",))
    assert "".join(shown) == "🙂👩‍👩‍👧 é 漢"
    assert output.stopped


def test_held_back_text_is_delivered_at_the_end(byte_level: TextTokenizer) -> None:
    """If this failed, a text that ends like the start of a stop string would lose its tail."""
    shown, output, _ = stream(byte_level, "the alphabet: D E", ("D E F G", "D E X"))
    assert "".join(shown) == "the alphabet: D E"
    assert not output.stopped
    assert output.matched is None


def test_finish_may_complete_a_stop_string(sentencepiece: TextTokenizer) -> None:
    """If this failed, a stop string in bytes that waited for their end would be shown to the reader."""
    shown, output, _ = stream(sentencepiece, "the 字", ("字",))
    assert "".join(shown) == "the "
    assert output.stopped


def test_tokens_after_the_stop_are_dropped(byte_level: TextTokenizer) -> None:
    """If this failed, drafted tokens accepted beyond a stop string would leak into the text."""
    output = TextStream(byte_level, ("world",))
    results = [output.push(token_id) for token_id in byte_level.encode("Hello world, hello there")]
    assert results.count(True) == 1
    assert output.take() == output.text == "Hello "
    assert output.take() == output.finish() == ""


def test_untaken_text_comes_with_finish(byte_level: TextTokenizer) -> None:
    """If this failed, a caller that never calls take would lose text."""
    output = TextStream(byte_level)
    for token_id in byte_level.encode("Hello world"):
        assert output.push(token_id) is False
    assert output.finish() == "Hello world"
    assert output.finish() == ""


def test_special_tokens_in_the_text_on_request(byte_level: TextTokenizer) -> None:
    """If this failed, a stop string spelled like a special token could never be matched."""
    output = TextStream(byte_level, ("<|im_end|>",), skip_special_tokens=False)
    for token_id in byte_level.encode("Hello<|im_end|>"):
        output.push(token_id)
    assert output.text == "<|bos|>Hello"
    assert output.stopped
