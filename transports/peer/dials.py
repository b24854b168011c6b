"""The order in which dials begin: of very many hosts, so many at a time.

A handshake costs milliseconds of processor on either side. A thousand begun at once would all take as long as all of
them together, longer than a handshake may, and the loop would get to little else meanwhile. A dial that nobody answers
costs nothing, so its place is free again after ``SILENT_S``: hosts that are down do not keep others waiting for long.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

SILENT_S = 0.25


class Dialled(Protocol):
    """What ``Dials`` asks of a connection under way."""

    bytes_in: int


D = TypeVar("D", bound=Dialled)
W = TypeVar("W")


class Dials(Generic[W, D]):
    """The dials that wait, of type *W*, and the connections under way, *D*. Bound: recorded hosts on two lanes wait."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._waiting: deque[W] = deque()
        self._under_way: dict[D, float] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, what: W) -> None:
        """Have *what* dialled in its turn."""
        self._waiting.append(what)

    def next(self, now_s: float) -> W | None:
        """The next one to dial; ``None`` while it has to wait, or there is none."""
        if not self._waiting:
            return None
        if len(self._under_way) >= self._at_once:
            silent = [dial for dial, at in self._under_way.items() if not dial.bytes_in and now_s - at >= SILENT_S]
            for dial in silent:
                del self._under_way[dial]
            if not silent:
                return None
        return self._waiting.popleft()

    def began(self, dial: D, now_s: float) -> None:
        """Take note of a connection under way."""
        self._under_way[dial] = now_s

    def over(self, dial: D) -> None:
        """Take note that a connection became a link, or failed; harmless for others."""
        self._under_way.pop(dial, None)
