"""How loaded a host was, and is about to be: its samples, their exponential moving average, and their trend.

Double exponential smoothing (Holt: Forecasting Seasonals and Trends by Exponentially Weighted Moving Averages, 1957)
for samples at irregular times (Wright: Forecasting Data Published at Irregular Time Intervals, 1986): the weight of a
sample grows with the time since the last. The trend is damped (Gardner, McKenzie: Forecasting Trends in Time Series,
1985), since a load that grows does not grow for ever.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

LEVEL_S = 2.0
"""Time constant of the level: what is this much older counts for a third."""
TREND_S = 5.0
DAMPING_S = 5.0
"""A trend goes on for no more than this much time in all, however far ahead one looks."""
SAMPLES_MAX = 120
"""Samples that are kept for people to see."""


class LoadSample(NamedTuple):
    """A load at a time, in seconds of the clock of whoever records it."""

    at: float
    load: float


class LoadHistory:
    """The samples of one host, ``SAMPLES_MAX`` at most, with level and trend. Loads are 0 or more, of any unit."""

    __slots__ = ("level", "samples", "trend")

    def __init__(self) -> None:
        self.level = 0.0
        self.trend = 0.0
        """Change of the level in a second."""
        self.samples: deque[LoadSample] = deque(maxlen=SAMPLES_MAX)

    @property
    def newest(self) -> LoadSample | None:
        """The last sample."""
        return self.samples[-1] if self.samples else None

    def record(self, at: float, load: float) -> bool:
        """Take a sample; ``False`` for one that is not newer than the last, or no load, which changes nothing."""
        if not (math.isfinite(at) and math.isfinite(load) and load >= 0):
            return False
        newest = self.newest
        if newest is None:
            self.level = load
        elif at <= newest.at:
            return False
        else:
            passed_s = at - newest.at
            expected = self.level + self._drift(passed_s)
            alpha = 1 - math.exp(-passed_s / LEVEL_S)
            beta = 1 - math.exp(-passed_s / TREND_S)
            level = expected + alpha * (load - expected)
            self.trend += beta * ((level - self.level) / passed_s - self.trend)
            self.level = level
        self.samples.append(LoadSample(at, load))
        return True

    def predict(self, at: float) -> float:
        """The load to expect at *at*; 0 or more."""
        newest = self.newest
        if newest is None:
            return 0.0
        return max(0.0, self.level + self._drift(max(0.0, at - newest.at)))

    def _drift(self, ahead_s: float) -> float:
        # The sum of a trend that decays with DAMPING_S over the time ahead.
        return self.trend * DAMPING_S * (1 - math.exp(-ahead_s / DAMPING_S))
