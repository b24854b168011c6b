"""Trouble that is on its way: the trend of a reading, and when it will be too much if that goes on; decisions only.

The slope is the median of those between all pairs of samples (Theil 1950; Sen, "Estimates of the Regression Coefficient
Based on Kendall's Tau", JASA 1968): up to 29 % of the samples may be wild without moving it far, where one slow write
bends a least-squares line. Whether there is a trend at all is Mann's test of the same pairs' signs ("Nonparametric
Tests Against Trend", Econometrica 1945): without it noise would be read as a slope.

Bound: 64 samples of a reading, 2,016 pairs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import sqrt
from statistics import median

SAMPLES_MAX = 64
SAMPLES_MIN = 12
SIGNIFICANT = 2.33
"""Standard deviations that the signs of the pairs have to be from balance: one in a hundred trendless series is so far
up, with the 12 samples and more that are asked for."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A trend: ``per_s`` of its unit in a second; ``level``: where its line is now; ``deviations``: of Mann's test."""

    per_s: float
    level: float
    deviations: float

    @property
    def significant(self) -> bool:
        """Whether it is no accident."""
        return abs(self.deviations) >= SIGNIFICANT

    def reaches_in_s(self, bound: float) -> float | None:
        """Seconds until the line is at *bound*, 0 where it is beyond already; ``None``: it is not going there."""
        if not self.significant or self.per_s == 0.0:
            return None
        seconds = (bound - self.level) / self.per_s
        if seconds >= 0.0:
            return seconds
        return None


class TrendWindow:
    """The last samples of one reading, at least *apart_s* apart, so that they span a while."""

    def __init__(self, apart_s: float = 0.0) -> None:
        self._apart_s = apart_s
        self._samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, at_s: float, value: float) -> None:
        """Add a sample; *at_s* is on a clock that is never set. One that is too near to the last is left out."""
        if not self._samples or at_s - self._samples[-1][0] >= max(self._apart_s, 1e-9):
            self._samples.append((at_s, value))

    def trend(self) -> Trend | None:
        """The trend; ``None`` with fewer than 12 samples."""
        samples = list(self._samples)
        count = len(samples)
        if count < SAMPLES_MIN:
            return None
        slopes, signs = [], 0
        for later in range(1, count):
            at, value = samples[later]
            for earlier in range(later):
                before, then = samples[earlier]
                slopes.append((value - then) / (at - before))
                signs += (value > then) - (value < then)
        per_s = median(slopes)
        now = samples[-1][0]
        level = median(value + per_s * (now - at) for at, value in samples)
        # The variance of the sum of signs without a trend; ties make it smaller, so that this errs towards none.
        deviations = (signs - (signs > 0) + (signs < 0)) / sqrt(count * (count - 1) * (2 * count + 5) / 18)
        return Trend(per_s, level, deviations)


class CountRate:
    """How fast a count rises, over the last *window_s* seconds; a count that falls began anew (a driver was loaded)."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)

    def add(self, at_s: float, count: float) -> None:
        """Add a reading of the count."""
        if self._samples and count < self._samples[-1][1]:
            self._samples.clear()
        if len(self._samples) > 1 and at_s - self._samples[-2][0] < self._window_s / (SAMPLES_MAX - 2):
            self._samples[-1] = (at_s, count)
        else:
            self._samples.append((at_s, count))
        while len(self._samples) > 1 and at_s - self._samples[1][0] >= self._window_s:
            self._samples.popleft()

    def risen(self) -> float:
        """By how much it has risen within the window."""
        return self._samples[-1][1] - self._samples[0][1] if self._samples else 0.0
