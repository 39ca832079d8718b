"""On-policy data: drawn from the target, the same for the same seed, and resumed without a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from foredraft import Inferencer, SamplingParams
from foredraft.distill.corpus import TOKENS_NAME, read_samples
from foredraft.distill.data import DataOptions, _sample_seed, generate_data
from foredraft.errors import ExecutionError, ForedraftError, ParameterError

OPTIONS = DataOptions(tokens=600, max_user_tokens=24, max_new_tokens=12, batch_size=4)


class KilledError(Exception):
    pass


def draw(inferencer: Inferencer, folder: Path, options: DataOptions = OPTIONS, **more) -> bytes:
    generate_data(inferencer, folder, options, **more)
    return (folder / TOKENS_NAME).read_bytes()


def test_the_target_asks_and_answers(inferencer: Inferencer, tmp_path: Path):
    """Samples that are not the target's own chat would train the draft for another text."""
    draw(inferencer, tmp_path)
    samples = read_samples(tmp_path)
    assert sum(len(sample.tokens) for sample in samples) >= OPTIONS.tokens
    start, _ = inferencer.tokenizer.encode_user_turn()
    assistant = inferencer.tokenizer.encode_chat([{"role": "user", "content": "x"}])[-3:]
    for sample in samples:
        prompt = list(sample.tokens[: sample.prompt_length])
        assert prompt[: len(start)] == start
        assert prompt[-3:] == assistant
    for temperature in OPTIONS.temperatures:
        sample = next(sample for sample in samples if sample.temperature == temperature)
        sampling = SamplingParams(
            temperature=temperature, seed=_sample_seed(0, sample.index, "answer"), max_new_tokens=12
        )
        answer = inferencer.inference(list(sample.tokens[: sample.prompt_length]), sampling)[0]
        assert answer.token_ids == sample.tokens[sample.prompt_length :]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_batch_does_not_matter(inferencer: Inferencer, tmp_path: Path, batch_size: int):
    """Data that depend on how many were drawn at a time could not be made again elsewhere."""
    other = DataOptions(tokens=600, max_user_tokens=24, max_new_tokens=12, batch_size=batch_size)
    assert draw(inferencer, tmp_path / "a") == draw(inferencer, tmp_path / "b", other)


def test_the_seed_matters(inferencer: Inferencer, tmp_path: Path):
    """Two seeds with the same samples are one seed."""
    other = DataOptions(tokens=600, max_user_tokens=24, max_new_tokens=12, batch_size=4, seed=1)
    assert draw(inferencer, tmp_path / "a") != draw(inferencer, tmp_path / "b", other)


def test_killed_and_resumed(inferencer: Inferencer, tmp_path: Path):
    """A run that is killed, in the middle of a line even, must end with the file it would have written."""

    def kill(tokens: int) -> None:
        if tokens > 200:
            raise KilledError

    with pytest.raises(KilledError):
        draw(inferencer, tmp_path / "killed", on_progress=kill)
    with (tmp_path / "killed" / TOKENS_NAME).open("a") as file:
        file.write('{"index":99,"tokens":[1,2')
    assert draw(inferencer, tmp_path / "killed") == draw(inferencer, tmp_path / "whole")


def test_more_tokens_go_on(inferencer: Inferencer, tmp_path: Path):
    """Asking for more must keep what is there."""
    fewer = DataOptions(tokens=300, max_user_tokens=24, max_new_tokens=12, batch_size=4)
    before = draw(inferencer, tmp_path / "a", fewer)
    after = draw(inferencer, tmp_path / "a")
    assert after.startswith(before) and len(after) > len(before)
    assert after == draw(inferencer, tmp_path / "b")
    assert draw(inferencer, tmp_path / "a", fewer) == after


def test_prompts_are_answered_at_every_temperature(inferencer: Inferencer, tmp_path: Path):
    """With an even number of prompts, taking temperatures in turn would tie each prompt to one of them."""
    prompts = ["Hello world", "The quick brown fox"]
    draw(inferencer, tmp_path, prompts=prompts)
    samples = read_samples(tmp_path)
    seen = {(sample.tokens[: sample.prompt_length], sample.temperature) for sample in samples}
    wanted = {
        (tuple(inferencer.encode(prompt)), temperature) for prompt in prompts for temperature in (0.0, 1.0)
    }
    assert seen == wanted


@pytest.mark.parametrize(
    "changes",
    [{"seed": 1}, {"temperatures": (1.0,)}, {"max_new_tokens": 11}],
    ids=lambda value: next(iter(value)),
)
def test_other_settings_need_another_folder(inferencer: Inferencer, tmp_path: Path, changes: dict):
    """Half a file of one seed and half of another is the data of neither."""
    draw(inferencer, tmp_path)
    settings = {"tokens": 600, "max_user_tokens": 24, "max_new_tokens": 12, **changes}
    with pytest.raises(ParameterError, match=next(iter(changes))):
        draw(inferencer, tmp_path, DataOptions(**settings))


def test_other_prompts_need_another_folder(inferencer: Inferencer, tmp_path: Path):
    """Prompts determine the samples as much as the seed does."""
    draw(inferencer, tmp_path, prompts=["Hello"])
    with pytest.raises(ParameterError, match="prompts"):
        draw(inferencer, tmp_path, prompts=["Hello there"])


def test_a_silent_target_is_an_error(inferencer: Inferencer, tmp_path: Path):
    """A target that never ends a question would be asked for ever."""
    with pytest.raises(ExecutionError, match="give it prompts"):
        draw(inferencer, tmp_path, DataOptions(tokens=100, max_user_tokens=1, batch_size=4))


@pytest.mark.parametrize(
    "wrong", [{"tokens": 0}, {"temperatures": ()}, {"temperatures": (-1.0,)}, {"batch_size": 0}, {"seed": -1}]
)
def test_bad_options(wrong: dict):
    """What cannot be drawn must be refused before hours are spent."""
    with pytest.raises(ForedraftError):
        DataOptions(**wrong)


def test_a_broken_line_is_named(inferencer: Inferencer, tmp_path: Path):
    """A damaged file must say where."""
    draw(inferencer, tmp_path)
    path = tmp_path / TOKENS_NAME
    lines = path.read_bytes().split(b"\n")
    lines[1] = b'{"index": 1}'
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(ParameterError, match="line 2"):
        read_samples(tmp_path)
