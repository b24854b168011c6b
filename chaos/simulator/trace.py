"""What happened in a run, as lines a person reads: time, who, what."""

from __future__ import annotations

from collections import deque

from .clock import SECOND, Clock

LINES_MAX = 200_000


class RunTrace:
    """The last 200,000 lines, kept only when *keep* is set: text costs more than the run itself."""

    def __init__(self, clock: Clock, keep: bool) -> None:
        self._clock = clock
        self.keep = keep
        self._lines: deque[tuple[int, str, str]] = deque(maxlen=LINES_MAX)

    def add(self, who: str, what: str) -> None:
        """Add a line. Callers look at ``keep`` first where making the text costs."""
        if self.keep:
            self._lines.append((self._clock.now_us, who, what))

    def lines(self, last: int | None = None) -> list[str]:
        """All lines, or the *last* ones."""
        chosen = list(self._lines)[-last:] if last else list(self._lines)
        return [f"{when_us / SECOND:10.6f}  {who:<10}  {what}" for when_us, who, what in chosen]
