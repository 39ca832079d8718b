from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foredraft.text import IncrementalDetokenizer, TextTokenizer

EMOJI = "🙂👩‍👩‍👧 é 漢字"
ODD_TOKENS = (
    "",
    "�",
    "▁",
    "<0x20>",
    "<0x41>",
    "<0xC3>",
    "<0xA9>",
    "<0xF0>",
    "<0x9F>",
    "Ã",
    "©",
    "ð",
    "Ł",
    "ÿ",
)


def pieces(tokenizer: TextTokenizer, ids: Iterable[int], skip_special_tokens: bool = True) -> list[str]:
    """What each push gives, and at the end what flush gives."""
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


def byte_ids(tokenizer: TextTokenizer, data: bytes) -> list[int]:
    """Ids of the byte tokens of a SentencePiece-like tokenizer."""
    ids = {tokenizer.token(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    return [ids[f"<0x{byte:02X}>"] for byte in data]


def byte_level_ids(tokenizer: TextTokenizer, data: bytes) -> list[int]:
    """Ids of single-byte tokens of a byte-level tokenizer, whatever the bytes mean."""
    ids = {tokenizer.token(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    spelling = {**{b: chr(b) for b in printable}, **{b: chr(256 + n) for n, b in enumerate(others)}}
    return [ids[spelling[byte]] for byte in data]


@st.composite
def id_sequences(draw: st.DrawFn, tokenizer: TextTokenizer) -> list[int]:
    """Ids drawn anywhere (padded rows included), or among the tokens known to make trouble."""
    odd = [i for i in range(tokenizer.vocab_size) if tokenizer.token(i) in ODD_TOKENS]
    anywhere = st.integers(-1, tokenizer.vocab_size + 3)
    return draw(st.lists(st.one_of(anywhere, st.sampled_from([0, 1, *odd])), max_size=40))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), skip_special_tokens=st.booleans())
def test_pieces_join_to_one_shot_decode(
    any_tokenizer: TextTokenizer, data: st.DataObject, skip_special_tokens: bool
) -> None:
    """If this failed, streamed text would differ from the text returned at the end."""
    ids = data.draw(id_sequences(any_tokenizer))
    streamed = "".join(pieces(any_tokenizer, ids, skip_special_tokens))
    assert streamed == any_tokenizer.decode(ids, skip_special_tokens)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.lists(st.sampled_from(b"a \x80\x9f\xa0\xbf\xc3\xe2\xed\xf0\xf4\xff"), max_size=40).map(bytes))
def test_any_bytes_join_to_one_shot_decode(byte_level: TextTokenizer, data: bytes) -> None:
    """If this failed, broken UTF-8 from a byte-level model would be shown differently when streamed."""
    ids = byte_level_ids(byte_level, data)
    assert (
        "".join(pieces(byte_level, ids)) == byte_level.decode(ids) == data.decode("utf-8", errors="replace")
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=30))
def test_encoded_text_is_streamed_in_whole_characters(byte_level: TextTokenizer, text: str) -> None:
    """If this failed, a reader would see U+FFFD in place of a character that came in several tokens."""
    streamed = pieces(byte_level, byte_level.encode(text))
    assert "".join(streamed) == text
    assert all(piece.count("\ufffd") <= text.count("\ufffd") for piece in streamed)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "slow_bytes"])
def test_emoji_family_never_falls_apart(kind: str, request: pytest.FixtureRequest) -> None:
    """If this failed, an emoji split over tokens would be streamed as replacement characters."""
    tokenizer: TextTokenizer = request.getfixturevalue(kind)
    streamed = pieces(tokenizer, tokenizer.encode(EMOJI))
    assert "".join(streamed) == EMOJI
    assert not any("\ufffd" in piece for piece in streamed)


def test_character_cut_by_the_end_is_shown_as_decode_shows_it(byte_level: TextTokenizer) -> None:
    """If this failed, a length limit inside an emoji would lose the tail or differ from the returned text."""
    ids = byte_level_ids(byte_level, "hi 🙂".encode()[:-1])
    assert pieces(byte_level, ids) == ["h", "i", " ", "", "", "", "\ufffd"]


def test_text_is_given_at_once_where_it_is_certain(byte_level: TextTokenizer) -> None:
    """If this failed, the stream would lag behind the model by a token."""
    ids = byte_level.encode("Hello world, hello")
    *streamed, rest = pieces(byte_level, ids)
    assert streamed == [byte_level.decode([token_id]) for token_id in ids]
    assert rest == ""


def test_genuine_replacement_character_is_delivered(byte_level: TextTokenizer) -> None:
    """If this failed, U+FFFD written by the model itself would be held back for ever or dropped."""
    ids = byte_level_ids(byte_level, "a\ufffdb\ufffd".encode())
    streamed = pieces(byte_level, ids)
    assert "".join(streamed) == "a\ufffdb\ufffd"
    assert streamed[-1] == "\ufffd"
    assert "".join(streamed[:5]) == "a\ufffdb"


def test_certain_part_of_a_token_is_not_held_with_its_uncertain_end(byte_level: TextTokenizer) -> None:
    """If this failed, one broken byte would hold back whole words that are complete."""
    broken = byte_level_ids(byte_level, b"\xff\xff\xff")
    assert pieces(byte_level, broken) == ["", "\ufffd", "\ufffd", "\ufffd"]


def test_leading_space_is_dropped_at_the_beginning_only(sentencepiece: TextTokenizer) -> None:
    """If this failed, words of a SentencePiece model would run together in the stream."""
    ids = sentencepiece.encode("the quick the")
    assert "".join(pieces(sentencepiece, ids)) == "the quick the"
    twice = [*ids, *ids]  # BOS in the middle is skipped, and must not make a new beginning
    assert "".join(pieces(sentencepiece, twice)) == "the quick the the quick the"


def test_byte_tokens_wait_for_the_end_of_their_run(sentencepiece: TextTokenizer) -> None:
    """If this failed, "é" would be shown first and then, after a stray byte, belied by the full decode."""
    after = sentencepiece.encode("the")[-1]
    good, bad = byte_ids(sentencepiece, b"\xc3\xa9"), byte_ids(sentencepiece, b"\xc3\xa9\xf0")
    assert pieces(sentencepiece, [*good, after])[:2] == ["", ""]
    assert pieces(sentencepiece, [*good, after])[2].startswith("é")
    assert pieces(sentencepiece, [*bad, after])[3].startswith("\ufffd\ufffd\ufffd")


@pytest.mark.parametrize("broken", range(8, 28))
def test_character_after_many_broken_bytes_is_whole(byte_level: TextTokenizer, broken: int) -> None:
    """If this failed, shortening the window would cut through a character that is not complete yet."""
    data = b"\xff" * broken + "🙂".encode()
    streamed = pieces(byte_level, byte_level_ids(byte_level, data))
    assert "".join(streamed) == data.decode("utf-8", errors="replace")


def test_long_broken_run_of_byte_tokens_ended_by_an_empty_token(sentencepiece: TextTokenizer) -> None:
    """If this failed, shortening the window would cut a run of bytes, whose rest alone is valid text."""
    (empty,) = [i for i in range(sentencepiece.vocab_size) if sentencepiece.token(i) == ""]
    ids = [*byte_ids(sentencepiece, b"\xf0" + "ééééé€🙂".encode()), empty, *sentencepiece.encode("the")]
    assert "".join(pieces(sentencepiece, ids)) == sentencepiece.decode(ids) == "\ufffd" * 18 + " the"


def test_byte_token_spelled_as_text_is_text(byte_level: TextTokenizer) -> None:
    """If this failed, a byte-level model's literal "<0x41>" would be held back like a SentencePiece byte."""
    (literal,) = [i for i in range(byte_level.vocab_size) if byte_level.token(i) == "<0x41>"]
    assert pieces(byte_level, [literal]) == ["<0x41>", ""]


def test_special_tokens_are_shown_on_request(byte_level: TextTokenizer) -> None:
    """If this failed, skip_special_tokens=False would be ignored in streams."""
    ids = byte_level.encode("Hello")
    assert "".join(pieces(byte_level, ids, skip_special_tokens=False)) == "<|bos|>Hello"
    assert "".join(pieces(byte_level, ids)) == "Hello"


def test_invisible_ids_inside_a_character_do_no_harm(byte_level: TextTokenizer) -> None:
    """If this failed, a padded row or special token between the bytes of an emoji would break it."""
    first, *others = byte_level_ids(byte_level, "🙂".encode())
    ids = [first, 0, byte_level.vocab_size + 7, -1, *others]
    assert "".join(pieces(byte_level, ids)) == "🙂"


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
@pytest.mark.parametrize("data", [b"\xff", b"a", b"\xe2\x82", "🙂".encode()])
def test_work_per_token_does_not_grow(
    kind: str, data: bytes, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this failed, a long answer (or a long run of broken bytes) would become slower token by token."""
    tokenizer: TextTokenizer = request.getfixturevalue(kind)
    encode = byte_level_ids if kind == "byte_level" else byte_ids
    decoded = 0
    decode = tokenizer.decode

    def counting(ids: list[int], skip_special_tokens: bool = True) -> str:
        nonlocal decoded
        decoded += len(ids)
        return decode(ids, skip_special_tokens)

    monkeypatch.setattr(tokenizer, "decode", counting)
    ids = encode(tokenizer, data * 500)
    assert "".join(pieces(tokenizer, ids)) == decode(ids)
    assert decoded < 40 * len(ids)
