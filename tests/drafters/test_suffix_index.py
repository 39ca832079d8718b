"""Tests of the shared suffix index, its file and its drafter."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hashed_model import Context, FunctionRunner, assert_unchanged, generate, hashed_logits
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.drafters.suffix_index import SuffixIndex
from foredraft.drafters.suffix_index_drafter import SuffixIndexDrafter
from foredraft.drafters.suffix_index_file import load_index, save_index
from foredraft.drafters.suffix_index_segment import MAX_MATCH, MIN_MATCH, SuffixSegment, document
from foredraft.errors import ParameterError
from foredraft.params import SamplingParams

DOCUMENTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=40), min_size=1, max_size=8)
CONTEXT = st.lists(st.integers(0, 3), min_size=1, max_size=50)


def followers(documents: list[list[int]], suffix: list[int]) -> list[int | None]:
    """By definition: what follows each occurrence of a suffix (None at a document's end)."""
    found: list[int | None] = []
    for tokens in documents:
        for end in range(len(suffix), len(tokens) + 1):
            if tokens[end - len(suffix) : end] == suffix:
                found.append(tokens[end] if end < len(tokens) else None)
    return found


def longest_known_suffix(documents: list[list[int]], context: list[int]) -> int:
    """By definition, within the lengths that the index looks for."""
    for length in range(min(MAX_MATCH, len(context)), MIN_MATCH - 1, -1):
        if followers(documents, context[-length:]):
            return length
    return 0


@settings(max_examples=60, deadline=None)
@given(DOCUMENTS, CONTEXT, st.data())
def test_lookup_agrees_with_a_plain_search(
    documents: list[list[int]], context: list[int], data: st.DataObject
) -> None:
    """If this failed, the index would miss the longest match or draft a token that is not the likeliest."""
    if data.draw(st.booleans()):
        tokens = data.draw(st.sampled_from(documents))
        context = [*context, *tokens[: data.draw(st.integers(1, len(tokens)))]]
    index = SuffixIndex(capacity=100_000, min_probability=0.0)
    for tokens in documents:
        index.add(tokens)
    match = index.match(context)
    assert match.length == longest_known_suffix(documents, context)
    drafted = index.continuation(match, 5)
    if match.length:
        counts = Counter(followers(documents, context[-match.length :]))
        if sum(counts.values()) <= 32:
            assert counts[drafted[0] if drafted else None] == max(counts.values())
        for length in range(1, len(drafted) + 1):
            assert followers(documents, [*context[-match.length :], *drafted[:length]])
    else:
        assert drafted == []


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=300))
def test_segments_are_sorted(tokens: list[int]) -> None:
    """If this failed, binary search would go astray and matches would be lost."""
    segment = SuffixSegment(document(tokens))
    keys = [segment.text[4 * position :][: 4 * MAX_MATCH] for position in segment.order]
    assert keys == sorted(keys)
    assert sorted(segment.order.tolist()) == list(range(len(tokens) + 1))


@settings(max_examples=30, deadline=None)
@given(DOCUMENTS, CONTEXT)
def test_growing_equals_building_at_once(documents: list[list[int]], context: list[int]) -> None:
    """If this failed, what is drafted would depend on how documents happened to be merged."""
    grown = SuffixIndex(capacity=100_000)
    for tokens in documents:
        grown.add(tokens)
    built = SuffixIndex(capacity=100_000)
    built.append_segment(SuffixSegment(b"".join(document(tokens) for tokens in reversed(documents))))
    assert grown.match(context).length == built.match(context).length
    if sum(len(tokens) for tokens in documents) <= 32:
        assert grown.continuation(grown.match(context), 6) == built.continuation(built.match(context), 6)


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    """If this failed, a server would grow without limit, or forget what it has just learnt."""
    index = SuffixIndex(capacity=4000)
    for number in range(300):
        index.add([number * 50 + offset for offset in range(50)])
        assert len(index) <= 4000
    assert index.num_bytes <= 16 * 4000
    assert len(index) > 3000
    assert len(index.segments) < 40
    newest, oldest = [299 * 50 + offset for offset in range(10)], list(range(10))
    assert index.match(newest).length == 10
    assert index.match(oldest).length == 0


def test_a_document_longer_than_a_segment_keeps_its_end() -> None:
    """If this failed, one huge output would empty the index or exceed its memory."""
    index = SuffixIndex(capacity=160)
    index.add(list(range(1000)))
    assert len(index) == 10
    assert index.match([996, 997, 998]).length == 3


def test_matches_do_not_run_across_documents() -> None:
    """If this failed, drafts would run from the end of one answer into the beginning of another."""
    index = SuffixIndex(capacity=1000)
    index.add([1, 2, 3, 4])
    index.add([5, 6, 7, 8])
    assert index.continuation(index.match([2, 3, 4]), 8) == []
    assert index.match([3, 4, 5, 6]).length == 0
    assert index.continuation(index.match([5, 6, 7]), 8) == [8]


def test_the_likeliest_continuation_is_drafted_until_it_is_unlikely() -> None:
    """If this failed, counts would not decide what is drafted and when it ends."""
    index = SuffixIndex(capacity=10_000, min_probability=0.5)
    for last in (10, 11, 12, 13):
        index.add([1, 2, 3, 7, 7, last])
    index.add([1, 2, 3, 8, 8, 8])
    assert index.continuation(index.match([1, 2, 3]), 8) == [7, 7]
    assert SuffixIndex(capacity=10).continuation(index.match([1, 2, 3]), 2) == [7, 7]


def test_saved_and_loaded_it_answers_the_same(tmp_path: Path) -> None:
    """If this failed, what was learnt would be lost or changed by a restart."""
    generator = np.random.default_rng(0)
    index = SuffixIndex(capacity=20_000)
    for _ in range(60):
        index.add(generator.integers(0, 5, size=100).tolist())
    path = tmp_path / "index.npz"
    save_index(index, path, tokenizer="a")
    loaded = load_index(path, tokenizer="a", capacity=20_000)
    assert len(loaded) == len(index)
    for _ in range(50):
        context = generator.integers(0, 5, size=20).tolist()
        assert loaded.match(context).length == index.match(context).length
        assert loaded.continuation(loaded.match(context), 8) == index.continuation(index.match(context), 8)
    assert [entry.name for entry in tmp_path.iterdir()] == ["index.npz"]
    smaller = load_index(path, tokenizer="a", capacity=2000)
    assert 0 < len(smaller) <= 2000
    empty = tmp_path / "empty.npz"
    save_index(SuffixIndex(), empty, tokenizer="a")
    assert len(load_index(empty, tokenizer="a")) == 0


def test_damaged_files_are_one_clear_line(tmp_path: Path) -> None:
    """If this failed, a damaged or foreign file would end in a traceback or in wrong matches."""
    index = SuffixIndex()
    index.add(list(range(500)))
    path = tmp_path / "index.npz"
    save_index(index, path, tokenizer="a")
    whole = path.read_bytes()
    damaged = [b"", b"text", whole[: len(whole) // 2], whole[:700] + b"\x55" * 8 + whole[708:]]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ParameterError, match="is damaged") as caught:
            load_index(path, tokenizer="a")
        assert "\n" not in str(caught.value)
    arrays = {"format": np.int64(1), "tokenizer": np.str_("a"), "text_0": np.zeros(8, dtype=np.uint8)}
    for order in ([0, 5], [-1, 0], [0, 0], [0]):
        np.savez(path, **arrays, order_0=np.array(order, dtype=np.int32))
        with pytest.raises(ParameterError, match="is damaged"):
            load_index(path, tokenizer="a")
    path.write_bytes(whole)
    with pytest.raises(ParameterError, match="belongs to tokenizer 'a'"):
        load_index(path, tokenizer="b")
    with pytest.raises(ParameterError, match="no suffix index"):
        load_index(tmp_path / "missing.npz", tokenizer="a")
    with pytest.raises(ParameterError, match="cannot be written"):
        save_index(index, tmp_path / "missing" / "index.npz", tokenizer="a")


def test_parameters_are_checked() -> None:
    """If this failed, a nonsensical index would fail later and less clearly."""
    with pytest.raises(ParameterError, match="capacity must be"):
        SuffixIndex(capacity=0)
    with pytest.raises(ParameterError, match="min_probability must be"):
        SuffixIndex(min_probability=1.5)
    with pytest.raises(ParameterError, match="token ids must be"):
        SuffixIndex().add([1, 1 << 21])


def test_longer_match_wins_and_own_tokens_win_ties() -> None:
    """If this failed, older and weaker evidence would be preferred to the sequence's own."""
    index = SuffixIndex(capacity=1000)
    index.add([1, 2, 3, 4, 50, 51])
    drafter = SuffixIndexDrafter(index, draft_per_match=0.5)
    shared_longer, tie = Context([3, 4, 60, 1, 2, 3, 4], id=1), Context([2, 3, 4, 60, 9, 2, 3, 4], id=2)
    proposals = drafter.propose([shared_longer, tie], [4, 4])
    assert [proposal.tokens for proposal in proposals] == [(50, 51), (60,)]


def test_outputs_enter_the_index_when_they_end() -> None:
    """If this failed, repeated requests would not get faster, or prompts would crowd out outputs."""
    drafter = SuffixIndexDrafter(SuffixIndex(capacity=1000), end_token_ids=[9])
    context = Context(list(range(100, 150)), id=3)
    drafter.propose([context], [4])
    context.tokens += [1, 2, 3, 4, 9]
    drafter.propose([context], [4])
    assert len(drafter.index) == 0
    drafter.forget(context)
    drafter.forget(context)
    assert len(drafter.index) == 1 + 16 + 5
    again = Context(list(range(100, 150)), id=4)
    assert drafter.propose([again], [8])[0].tokens == (1, 2, 3, 4, 9)


def test_output_is_that_of_plain_decoding_and_repetition_is_accepted() -> None:
    """If this failed, the index would change the text, or not speed up a repeated request."""
    runner = FunctionRunner(hashed_logits(40), 40)
    drafter = SuffixIndexDrafter(SuffixIndex(capacity=500), vocab_size=40)
    prompts = [[2], [0, 2] * 20, [*range(40)], [2, 2, 2, 2]]
    assert_unchanged(lambda: drafter, runner, prompts)
    (again,) = generate(runner, [[*range(40)]], SamplingParams(max_new_tokens=40), drafter)
    assert again.stats.accepted > 20
