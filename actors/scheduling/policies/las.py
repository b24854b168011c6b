"""Least attained service: the tenant that has used least GPU time goes first. No estimates needed."""

from __future__ import annotations

from bisect import bisect_right

from ..job import ScheduledJob
from .base import SchedulingPolicy

_ROUNDING_GPU_S = 1e-3


class LeastAttainedService(SchedulingPolicy):
    """A few queues by attained GPU-seconds, first come, first served within each; preemptive.

    Discretised two-dimensional LAS: Gu et al., "Tiresias" (NSDI 2019), sections 3.2 and 3.3. A job begins in the
    first queue and falls by one at each of *thresholds* (GPU-seconds, rising). One that waits may stop preemptible
    ones of lower queues. Whoever has waited *patience* times as long as it ran begins anew in the first queue, so
    that long jobs do not starve. The first in the queue that has waited *reserve_after_s* gets a reservation, for the
    sake of gangs.
    """

    name = "las"
    preemptive = True
    reservations_max = 1
    reserve_after_s = 600.0
    hold_after_s = 600.0

    def __init__(self, *, thresholds: tuple[float, ...] = (3600.0, 36000.0, 360000.0), patience: float = 8.0) -> None:
        self.thresholds = thresholds
        self.patience = patience
        self.levels = len(thresholds) + 1

    def level(self, job: ScheduledJob, now: float) -> int:
        """The number of thresholds that the job has passed."""
        attained = job.attained_gpu_s(now) + _ROUNDING_GPU_S
        return bisect_right(self.thresholds, attained)

    def next_change(self, job: ScheduledJob, now: float) -> float | None:
        """The time at which the job falls into the next queue, or begins anew."""
        level = self.level(job, now)
        if job.placement is None:
            return job.waiting_since + self.patience * job.ran_s if level else None
        gpus = job.request.demand.total_gpu_milli / 1000
        if level == len(self.thresholds) or not gpus:
            return None
        return now + max(0.0, self.thresholds[level] - job.attained_gpu_s(now)) / gpus

    def forgives(self, job: ScheduledJob, now: float) -> bool:
        """Whether the job has waited long enough to begin anew."""
        return job.waited_s(now) + 1e-6 >= self.patience * job.ran_s

    def may_stop(self, job: ScheduledJob, victim: ScheduledJob, now: float) -> bool:
        """Whether the victim is in a lower queue."""
        return self.level(victim, now) > job.level
