"""What those who connect to the join port did, in at most so many lines a minute, whoever knocks: the others are
counted."""

from __future__ import annotations

LINES_MAX = 5
PERIOD_S = 60.0


class JoinLog:
    """Bounds the log of the join port: says which lines to write. No clock of its own."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._lines = 0
        self._unsaid = 0

    def note(self, now_s: float, text: str) -> str | None:
        """The line to write for *text*, with how many were left out before it; ``None``: it is one of those."""
        if now_s - self._began >= PERIOD_S:
            self._began, self._lines = now_s, 0
        if self._lines >= LINES_MAX:
            self._unsaid += 1
            return None
        self._lines += 1
        unsaid, self._unsaid = self._unsaid, 0
        return f"{text} (and {unsaid} more of such before it)" if unsaid else text
