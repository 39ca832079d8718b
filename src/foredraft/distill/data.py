"""On-policy training data: the target's own answers, to given prompts or to questions of its own.

A draft is to imitate the target where the target goes, so it is trained on text that the target wrote
(DistillSpec, Zhou et al. 2023, arXiv 2310.08461). Without prompts the target also writes the questions:
it completes the user's turn from the bare start of its chat template, then answers (Magpie, Xu et al.
2024, arXiv 2406.08464).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from foredraft.distill.corpus import Sample, TokenFile
from foredraft.errors import ExecutionError, ParameterError
from foredraft.inferencer import Generation, Inferencer, Prompt
from foredraft.params import SamplingParams

MAX_EMPTY = 256
"""So many samples without an answer, one after the other, mean that none will come."""

_Drawing: TypeAlias = Generator[None, None, Sample | None]
"""A sample under way: each `next` moves it on by at least a token."""


@dataclass(frozen=True)
class DataOptions:
    """What is drawn. Together with the target, it determines every sample."""

    tokens: int = 300_000
    """Prompts and answers; the sample that reaches this is the last."""
    seed: int = 0
    temperatures: tuple[float, ...] = (0.0, 1.0)
    """Of the answers, taken in turn: drafts are used both for greedy and for sampled text."""
    question_temperature: float = 0.8
    """Of the questions that the target writes: at 1 a small model's make little sense."""
    max_user_tokens: int = 128
    """Of a question that the target writes; one that is longer is given up."""
    max_new_tokens: int = 320
    """Of an answer."""
    batch_size: int = 32
    """Samples drawn at the same time; does not change them."""

    def __post_init__(self) -> None:
        for name in ("tokens", "max_user_tokens", "max_new_tokens", "batch_size"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} must be at least 1 (got {getattr(self, name)})")
        if not self.temperatures:
            raise ParameterError("temperatures: give at least one")
        for temperature in (*self.temperatures, self.question_temperature):
            SamplingParams(temperature=temperature, seed=self.seed)

    def settings(self) -> dict[str, Any]:
        """Those on which the samples depend."""
        chosen = asdict(self)
        del chosen["tokens"], chosen["batch_size"]
        return chosen


def generate_data(
    inferencer: Inferencer,
    folder: Path,
    options: DataOptions,
    *,
    prompts: Sequence[Prompt] = (),
    on_progress: Callable[[int], None] = lambda tokens: None,
) -> int:
    """Draw samples into `folder` until it holds `options.tokens` tokens; goes on where the file ends.

    The file depends on target, prompts and settings alone: sample i has a seed of its own, derived from
    the seed and i, and samples are written in order. A kill loses only what was still being drawn.

    Args:
        inferencer: of the target; its `max_batch_size` and `verify_batch_size` should be at least
            `options.batch_size`.
        folder: see `TokenFile`.
        options: what to draw.
        prompts: answered in turn, again and again under other seeds; none lets the target write its own.
        on_progress: called with the tokens in the file whenever there are more.

    Returns:
        Tokens in the file.

    Raises:
        ParameterError: if the folder belongs to other settings.
        PromptError: if the target has no chat template to start from, or a prompt is unusable.
        ExecutionError: if a forward fails, or the target answers nothing.
    """
    drawer = _Drawer(inferencer, options, [inferencer.encode(prompt) for prompt in prompts])
    file = TokenFile(folder, drawer.settings())
    on_progress(file.num_tokens)
    empty = 0
    drawing = _in_order(drawer.draw, file.next_index, options.batch_size)
    while file.num_tokens < options.tokens:
        sample = next(drawing)
        if sample is not None:
            empty = 0
            file.append(sample)
            on_progress(file.num_tokens)
        elif (empty := empty + 1) == MAX_EMPTY:
            raise ExecutionError(f"the target gave no answer to {MAX_EMPTY} questions; give it prompts")
    drawing.close()
    return file.num_tokens


def _in_order(
    draw: Callable[[int], _Drawing], first: int, batch_size: int
) -> Generator[Sample | None, None, None]:
    """Samples `first`, `first + 1`, ... as soon as they and all before them are drawn.

    `batch_size` are under way at any time; who finishes makes room for the next, so that the target's
    batch stays full. At most four batches wait for one that takes long.
    """
    under_way: dict[int, _Drawing] = {}
    finished: dict[int, Sample | None] = {}
    due = following = first
    try:
        while True:
            while len(under_way) < batch_size and following < due + 4 * batch_size:
                under_way[following] = draw(following)
                following += 1
            for index, drawing in list(under_way.items()):
                try:
                    next(drawing)
                except StopIteration as done:
                    finished[index] = done.value
                    del under_way[index]
            while due in finished:
                yield finished.pop(due)
                due += 1
    finally:
        for drawing in under_way.values():
            drawing.close()


class _Drawer:
    """Draws sample i, whatever else is being drawn."""

    def __init__(self, inferencer: Inferencer, options: DataOptions, prompts: list[list[int]]) -> None:
        self._inferencer = inferencer
        self._options = options
        self._prompts = prompts
        self._user_turn: list[int] = []
        self._turn_ends: tuple[int, ...] = ()
        if not prompts:
            if inferencer.tokenizer is None:
                raise ParameterError("the target has no tokenizer; give prompts as token ids")
            self._user_turn, self._turn_ends = inferencer.tokenizer.encode_user_turn()

    def settings(self) -> dict[str, Any]:
        prompts = hashlib.blake2b(repr(self._prompts).encode(), digest_size=16).hexdigest()
        return {
            "target": self._inferencer.target.name,
            "prompts": prompts if self._prompts else None,
            **self._options.settings(),
        }

    def draw(self, index: int) -> _Drawing:
        """Sample `index`; None if the question did not end or the answer is empty."""
        if self._prompts:
            # The round is added, so that an even number of prompts meets every temperature as well.
            turn, which = divmod(index, len(self._prompts))
            prompt, turn = self._prompts[which], turn + which
        else:
            prompt, turn = (yield from self._asked(index)), index
        if prompt is None:
            return None
        temperature = self._options.temperatures[turn % len(self._options.temperatures)]
        answer = yield from self._generated(
            prompt, index, "answer", temperature, max_new_tokens=self._options.max_new_tokens
        )
        if not answer.token_ids:
            return None
        return Sample(index, temperature, len(prompt), (*prompt, *answer.token_ids))

    def _asked(self, index: int) -> Generator[None, None, list[int] | None]:
        """The prompt of a question that the target wrote."""
        question = yield from self._generated(
            self._user_turn, index, "question", self._options.question_temperature,
            max_new_tokens=self._options.max_user_tokens, stop_token_ids=self._turn_ends,
        )  # fmt: skip
        text = question.text.strip()
        if question.finish_reason != "stop" or not text:
            return None
        return self._inferencer.encode([{"role": "user", "content": text}])

    def _generated(
        self, prompt: Sequence[int], index: int, stage: str, temperature: float, **limits: Any
    ) -> Generator[None, None, Generation]:
        sampling = SamplingParams(
            temperature=temperature, seed=_sample_seed(self._options.seed, index, stage), **limits
        )
        chunks = self._inferencer.stream(list(prompt), sampling)
        try:
            for chunk in chunks:
                if chunk.generation is not None:
                    if chunk.generation.error is not None:
                        raise ExecutionError(chunk.generation.error)
                    return chunk.generation
                yield
        finally:
            chunks.close()
        raise AssertionError("a stream ends with its generation")


def _sample_seed(seed: int, index: int, stage: str) -> int:
    """63 bits that differ between all seeds, samples and stages."""
    digest = hashlib.blake2b(f"{seed} {index} {stage}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
