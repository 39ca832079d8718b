"""A check at load that a runner's cached, ragged, rolled-back steps equal one plain forward.

Architectures differ in what they hide in their cache (recurrent states, shared layers, position biases).
Rather than trust a list of names, foredraft runs a dozen tokens through the runner in the way the engine
will, rejections included, and compares the logits with the model's own uncached forward.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from foredraft.errors import UnsupportedModelError
from foredraft.execution.runner import ModelRunner, RowInput

_LENGTH = 12
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Largest difference allowed, relative to the largest logit."""


@torch.inference_mode()
def check_rollback(runner: ModelRunner, model: PreTrainedModel) -> None:
    """Raise UnsupportedModelError unless the runner's steps agree with the model's own forward."""
    generator = torch.Generator().manual_seed(0)
    length = min(_LENGTH, runner.context_length)
    tokens = torch.randint(0, runner.vocab_size, (2, length), generator=generator)
    try:
        expected = model(input_ids=tokens.to(runner.device), use_cache=False).logits.float()
        measured = _in_pieces(runner, tokens.tolist())
    except Exception as error:
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be run with a cache of ragged rows "
            f"({type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]})"
        ) from error
    scale = float(expected.abs().max()) or 1.0
    difference = float((measured - expected[:, -measured.shape[1] :]).abs().max()) / scale
    if not difference <= _TOLERANCE.get(model.dtype, 1e-1):
        raise UnsupportedModelError(
            f"{type(model).__name__} gives different logits after its cache is rolled back "
            f"(relative difference {difference:.2g}); verifying blocks would change its text"
        )


def _in_pieces(runner: ModelRunner, tokens: list[list[int]]) -> torch.Tensor:
    """Logits `[2, last third, vocab]` after a prefill, a wrong guess that is rolled back, and a block."""
    length = len(tokens[0])
    first, second = length // 3, 2 * length // 3
    runner.reserve(2, length)
    wrong = [tokens[0][0]] * (length - second)
    runner.step([RowInput(0, tokens[0][:first], 0), RowInput(1, tokens[1][: first + 1], 0)])
    runner.step(
        [RowInput(0, tokens[0][first:second] + wrong, 1), RowInput(1, tokens[1][first + 1 : second], 1)]
    )
    runner.truncate(0, second)
    logits = runner.step([RowInput(row, tokens[row][second:], length - second) for row in range(2)]).logits
    for row in range(2):
        runner.truncate(row, 0)
    return logits.view(2, length - second, -1)
