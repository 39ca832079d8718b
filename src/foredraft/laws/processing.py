"""From raw logits to the processed law that is sampled from.

`LawProcessor` is the single place where penalties, bans, temperature and truncation are applied. Plain
decoding, draft models and verification all use it, so that the law which speculation verifies against is
by construction the law which plain decoding samples from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from foredraft.errors import ExecutionError
from foredraft.laws.repetition import RepeatedNgrams, banned_by_bad_words, output_counts
from foredraft.laws.truncation import truncated_law
from foredraft.params import SamplingParams

LogitsProcessor = Callable[[torch.LongTensor, torch.FloatTensor], torch.FloatTensor]
"""A Hugging Face logits processor: (input ids `[1, length]`, scores `[1, vocab]`) -> scores."""


class LawProcessor:
    """Processed next-token laws of one request.

    The order is that of Hugging Face transformers: logit bias, repetition penalty, presence and frequency
    penalties, no-repeat-ngram, bad words, minimum length, caller's processors, temperature, top-k, top-p,
    min-p. All arithmetic is float32.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        prompt_length: int,
        end_token_ids: Sequence[int] = (),
        logits_processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        self.params = params
        self._prompt_length = prompt_length
        self._end_token_ids = sorted({*end_token_ids, *params.stop_token_ids})
        self._logits_processors = tuple(logits_processors)
        self._ngrams = RepeatedNgrams(params.no_repeat_ngram_size) if params.no_repeat_ngram_size else None
        self._reads_prefix = bool(
            params.repetition_penalty != 1.0
            or params.presence_penalty
            or params.frequency_penalty
            or params.no_repeat_ngram_size
            or params.bad_words
            or params.min_new_tokens
            or self._logits_processors
        )

    def logits(
        self, raw: torch.Tensor, prefix: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> torch.Tensor:
        """Logits after penalties and bans, before temperature.

        Args:
            raw: float `[n, vocab]`.
            prefix: the committed tokens, prompt included.
            continuations: for each of the n rows, the drafted tokens between the prefix and that row; the
                row's law is conditioned on `prefix + continuation`.

        Returns:
            float32 `[n, vocab]`; a new tensor wherever anything is changed.

        Raises:
            ExecutionError: if a logit is NaN or +inf, or every token of a row is forbidden.
        """
        scores = raw.float()
        if self.params.logit_bias:
            scores = self._add_bias(scores)
        if self._reads_prefix:
            scores = torch.stack(
                [
                    self._with_prefix(row, prefix, continuation)
                    for row, continuation in zip(scores, continuations, strict=True)
                ]
            )
        best = scores.amax(dim=-1)
        if bool((torch.isnan(best) | (best == torch.inf)).any()):
            raise ExecutionError(
                "logits are NaN or +inf; check the weights, dtype, bias and logits processors"
            )
        if bool((best == -torch.inf).any()):
            raise ExecutionError("bad words, bias or a logits processor forbid every token of the vocabulary")
        return scores

    def laws(
        self, raw: torch.Tensor, prefix: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> torch.Tensor:
        """Processed laws float32 `[n, vocab]`, each row summing to one. Arguments as for `logits`.

        A greedy request's law is one-hot on the argmax.
        """
        scores = self.logits(raw, prefix, continuations)
        if self.params.is_greedy:
            return torch.nn.functional.one_hot(scores.argmax(dim=-1), scores.shape[-1]).float()
        return truncated_law(scores, self.params)

    def greedy_tokens(
        self, raw: torch.Tensor, prefix: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> torch.Tensor:
        """Argmax int64 `[n]` of the processed logits; ties go to the lowest id."""
        return self.logits(raw, prefix, continuations).argmax(dim=-1)

    def _add_bias(self, scores: torch.Tensor) -> torch.Tensor:
        biased = _ids(self.params.logit_bias.keys(), scores)
        bias = [self.params.logit_bias[token_id] for token_id in biased.tolist()]
        return scores.index_add(-1, biased, scores.new_tensor(bias).expand(len(scores), -1))

    def _with_prefix(
        self, scores: torch.Tensor, prefix: Sequence[int], continuation: Sequence[int]
    ) -> torch.Tensor:
        scores = scores.clone()
        params = self.params
        tokens = [*prefix, *continuation]
        if params.repetition_penalty != 1.0:
            _penalise_repetition(scores, tokens, params.repetition_penalty)
        if params.presence_penalty or params.frequency_penalty:
            token_ids, counts = output_counts(tokens[self._prompt_length :], scores)
            scores[token_ids] -= params.presence_penalty + params.frequency_penalty * counts
        if self._ngrams is not None:
            scores[_ids(self._ngrams.banned(prefix, continuation), scores)] = -torch.inf
        if params.bad_words:
            scores[_ids(banned_by_bad_words(params.bad_words, tokens), scores)] = -torch.inf
        if len(tokens) - self._prompt_length < params.min_new_tokens:
            scores[_ids(self._end_token_ids, scores)] = -torch.inf
        for processor in self._logits_processors:
            input_ids = torch.tensor([tokens], dtype=torch.int64, device=scores.device)
            scores = processor(input_ids, scores.unsqueeze(0)).squeeze(0).float()  # pyright: ignore[reportArgumentType]
        return scores


def _penalise_repetition(scores: torch.Tensor, tokens: Sequence[int], penalty: float) -> None:
    seen = _ids(set(tokens), scores)
    value = scores[seen]
    scores[seen] = torch.where(value < 0, value * penalty, value / penalty)


def _ids(token_ids: Iterable[int], scores: torch.Tensor) -> torch.Tensor:
    vocab = scores.shape[-1]
    inside = sorted(token_id for token_id in token_ids if 0 <= token_id < vocab)
    return torch.tensor(inside, dtype=torch.int64, device=scores.device)
