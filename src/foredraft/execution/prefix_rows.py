"""`PrefixRows`: which sequence each row of a runner belongs to, and which tokens its cache holds.

A row that is given back keeps its contents. A later sequence that starts with the same tokens (the next
turn of a chat, another sample of the same prompt) takes them over instead of computing them again.
"""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.execution.runner import ModelRunner, RowInput, StepOutput


class PrefixRows:
    """Hands out rows of `runner` and keeps the tokens cached in each.

    Args:
        runner: the model; nobody else may step it or truncate its rows.
        prefill_tokens: most tokens of one row in one prefill forward, which bounds memory.
    """

    def __init__(self, runner: ModelRunner, *, prefill_tokens: int = 512) -> None:
        self.runner = runner
        self._prefill_tokens = prefill_tokens
        self._tokens: list[list[int]] = []
        self._in_use: set[int] = set()

    def reserve(self, num_rows: int, capacity: int) -> None:
        """Make room for so many more rows in use; taken one by one, each would copy the whole cache."""
        self.runner.reserve(len(self._in_use) + num_rows, capacity)

    def acquire(self, tokens: Sequence[int], capacity: int) -> int:
        """A row for `tokens`, holding as much of them as any row already has.

        At least the last token is left uncached, because a step needs something to feed.

        Args:
            tokens: what the sequence starts with.
            capacity: tokens that the row must be able to hold.
        """
        limit = len(tokens) - 1
        shared = [min(limit, common_prefix_length(cached, tokens)) for cached in self._tokens]
        free = [row for row in range(len(self._tokens)) if row not in self._in_use]
        row = max(free, key=lambda candidate: shared[candidate], default=len(self._tokens))
        if row == len(self._tokens):
            self._tokens.append([])
            shared.append(0)
        self.runner.reserve(len(self._tokens), capacity)
        source = max(range(len(shared)), key=lambda candidate: shared[candidate])
        if shared[source] > shared[row]:
            # Interrupted in between, the row must not claim tokens that are no longer there.
            self._tokens[row] = []
            self.runner.copy(source, row, shared[source])
            self._tokens[row] = list(tokens[: shared[source]])
        else:
            self.truncate(row, shared[row])
        self._in_use.add(row)
        return row

    def release(self, row: int) -> None:
        """Give the row back; its contents stay until the row is taken for something else."""
        self._in_use.discard(row)

    def cached_length(self, row: int) -> int:
        """Tokens that the row holds."""
        return len(self._tokens[row])

    def truncate(self, row: int, length: int) -> None:
        """Forget the row's tokens from `length` on."""
        # In this order: an interruption may leave tokens cached but unrecorded, never the reverse.
        del self._tokens[row][length:]
        if length < self.runner.length(row):
            self.runner.truncate(row, length)

    def align(self, row: int, tokens: Sequence[int]) -> None:
        """Forget whatever the row holds that is not a prefix of `tokens`."""
        self.truncate(row, common_prefix_length(self._tokens[row], tokens))

    def prefill(self, sequences: dict[int, Sequence[int]]) -> None:
        """Cache all but the last token of each row's sequence, many rows to a forward."""
        pending = {row: list(tokens[self.cached_length(row) : -1]) for row, tokens in sequences.items()}
        pending = {row: tokens for row, tokens in pending.items() if tokens}
        while pending:
            self.step([RowInput(row, tokens[: self._prefill_tokens], 0) for row, tokens in pending.items()])
            pending = {
                row: tokens[self._prefill_tokens :]
                for row, tokens in pending.items()
                if len(tokens) > self._prefill_tokens
            }

    def step(self, inputs: Sequence[RowInput]) -> StepOutput:
        """One forward; the rows then hold the fed tokens as well."""
        output = self.runner.step(inputs)
        for row_input in inputs:
            self._tokens[row_input.row] += row_input.tokens
        return output

    def keep(self, row: int, start: int, kept: Sequence[int]) -> None:
        """After a tree step fed from `start` on, keep the nodes `kept` and forget the others."""
        fed = self._tokens[row][start:]
        self.runner.keep(row, start, kept)
        self._tokens[row][start:] = [fed[node] for node in kept]


def common_prefix_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    length = min(len(left), len(right))
    # Comparing slices runs in C; nearly always one is a prefix of the other but for a few last tokens.
    low = 0
    while low < length:
        middle = (low + length + 1) // 2
        if list(left[low:middle]) == list(right[low:middle]):
            low = middle
        else:
            length = middle - 1
    return low
