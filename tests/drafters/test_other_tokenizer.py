"""Tests of drafting with a model of another tokenizer: contexts, TLI and SLEM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from hashed_model import (
    Context,
    FunctionRunner,
    assert_unchanged,
    check_within_budget,
    generate,
    hashed_logits,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tiny_vocabularies import (
    DRAFT,
    DRAFT_END,
    DRAFT_START,
    END,
    TARGET,
    draft_encode,
    longest_match,
    spelled,
    target_encode,
    vocabulary_map,
)

from foredraft.drafters import Proposal
from foredraft.drafters.other_tokenizer import IntersectionDrafter
from foredraft.drafters.other_tokenizer_context import ReencodedContext, split_characters, token_ends
from foredraft.drafters.other_tokenizer_strings import StringMatchDrafter
from foredraft.drafters.vocabulary_map import VocabularyMap
from foredraft.engine import Engine, FixedDraftLength, Request
from foredraft.laws import BlockRule, LawProcessor, RejectionRule, TokenRule
from foredraft.params import SamplingParams

V = len(TARGET)
TOKENS = st.lists(st.integers(0, V), max_size=200)


def writer(vocabulary: list[bytes | None], text: bytes) -> FunctionRunner:
    """A model that always goes on with `text`, over and over, in the tokens of its longest-match encoder."""

    def logits(prefix: Sequence[int]) -> torch.Tensor:
        written = spelled(list(prefix), vocabulary)
        place = len(written) % len(text)
        rest = (text[place:] + text)[:6]
        scores = torch.zeros(len(vocabulary))
        for token, piece in enumerate(vocabulary):
            if piece is not None and rest.startswith(piece):
                scores[token] = 5.0 + 3 * len(piece)
        return scores

    return FunctionRunner(logits, len(vocabulary))


def tli(runner: FunctionRunner, **options: object) -> IntersectionDrafter:
    return IntersectionDrafter(runner, vocabulary_map(), draft_encode, vocab_size=V, **options)  # type: ignore[arg-type]


def slem(runner: FunctionRunner, **options: object) -> StringMatchDrafter:
    return StringMatchDrafter(
        runner,
        vocabulary_map(),
        draft_encode,
        target_encode,
        vocab_size=V,
        **options,  # type: ignore[arg-type]
    )


def text_of(tokens: Sequence[int]) -> bytes:
    return spelled([token for token in tokens if token < V], TARGET)


@settings(max_examples=60, deadline=None)
@given(TOKENS, st.lists(st.integers(1, 30), max_size=30))
def test_a_context_keeps_the_bytes_however_it_grows(tokens: list[int], pieces: list[int]) -> None:
    """If this failed, the draft would continue another text than the target's."""
    context = ReencodedContext(vocabulary_map(), draft_encode, [DRAFT_START])
    end = 0
    for piece in [*pieces, len(tokens)]:
        end = min(len(tokens), end + piece)
        context.extend(tokens[:end])
        assert context.is_complete
        if _is_whole_text(tokens[:end]):
            assert spelled(context.ids, DRAFT) == text_of(tokens[:end])
    assert context.ids[0] == DRAFT_START
    assert context.ids.count(DRAFT_END) == tokens.count(END)


def _is_whole_text(tokens: list[int]) -> bool:
    """Whether every piece between special tokens is UTF-8, up to an unfinished character at its end."""
    pieces = [[]]
    for token in tokens:
        if token < V and TARGET[token] is not None:
            pieces[-1].append(token)
        else:
            pieces.append([])
    try:
        for piece in pieces:
            split_characters(text_of(piece))[0].decode()
    except UnicodeDecodeError:
        return False
    return True


@settings(max_examples=60, deadline=None)
@given(st.text("ab é", max_size=300), st.lists(st.integers(1, 40), max_size=30), st.sampled_from(["", " "]))
def test_growing_gives_the_tokens_of_encoding_at_once(text: str, pieces: list[int], prefix: str) -> None:
    """If this failed, the draft would see an ever stranger split of the text the longer it gets."""
    encode = longest_match(DRAFT, prefix)
    tokens = target_encode(text)
    grown = ReencodedContext(vocabulary_map(), encode)
    end = 0
    for piece in [*pieces, len(tokens)]:
        end = min(len(tokens), end + piece)
        grown.extend(tokens[:end])
    # Longest match forgets what lies a few tokens back, so that re-encoding the end must give the same.
    assert grown.ids == (encode(text) if text else [])


def test_a_tokenizer_that_changes_texts_is_survived() -> None:
    """If this failed, a normalising tokenizer would cost memory and time without bound, or crash."""
    calls: list[int] = []

    def lowered(text: str) -> list[int]:
        calls.append(len(text))
        return draft_encode(text.replace("é", "a"))

    context = ReencodedContext(vocabulary_map(), lowered)
    tokens: list[int] = []
    for _ in range(50):
        tokens += target_encode("ab é")
        context.extend(tokens)
    assert max(calls) < 10
    assert spelled(context.ids, DRAFT) == b"ab a" * 50


def test_an_unfinished_character_pauses_drafting_only_where_it_cannot_be_spelled() -> None:
    """If this failed, the draft would continue a text that the target has not written."""
    half = [TARGET.index(b"a"), TARGET.index(b"\xc3")]
    context = ReencodedContext(vocabulary_map(), draft_encode)
    context.extend(half)
    assert spelled(context.ids, DRAFT) == b"a\xc3"
    whole_only = VocabularyMap(TARGET, [b"a", "é".encode()])
    for drafter in (
        IntersectionDrafter(
            FunctionRunner(hashed_logits(2), 2), whole_only, longest_match([b"a", "é".encode()]), vocab_size=V
        ),
        StringMatchDrafter(
            FunctionRunner(hashed_logits(2), 2), whole_only, longest_match([b"a", "é".encode()]),
            target_encode, vocab_size=V,
        ),
    ):  # fmt: skip
        assert drafter.propose([Context(half)], [3])[0].tokens == ()
        whole = Context([*half, TARGET.index(b"\xa9")])
        assert drafter.propose([whole], [3])[0].tokens != ()


def test_token_ends_take_off_an_added_space() -> None:
    """If this failed, tokenizers of Llama 2's kind could not be lined up with a text."""
    assert token_ends([6, 3], b"bb", DRAFT.__getitem__) is None
    assert token_ends([6, 1], b"bb", DRAFT.__getitem__) == [1, 2]
    assert token_ends([7, 1], b"abb", DRAFT.__getitem__) == [2, 3]
    assert token_ends([DRAFT_END], b"", DRAFT.__getitem__) is None


@pytest.mark.parametrize("order", [1, 3])
@pytest.mark.parametrize("make", [tli, slem])
def test_output_is_that_of_plain_decoding(make: object, order: int) -> None:
    """If this failed, a draft of another tokenizer would change the text."""
    target = FunctionRunner(hashed_logits(V + 2, order=order, scale=1.0), V + 2)
    prompts = [[2], [0, 7, 8, 9, 7, 7], [2, 3, 4, 5, 6] * 10, [5, 5, 5], [V + 1, 2]]

    def drafter() -> IntersectionDrafter | StringMatchDrafter:
        runner = FunctionRunner(hashed_logits(len(DRAFT) + 3, order=2, seed=1), len(DRAFT) + 3)
        options = {"start_ids": [DRAFT_START]}
        if make is slem:
            return slem(runner, **options)
        return IntersectionDrafter(
            runner, vocabulary_map(), draft_encode, vocab_size=V + 2, coupled=True, **options
        )

    finished = assert_unchanged(drafter, target, prompts, (END,) if order == 3 else ())
    assert sum(sequence.stats.drafted for sequence in finished) > 0


@pytest.mark.parametrize("make", [tli, slem])
def test_a_draft_that_writes_the_same_text_is_accepted(make: object) -> None:
    """If this failed, two models that agree on the text would not agree on its tokens."""
    text = "ab a é bb".encode()
    drafter = (tli if make is tli else slem)(writer(DRAFT, text))
    (sequence,) = generate(
        writer(TARGET, text), [target_encode("ab")], SamplingParams(max_new_tokens=60), drafter
    )
    assert sequence.stats.accepted > (40 if make is slem else 10)
    assert sequence.error is None


def test_committed_ids_are_never_replaced() -> None:
    """If this failed, a text which the target split unusually would be changed to its usual tokens."""
    a, b = TARGET.index(b"a"), TARGET.index(b"b")
    drafter = slem(writer(DRAFT, b"abb"))
    unusual = Context([a, b, b, a])
    (proposal,) = drafter.propose([unusual], [4])
    assert text_of([*unusual.tokens, *proposal.tokens]) == (b"abb" * 9)[: 4 + len(text_of(proposal.tokens))]
    assert proposal.tokens[0] == TARGET.index(b"bb")


def test_an_end_is_proposed_and_nothing_after_it() -> None:
    """If this failed, the end of an answer could not be guessed, or tokens behind it would be."""
    end = torch.zeros(len(DRAFT))
    end[DRAFT_END] = 9.0
    runner = FunctionRunner(lambda prefix: end, len(DRAFT))
    for drafter in (slem(runner), tli(runner, end_token_ids=[END])):
        (proposal,) = drafter.propose([Context([2, 3])], [5])
        assert proposal.tokens == (END,)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=40), min_size=1, max_size=3))
def test_budgets_hold_for_any_content(prompts: list[list[int]]) -> None:
    """If this failed, a proposal could exceed what the engine made room for."""
    contexts = [Context(prompt, id=index) for index, prompt in enumerate(prompts)]
    budgets = [index * 3 for index in range(len(prompts))]
    for make in (tli, slem):
        drafter = make(FunctionRunner(hashed_logits(len(DRAFT)), len(DRAFT), context_length=64))
        proposals = drafter.propose(contexts, budgets)
        check_within_budget(proposals, budgets)
        for context in contexts:
            context.tokens += [2, 3]
        check_within_budget(drafter.propose(contexts, budgets), budgets)


def test_the_cache_follows_the_context() -> None:
    """If this failed, the draft's logits would be those of a text it no longer has."""
    generator = torch.Generator().manual_seed(0)
    kept = tli(FunctionRunner(hashed_logits(len(DRAFT), order=40), len(DRAFT)))
    context = Context([2, 3])
    for _ in range(40):
        fresh = tli(FunctionRunner(hashed_logits(len(DRAFT), order=40), len(DRAFT)))
        assert kept.propose([context], [4])[0].tokens == fresh.propose([context], [4])[0].tokens
        context.tokens += torch.randint(0, V, (3,), generator=generator).tolist()
    kept.forget(context)
    kept.forget(context)
    assert not kept._rows._contexts
    assert not kept._rows._row_of


def test_a_request_that_forbids_the_intersection_stops_drafting() -> None:
    """If this failed, one request's bans would end drafting for every other sequence."""
    bias = dict.fromkeys(vocabulary_map().draft_of_target, -float("inf"))
    params = SamplingParams(logit_bias=bias, max_new_tokens=8)
    drafter = tli(FunctionRunner(hashed_logits(len(DRAFT)), len(DRAFT)))
    banned = Context([2, 3], id=1, processor=LawProcessor(params, prompt_length=2))
    proposals = drafter.propose([banned, Context([2, 3], id=2)], [3, 3])
    assert [len(proposal.tokens) for proposal in proposals] == [0, 3]


def _pairs(drafter: IntersectionDrafter, params: SamplingParams, count: int) -> tuple[float, torch.Tensor]:
    """G-test of drawn pairs of tokens against the laws recorded with them; the law of the first token."""
    contexts = [
        Context([2, 3, 4], id=index, seed=index, processor=LawProcessor(params, prompt_length=3))
        for index in range(count)
    ]
    proposals = drafter.propose(contexts, [2] * count)
    drawn: Counter[tuple[int, ...]] = Counter()
    expected: dict[tuple[int, ...], float] = {}
    for proposal in proposals:
        drawn[proposal.tokens] += 1
        assert proposal.laws is not None
        first, second = proposal.laws.double()
        for token in first.nonzero().flatten().tolist():
            if token == proposal.tokens[0]:
                law = (float(first[token]) * second).tolist()
                expected.update({(token, after): p for after, p in enumerate(law) if p})
    assert set(drawn) <= set(expected)
    often = [pair for pair, probability in expected.items() if probability * count >= 5]
    counts, means = [drawn[pair] for pair in often], [expected[pair] * count for pair in often]
    rest = [count - sum(counts), count - sum(means)]
    if rest[1] >= 5:
        counts, means = [*counts, rest[0]], [*means, rest[1]]
    means = [mean * sum(counts) / sum(means) for mean in means]
    assert proposals[0].laws is not None
    return float(stats.chisquare(counts, means).pvalue), proposals[0].laws[0]


@pytest.mark.parametrize("top_k", [0, 3])
def test_tokens_are_drawn_from_the_recorded_laws(top_k: int) -> None:
    """If this failed, no rejection rule would be lossless: it needs the law that was drawn from."""
    params = SamplingParams(temperature=1.1, top_k=top_k)
    runner = FunctionRunner(hashed_logits(len(DRAFT), seed=9), len(DRAFT))
    p_value, law = _pairs(tli(runner), params, 800)
    assert p_value > 1e-4
    assert set(law.nonzero().flatten().tolist()) <= set(vocabulary_map().draft_of_target)
    assert float(law.sum()) == pytest.approx(1.0, abs=1e-5)


def test_the_law_test_can_fail() -> None:
    """If this failed, the test above would not notice that other laws are recorded than drawn from."""

    class Wrong(IntersectionDrafter):
        def propose(self, contexts: Sequence[Context], budgets: Sequence[int]) -> list[Proposal]:  # type: ignore[override]
            proposals = super().propose(contexts, budgets)
            for proposal in proposals:
                assert proposal.laws is not None
                proposal.laws.copy_(proposal.laws.sqrt() / proposal.laws.sqrt().sum(dim=-1, keepdim=True))
            return proposals

    runner = FunctionRunner(hashed_logits(len(DRAFT), seed=9), len(DRAFT))
    wrong = Wrong(runner, vocabulary_map(), draft_encode, vocab_size=V)
    assert _pairs(wrong, SamplingParams(temperature=1.1), 800)[0] < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("rule", [TokenRule(), BlockRule()], ids=lambda rule: rule.name)
def test_sampled_output_has_the_targets_law(rule: RejectionRule) -> None:
    """If this failed, TLI would not be lossless through the whole engine."""
    target = FunctionRunner(hashed_logits(V, order=2, seed=3, scale=1.5), V)
    params, prompt, runs = SamplingParams(max_new_tokens=3, temperature=1.1, seed=0), [2, 3, 4], 1500
    drafter = tli(FunctionRunner(hashed_logits(len(DRAFT), seed=9), len(DRAFT)))
    engine = Engine(target, controller=FixedDraftLength(2), drafter=drafter, rule=rule)
    sequences = [engine.add(Request(prompt, params, sample_index=index)) for index in range(runs)]
    while engine.has_unfinished:
        engine.step()
    drawn = Counter(tuple(sequence.new_tokens[:2]) for sequence in sequences)
    processor = LawProcessor(params, prompt_length=len(prompt))
    first = processor.laws(target._logits(prompt)[None], prompt, [[]])[0].double()
    expected: dict[tuple[int, ...], float] = {}
    for token, probability in enumerate(first.tolist()):
        law = processor.laws(target._logits([*prompt, token])[None], prompt, [[token]])[0].double()
        expected.update({(token, after): probability * p for after, p in enumerate(law.tolist())})
    often = [pair for pair, probability in expected.items() if probability * runs >= 5]
    counts, means = [drawn[pair] for pair in often], [expected[pair] * runs for pair in often]
    p_value = stats.chisquare([*counts, runs - sum(counts)], [*means, runs - sum(means)]).pvalue
    assert float(p_value) > 1e-4
