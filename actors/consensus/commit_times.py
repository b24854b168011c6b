"""How long the latest proposals of this host waited for their commit: the last 1,024."""

from __future__ import annotations

from collections import deque

TIMES_KEPT = 1024


class CommitTimes:
    """Seconds, kept in the order they came."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=TIMES_KEPT)

    def note(self, seconds: float) -> None:
        """One more was committed."""
        self._times.append(seconds)

    @property
    def median_ms(self) -> float | None:
        """Half of them waited no longer; ``None`` before the first."""
        median_s = self.percentile_s(50)
        return None if median_s is None else 1000 * median_s

    def percentile_s(self, percent: int) -> float | None:
        """So many of a hundred waited no longer; ``None`` before the first."""
        if not self._times:
            return None
        ordered = sorted(self._times)
        return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
