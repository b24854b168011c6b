"""Exactly once: what each proposer was last told, so that a repeated command is answered and not applied again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

SESSIONS_MAX = 10_000


class Sessions:
    """The last (sequence number, index, answer) of each session.

    Part of the replicated state. At most 10,000 sessions: beyond that the one used least recently, counted in log
    entries, is forgotten. A proposer therefore repeats a command soon or not at all. *touched* is told of each that
    is new, other or gone.
    """

    def __init__(self, touched: Callable[[str], None]) -> None:
        self._touched = touched
        self.answers: OrderedDict[str, tuple[int, int, dict[str, Any]]] = OrderedDict()

    def last(self, session: str) -> tuple[int, int, dict[str, Any]] | None:
        """The last answer of a session, with its sequence number and index; ``None`` when it is not known."""
        return self.answers.get(session)

    def used(self, session: str) -> None:
        """Note that the session showed up in the log again."""
        self.answers.move_to_end(session)

    def remember(self, session: str, seq: int, index: int, answer: dict[str, Any]) -> None:
        """Remember the answer to command *seq*."""
        self.answers[session] = (seq, index, answer)
        self.answers.move_to_end(session)
        self._touched(session)
        if len(self.answers) > SESSIONS_MAX:
            self._touched(self.answers.popitem(last=False)[0])

    def dump(self) -> list[Any]:
        """Plain values, in order of last use."""
        return [[session, *last] for session, last in self.answers.items()]

    def load(self, dumped: Iterable[Any]) -> None:
        """Load what ``dump`` gave; for a new, empty object."""
        for session, seq, index, answer in dumped:
            self.answers[session] = (seq, index, answer)
