"""Higher priorities first, and who waits long rises."""

from __future__ import annotations

import math

from ..job import ScheduledJob
from .base import SchedulingPolicy

_TOP = 127


class Priority(SchedulingPolicy):
    """By priority, then by submission. Each *aging_s* of waiting counts as one point of priority, up to *aged_max*.

    Priorities beyond 0 to 127 count as the nearest of these; one above *aged_max* does not rise. A small job passes
    a large one that does not fit, but only for *reserve_after_s*: then the first in the queue gets a reservation, so
    that everyone is served in the end.
    """

    name = "priority"
    levels = _TOP + 1
    reservations_max = 1
    reserve_after_s = 600.0
    hold_after_s = 600.0

    def __init__(self, *, aging_s: float = 300.0, aged_max: int = 100) -> None:
        self.aging_s = aging_s
        self.aged_max = aged_max

    def level(self, job: ScheduledJob, now: float) -> int:
        """The level: 127 less the priority that the job has risen to."""
        return _TOP - self._risen(job, now)

    def next_change(self, job: ScheduledJob, now: float) -> float | None:
        """The time at which the job rises by a point."""
        if job.placement is not None or self._risen(job, now) >= self.aged_max:
            return None
        return job.waiting_since + self.aging_s * (self._points(job, now) + 1)

    def _risen(self, job: ScheduledJob, now: float) -> int:
        own = min(_TOP, max(0, job.request.priority))
        return max(own, min(self.aged_max, own + self._points(job, now)))

    def _points(self, job: ScheduledJob, now: float) -> int:
        # A timer is due up to a millisecond late, never early: a hair's breadth is for rounding.
        return math.floor(job.waited_s(now) / self.aging_s + 1e-9)
