"""Exactly once: what each proposer was last told, so that a repeated command is answered and not applied again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

SESSIONS_MAX = 10_000


class Sessions:
    """The last (sequence number, index, answer) of each session.

    Part of the replicated state. At most 10,000 sessions: beyond that the one used least recently, counted in log
    entries, is forgotten. A proposer therefore repeats a command soon or not at all.
    """

    def __init__(self) -> None:
        self._last: OrderedDict[str, tuple[int, int, dict[str, Any]]] = OrderedDict()

    def last(self, session: str) -> tuple[int, int, dict[str, Any]] | None:
        """What a session was told last, if it is known."""
        return self._last.get(session)

    def used(self, session: str) -> None:
        """The session showed up again in the log."""
        self._last.move_to_end(session)

    def told(self, session: str, seq: int, index: int, answer: dict[str, Any]) -> None:
        """Remember the answer to command *seq*."""
        self._last[session] = (seq, index, answer)
        self._last.move_to_end(session)
        if len(self._last) > SESSIONS_MAX:
            self._last.popitem(last=False)

    def dump(self) -> list[Any]:
        """Plain values, in order of last use."""
        return [[session, *last] for session, last in self._last.items()]

    @classmethod
    def load(cls, dumped: list[Any]) -> Sessions:
        """What ``dump`` gave."""
        sessions = cls()
        for session, seq, index, answer in dumped:
            sessions._last[session] = (seq, index, answer)
        return sessions
