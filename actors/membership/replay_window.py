"""Replay window of one sender: which of its datagrams came already, and which are too old to tell.

A bitmap that slides, as IPsec has it (RFC 4303, 3.4.3; RFC 6479): datagrams overtake each other, so an exact order
cannot be asked for. 1,024 wide: a sender at its busiest sends some hundred a second, and those that are overtaken by
ten seconds' worth are of no use.
"""

from __future__ import annotations

WINDOW = 1_024
_ALL = (1 << WINDOW) - 1


class ReplayWindow:
    """Datagrams of one sender by its *life* (the number of its start) and their counter, each taken at most once."""

    __slots__ = ("_seen", "_top", "life")

    def __init__(self, life: int) -> None:
        self.life = life
        self._top = -1
        self._seen = 0

    def fresh(self, life: int, counter: int) -> bool:
        """Whether that datagram may be one that has not come: to be asked before the seal is looked at."""
        if life != self.life:
            return life > self.life
        behind = self._top - counter
        return behind < 0 or (behind < WINDOW and not self._seen >> behind & 1)

    def mark(self, life: int, counter: int) -> None:
        """That datagram came, and its seal is whole. One of a later life begins anew: its counter does, too."""
        if life != self.life:
            self.life, self._top, self._seen = life, -1, 0
        ahead = counter - self._top
        if ahead > 0:
            self._seen = (self._seen << ahead | 1) & _ALL if ahead < WINDOW else 1
            self._top = counter
        else:
            self._seen |= 1 << -ahead
