"""A supervisor's arithmetic: when restarts are enough, how long a failed one waits, and who shares a child's fate.

Intensity is OTP's (``add_restart`` in supervisor.erl): a restart counts as long as it is not older than the period;
one more than ``intensity`` of them is too many. The pause after a failed start is ours (OTP tries again at once, and
so uses up its intensity in an instant): 0.1 s, doubling up to 2 s, for what is only slow to become free, such as
a port or a lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from .child import Strategy

RETRY_S_FIRST = 0.1
RETRY_S_MAX = 2.0


class Intensity:
    """The restarts of one supervisor within its period. Remembers ``intensity`` + 1 of them."""

    def __init__(self, intensity: int, period_s: float) -> None:
        self._most = intensity
        self._period_s = period_s
        # One more than there may be: when so many lie within the period that is one too many, and none before matters.
        self._at: deque[float] = deque(maxlen=intensity + 1)

    def allows(self, now_s: float) -> bool:
        """Count one more restart; whether it may be done."""
        self._at.append(now_s)
        while self._at[0] < now_s - self._period_s:
            self._at.popleft()
        return len(self._at) <= self._most


def retry_delay_s(failures: int) -> float:
    """The pause after the *failures*-th failed start in a row (from 1)."""
    # 16 doublings are past the most already; 1,024 of them, which take half an hour of failures, overflow a float.
    return float(min(RETRY_S_MAX, RETRY_S_FIRST * 2.0 ** min(failures - 1, 16)))


def who_shares_fate(strategy: Strategy, order: Sequence[str], ended: str) -> Sequence[str]:
    """Who is restarted when *ended* is, of the children in start order, in that order."""
    if strategy == "one_for_all":
        return tuple(order)
    if strategy == "rest_for_one":
        return tuple(order[order.index(ended) :])
    return (ended,)
