from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.errors import ParameterError
from foredraft.text import StopStringMatcher


def run(stops: tuple[str, ...], *chunks: str) -> tuple[list[str], str | None]:
    """What each push gives and flush at the end, and the stop string found."""
    matcher = StopStringMatcher(stops)
    return [*(matcher.push(chunk) for chunk in chunks), matcher.flush()], matcher.matched


def reference(stops: tuple[str, ...], text: str) -> tuple[str, str | None]:
    """The definition: cut at the earliest stop string, the shorter one of two at the same place."""
    found = min(((text.find(stop), len(stop), stop) for stop in stops if stop in text), default=None)
    return (text, None) if found is None else (text[: found[0]], found[2])


@st.composite
def chunked_texts(draw: st.DrawFn) -> tuple[tuple[str, ...], list[str]]:
    """Stop strings and chunks over few letters, so that prefixes, overlaps and repeats are frequent."""
    letters = draw(st.sampled_from(["ab", "abc", "a字🙂"]))
    stops = draw(st.lists(st.text(letters, min_size=1, max_size=6), max_size=4))
    return tuple(stops), draw(st.lists(st.text(letters, max_size=7), max_size=12))


@settings(max_examples=600, deadline=None)
@given(chunked_texts())
def test_chunks_give_what_the_whole_text_gives(case: tuple[tuple[str, ...], list[str]]) -> None:
    """If this failed, the text would depend on how many tokens a round accepted."""
    stops, chunks = case
    shown, matched = run(stops, *chunks)
    assert ("".join(shown), matched) == reference(stops, "".join(chunks))


@settings(max_examples=300, deadline=None)
@given(chunked_texts())
def test_no_more_is_held_back_than_needed(case: tuple[tuple[str, ...], list[str]]) -> None:
    """If this failed, the stream would leak the start of a stop string or lag without need."""
    stops, chunks = case
    matcher, text, shown = StopStringMatcher(stops), "", ""
    for chunk in chunks:
        text += chunk
        shown += matcher.push(chunk)
        if matcher.matched is not None:
            return
        suffixes = [text[start:] for start in range(len(text))]
        held = next((s for s in suffixes if any(len(s) < len(x) and x.startswith(s) for x in stops)), "")
        assert text == shown + held


@pytest.mark.parametrize(
    ("stops", "chunks", "shown", "matched"),
    [
        (("STOP",), ["one STOP two STOP"], ["one ", ""], "STOP"),
        (("STOP",), ["one S", "TO", "P two", "three"], ["one ", "", "", "", ""], "STOP"),
        (("aab",), ["a", "a", "a", "b"], ["", "", "a", "", ""], "aab"),
        (("aab",), ["aaab"], ["a", ""], "aab"),
        (("D E X",), ["C D", " E", " F"], ["C ", "", "D E F", ""], None),
        (("D E F G",), ["C D E F"], ["C ", "D E F"], None),
        (("\n\n",), ["a\n", "b\n", "\nc"], ["a", "\nb", "", ""], "\n\n"),
        (("bc", "abcd"), ["xabc", "d"], ["x", "", ""], "abcd"),
        (("bc", "abcd"), ["xabc", "e"], ["x", "a", ""], "bc"),
        (("bc", "abcd"), ["xabc"], ["x", "a"], "bc"),
        (("ab", "a"), ["xab"], ["x", ""], "a"),
        ((), ["any", "thing"], ["any", "thing", ""], None),
    ],
)
def test_examples(stops: tuple[str, ...], chunks: list[str], shown: list[str], matched: str | None) -> None:
    """If this failed, one of the usual cases of stop strings in a stream would be wrong."""
    assert run(stops, *chunks) == (shown, matched)


def test_empty_stop_string_is_refused() -> None:
    """If this failed, an empty stop string would end every text before it begins."""
    with pytest.raises(ParameterError, match="must not be empty"):
        StopStringMatcher(("a", ""))
