"""Training: drafts become good, killed runs leave no trace, and what is saved is an ordinary model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from distill.markov import fitted_target
from foredraft import Inferencer, SamplingParams, SpeculationStats, SpeculativeInferencer
from foredraft.distill import training as training_module
from foredraft.distill.batches import batches, split_held_out
from foredraft.distill.checkpoint import CHECKPOINT_NAME, read_log
from foredraft.distill.corpus import Sample, read_samples
from foredraft.distill.data import DataOptions, generate_data
from foredraft.distill.losses import LossMix
from foredraft.distill.objective import DraftModelObjective, Objective, Score
from foredraft.distill.student import make_student
from foredraft.distill.training import TrainingOptions, train
from foredraft.errors import ExecutionError, ParameterError
from tiny_models import llama, random_tokens, uncached_logits

OPTIONS = TrainingOptions(
    epochs=4, learning_rate=1e-2, batch_tokens=512, batches_per_step=1, max_length=64, warmup=0.1
)


class KilledError(Exception):
    pass


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    """The fitted target's own text, from every pair of states."""
    folder = tmp_path_factory.mktemp("data")
    inferencer = Inferencer(fitted_target(), max_batch_size=64, verify_batch_size=64)
    prompts = [[3 + first, 3 + second] for first in range(24) for second in range(24)]
    options = DataOptions(tokens=12_000, max_new_tokens=24, batch_size=64)
    generate_data(inferencer, folder, options, prompts=prompts)
    return read_samples(folder)


def untrained(mix: str = "forward-kl=1,tv=1") -> DraftModelObjective:
    return DraftModelObjective(fitted_target(), make_student(fitted_target(), [0]), LossMix.parse(mix))


def run(
    objective: Objective, samples: list[Sample], folder: Path, options: TrainingOptions = OPTIONS, **more
) -> Score | None:
    return train(objective, *split_held_out(samples), folder, options, identity={"target": "markov"}, **more)


def weights(objective: Objective) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in objective.module.state_dict().items()}


@pytest.mark.parametrize("mix", ["forward-kl", "reverse-kl", "tv", "acceptance", "forward-kl=1,tv=1"])
def test_held_out_acceptance(samples: list[Sample], tmp_path: Path, mix: str):
    """The draft must reach 0.8 of the ceiling, which is 1: every law overlaps fully with itself."""
    objective = untrained(mix)
    (batch,) = batches(split_held_out(samples)[1], batch_tokens=10**6, max_length=64)
    before = objective.loss(batch)[1]
    assert before.acceptance()[0] < 0.65
    score = run(objective, samples, tmp_path)
    assert score is not None and score.positions == before.positions
    assert score.acceptance()[0] >= 0.8
    assert score.agreement()[0] >= 0.8
    epochs = [record for record in read_log(tmp_path) if "epoch" in record]
    assert [record["epoch"] for record in epochs] == [0, 1, 2, 3]
    assert epochs[-1]["held_out_acceptance"] == score.acceptance()


@pytest.mark.parametrize("end", ["killed", "cancelled", "killed at the end of an epoch"])
def test_resumed_run_ends_with_the_same_weights(
    samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
):
    """Weights, optimizer, order and log: whatever is not restored shows in the last bit."""
    options = TrainingOptions(epochs=2, batch_tokens=512, batches_per_step=2, max_length=64)
    few = samples[:240]
    whole = untrained()
    seen: list[int] = []
    run(whole, few, tmp_path / "whole", options, on_step=lambda report: seen.append(report.step))
    last = seen[-1]
    assert last >= 10
    stop_at = last // 2 if "epoch" in end else last // 2 + 2
    monkeypatch.setattr(training_module, "_CHECKPOINT_SECONDS", 0.0 if "epoch" in end else 10.0**9)

    def kill(report: training_module.StepReport) -> None:
        if report.step == stop_at:
            raise KilledError

    first = untrained()
    if end == "cancelled":
        steps: list[int] = []
        assert run(
            first, few, tmp_path / "cut", options,
            on_step=lambda report: steps.append(report.step), cancelled=lambda: len(steps) == stop_at,
        ) is None  # fmt: skip
    else:
        with pytest.raises(KilledError):
            run(first, few, tmp_path / "cut", options, on_step=kill)
    again: list[int] = []
    second = untrained()
    run(second, few, tmp_path / "cut", options, on_step=lambda report: again.append(report.step))
    assert 1 < again[0] <= stop_at + 1 and again[-1] == last
    for name, value in weights(whole).items():
        assert torch.equal(weights(second)[name], value), name
    assert read_log(tmp_path / "cut") == read_log(tmp_path / "whole")


def test_a_finished_run_is_not_trained_on(samples: list[Sample], tmp_path: Path):
    """The same command again must give the same draft."""
    options = TrainingOptions(epochs=1, batch_tokens=512, max_length=64)
    first, second = untrained(), untrained()
    score = run(first, samples[:100], tmp_path, options)
    steps: list[int] = []
    again = run(second, samples[:100], tmp_path, options, on_step=lambda report: steps.append(report.step))
    assert steps == [] and again == score
    assert all(torch.equal(weights(second)[name], value) for name, value in weights(first).items())


@pytest.mark.parametrize("what", ["option", "identity", "data", "broken"])
def test_another_run_needs_another_folder(samples: list[Sample], tmp_path: Path, what: str):
    """A run that goes on with other options, or from half a file, is the run of nobody."""
    options = TrainingOptions(epochs=1, batch_tokens=512, max_length=64)
    run(untrained(), samples[:60], tmp_path, options)
    parts = split_held_out(samples[:70] if what == "data" else samples[:60])
    if what == "option":
        options = TrainingOptions(epochs=1, batch_tokens=512, max_length=64, learning_rate=1e-3)
    identity = {"target": "other" if what == "identity" else "markov"}
    path = tmp_path / CHECKPOINT_NAME
    if what == "broken":
        path.write_bytes(path.read_bytes()[:200])
    mention = {"option": "learning_rate", "identity": "target", "data": "data", "broken": "delete it"}[what]
    with pytest.raises(ParameterError, match=mention) as caught:
        train(untrained(), *parts, tmp_path, options, identity=identity)
    assert "\n" not in str(caught.value)


def test_diverged(samples: list[Sample], tmp_path: Path):
    """Weights that are no numbers must not be saved as a draft."""
    objective = untrained()
    with torch.no_grad():
        next(objective.module.parameters()).fill_(float("nan"))
    with pytest.raises(ExecutionError, match="diverged"):
        run(objective, samples[:60], tmp_path)


@pytest.mark.parametrize("changes", [{"epochs": 0}, {"learning_rate": 0.0}, {"warmup": 1.0}])
def test_bad_options(changes: dict):
    """Refused before the target is loaded."""
    with pytest.raises(ParameterError, match=next(iter(changes))):
        TrainingOptions(**changes)


def test_learning_rate():
    """Rises to the highest rate, then falls; never zero at the end."""
    options = TrainingOptions(learning_rate=1.0, warmup=0.1)
    assert options.rate(0.05) == pytest.approx(0.5)
    assert options.rate(0.1) == pytest.approx(1.0)
    assert options.rate(0.55) == pytest.approx(0.05 + 0.95 * 0.5)
    assert options.rate(1.0) == pytest.approx(0.05)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_saved_draft_is_an_ordinary_model(tmp_path: Path, tied: bool, dtype: torch.dtype):
    """Whoever reads Hugging Face folders must get the trained weights from this one."""
    target = llama(seed=0, tie_word_embeddings=tied)
    objective = DraftModelObjective(target, make_student(target, [1]), LossMix.parse("tv"), save_dtype=dtype)
    objective.save(tmp_path)
    text = random_tokens(20, seed=3)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.dtype == dtype
    tolerance = 1e-6 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(
        uncached_logits(loaded.float(), text),
        uncached_logits(objective.module, text),
        rtol=tolerance,
        atol=tolerance,
    )
    assert objective.module.dtype == torch.float32


def test_trained_draft_drafts(samples: list[Sample], tmp_path: Path):
    """The engine must accept what training promised, and the text must stay the target's."""
    objective = untrained()
    run(objective, samples, tmp_path / "training")
    objective.save(tmp_path)
    plain = Inferencer(fitted_target())
    speculative = SpeculativeInferencer(fitted_target(), tmp_path, num_draft_tokens=4)
    prompts = [[3 + state, 4 + state] for state in range(8)]
    greedy = SamplingParams(max_new_tokens=40)
    for one, two in zip(
        plain.inference(prompts, greedy), speculative.inference(prompts, greedy), strict=True
    ):
        assert one.token_ids == two.token_ids
    sampled = [sample for sample in split_held_out(samples)[1] if sample.temperature == 1.0]
    (batch,) = batches(sampled, batch_tokens=10**6, max_length=64)
    with torch.no_grad():
        promised = objective.loss(batch)[1].acceptance()[0]
    one_by_one = SpeculativeInferencer(fitted_target(), tmp_path, num_draft_tokens=1)
    law = SamplingParams(temperature=1.0, seed=0, n=8, max_new_tokens=24)
    total = SpeculationStats()
    for generation in one_by_one.inference([list(sample.tokens[:2]) for sample in sampled], law):
        total.add(generation.stats)
    assert total.drafted > 800
    assert total.acceptance_rate == pytest.approx(promised, abs=0.04)
