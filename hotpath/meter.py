"""Latencies lately: a window of the last samples and its percentiles."""

from __future__ import annotations

import math
from array import array

WINDOW = 1024


class LatencyWindow:
    """The last *size* samples; older ones are forgotten. ``add`` is O(1), a percentile sorts the window."""

    __slots__ = ("_samples", "count", "size")

    def __init__(self, size: int = WINDOW) -> None:
        self.size = size
        self.count = 0
        self._samples = array("d")

    def add(self, sample: float) -> None:
        """Take one sample, in any unit."""
        if self.count < self.size:
            self._samples.append(sample)
        else:
            self._samples[self.count % self.size] = sample
        self.count += 1

    def percentile(self, percent: float) -> float | None:
        """The sample that *percent* of the window is at or below (nearest rank); ``None`` when empty."""
        if not self._samples:
            return None
        ranked = sorted(self._samples)
        rank = math.ceil(len(ranked) * percent / 100)
        return ranked[min(len(ranked), max(1, rank)) - 1]
