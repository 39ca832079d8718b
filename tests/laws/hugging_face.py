"""The same processing by Hugging Face's own processors and warpers, one row at a time."""

from __future__ import annotations

from collections import Counter

import torch
from transformers.generation import logits_process

from foredraft.params import SamplingParams


class AdditivePenalties:
    """Presence and frequency penalties by their formula; transformers has neither."""

    def __init__(self, params: SamplingParams, prompt_length: int) -> None:
        self._params = params
        self._prompt_length = prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        for token, count in Counter(input_ids[0, self._prompt_length :].tolist()).items():
            scores[0, token] -= self._params.presence_penalty + count * self._params.frequency_penalty
        return scores


def penalties(params: SamplingParams, prompt_length: int, end_token_ids: list[int]) -> list:
    """Everything before temperature, in the order of `GenerationMixin._get_logits_processor`."""
    chain: list = []
    if params.logit_bias:
        bias = [[[token], value] for token, value in params.logit_bias.items()]
        chain.append(logits_process.SequenceBiasLogitsProcessor(bias))
    if params.repetition_penalty != 1.0:
        chain.append(logits_process.RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    chain.append(AdditivePenalties(params, prompt_length))
    if params.no_repeat_ngram_size:
        chain.append(logits_process.NoRepeatNGramLogitsProcessor(params.no_repeat_ngram_size))
    if params.bad_words:
        chain.append(logits_process.NoBadWordsLogitsProcessor([list(word) for word in params.bad_words]))
    if params.min_new_tokens:
        end = [*end_token_ids, *params.stop_token_ids]
        chain.append(
            logits_process.MinNewTokensLengthLogitsProcessor(prompt_length, params.min_new_tokens, end)
        )
    return chain


def warpers(params: SamplingParams) -> list:
    """Temperature and truncation, in the same order."""
    chain: list = []
    if params.temperature != 1.0:
        chain.append(logits_process.TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        chain.append(logits_process.TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        chain.append(logits_process.TopPLogitsWarper(params.top_p))
    if params.min_p > 0.0:
        chain.append(logits_process.MinPLogitsWarper(params.min_p))
    return chain


def law(chain: list, tokens: list[int], logits: torch.Tensor) -> torch.Tensor:
    """float32 `[vocab]`: softmax of `logits` after `chain`, conditioned on `tokens`."""
    return run(chain, tokens, logits).softmax(-1)


def run(chain: list, tokens: list[int], logits: torch.Tensor) -> torch.Tensor:
    """float32 `[vocab]`: `logits` after `chain`, conditioned on `tokens`."""
    scores = logits.float().unsqueeze(0)
    for step in chain:
        scores = step(torch.tensor([tokens]), scores)
    return scores[0]
