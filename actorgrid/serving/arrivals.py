"""How soon the next item is expected, from the times at which the last ones arrived."""

from __future__ import annotations

WEIGHT = 1 / 16
"""Of the newest gap in the mean."""
LONGEST_GAP_S = 0.05
"""A longer pause counts as this much: nobody waits that long for a batch, and load that returns is noticed soon."""
SHORTEST_GAP_S = 1e-4
"""Less is not told apart from now; it also keeps whoever waits for the next item from asking without a pause."""


class ArrivalRate:
    """An exponential moving mean of the gaps between arrivals. Times are seconds of the caller's clock."""

    __slots__ = ("_gap_s", "_last_s")

    def __init__(self) -> None:
        self._gap_s: float | None = None
        self._last_s: float | None = None

    def arrived(self, now_s: float) -> None:
        """Take note of an arrival."""
        if self._last_s is not None:
            gap = min(max(0.0, now_s - self._last_s), LONGEST_GAP_S)
            self._gap_s = gap if self._gap_s is None else self._gap_s + WEIGHT * (gap - self._gap_s)
        self._last_s = now_s

    def expected_gap_s(self, now_s: float) -> float | None:
        """In how many seconds the next is expected, or ``None`` while nothing is known.

        Arrivals without memory are as far off at any time; a pause that is longer than the mean says that they became
        rarer, so that who waits gives up soon.
        """
        if self._gap_s is None or self._last_s is None:
            return None
        return max(self._gap_s, now_s - self._last_s, SHORTEST_GAP_S)
