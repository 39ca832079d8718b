"""From accepted tokens to text that may be shown: detokenisation and stop strings joined."""

from __future__ import annotations

from foredraft.text.detokenizer import IncrementalDetokenizer
from foredraft.text.stop_strings import StopStringMatcher
from foredraft.text.tokenizer import TextTokenizer


class TextStream:
    """The output text of one request; what it gives out is never changed afterwards.

    `take` repeatedly and `finish` at the end: their results joined are `text`.
    """

    def __init__(
        self, tokenizer: TextTokenizer, stops: tuple[str, ...] = (), skip_special_tokens: bool = True
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens)
        self._matcher = StopStringMatcher(stops)
        self._pieces: list[str] = []
        self._taken = 0  # pieces given out already

    def push(self, token_id: int) -> bool:
        """Append one token; True when it completed a stop string. Tokens after that are ignored (False)."""
        if self.stopped:
            return False
        self._pieces.append(self._matcher.push(self._detokenizer.push(token_id)))
        return self.stopped

    def take(self) -> str:
        """The text that became safe to show since the last call."""
        new = "".join(self._pieces[self._taken :])
        self._taken = len(self._pieces)
        return new

    def finish(self) -> str:
        """Everything not taken yet, now that no token follows; may itself complete a stop string."""
        if not self.stopped:
            self._pieces.append(self._matcher.push(self._detokenizer.flush()))
            self._pieces.append(self._matcher.flush())
        return self.take()

    @property
    def text(self) -> str:
        """The whole text that is safe to show so far, taken or not."""
        return "".join(self._pieces)

    @property
    def stopped(self) -> bool:
        """True once a stop string was found."""
        return self._matcher.matched is not None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text; None so far."""
        return self._matcher.matched
