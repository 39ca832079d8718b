"""Finding stop strings in a text that arrives in pieces."""

from __future__ import annotations

from foredraft.errors import ParameterError


class StopStringMatcher:
    """Passes text on up to the first stop string, holding back only what may be the start of one.

    The stop string that starts earliest in the whole text wins, however the text is cut into pieces; of two
    that start at the same place it is the shorter, which is complete first. (Where one stop string lies
    inside another, as "bc" in "abcd", a complete "bc" after an "a" is therefore not decided before it is
    clear whether "abcd" follows.)
    """

    def __init__(self, stops: tuple[str, ...] = ()) -> None:
        if any(not stop for stop in stops):
            raise ParameterError("a stop string must not be empty")
        self._stops = tuple(sorted(set(stops), key=len))
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that was found; None so far."""
        return self._matched

    def push(self, text: str) -> str:
        """Append text; returns what is safe to show. After a match everything is dropped."""
        if self._matched is not None:
            return ""
        self._held += text
        partial = self._start_of_partial()
        start, stop = self._first_match()
        if stop is not None and start <= partial:
            return self._end_at(start, stop)
        safe, self._held = self._held[:partial], self._held[partial:]
        return safe

    def flush(self) -> str:
        """The held-back text at the end; it may still settle a match (see the class)."""
        start, stop = self._first_match()
        if stop is not None:
            return self._end_at(start, stop)
        rest, self._held = self._held, ""
        return rest

    def _end_at(self, start: int, stop: str) -> str:
        safe, self._held, self._matched = self._held[:start], "", stop
        return safe

    def _first_match(self) -> tuple[int, str | None]:
        """Start of the earliest stop string in the held text (its length if none), and that string."""
        best, found = len(self._held), None
        for stop in self._stops:
            start = self._held.find(stop, 0, best + len(stop) - 1)
            if start >= 0:
                best, found = start, stop
        return best, found

    def _start_of_partial(self) -> int:
        """Start of the longest suffix of the held text that is a proper prefix of a stop string."""
        longest = max(map(len, self._stops), default=0)
        for start in range(max(0, len(self._held) - longest + 1), len(self._held)):
            suffix = self._held[start:]
            if any(len(stop) > len(suffix) and stop.startswith(suffix) for stop in self._stops):
                return start
        return len(self._held)
