"""Deadlines: earliest first, promises only where they can be kept."""

from __future__ import annotations

import math

from actorgrid.errors import BadRequest, QueueFull

from ..job import ScheduledJob
from ..planner import Planner
from ..preemption import choose_victims
from ..reservation import PlannedStart
from .base import SchedulingPolicy

_STRICT, _SOFT, _BEST_EFFORT = range(3)


class EarliestDeadline(SchedulingPolicy):
    """Strict deadlines first, then soft ones, each by deadline, then the rest by submission.

    A request with a ``deadline`` is *strict* unless it says otherwise, and needs ``expected_s``. It is admitted only
    with a reservation by which it ends in time: around the reservations there are; or else with all of them made
    anew in the order of deadlines, every one still in time; or else by stopping preemptible jobs without a strict
    deadline, within their grace. Otherwise it is refused at once, and says when it could be done. What was admitted
    ends in time as long as estimates hold and no node is lost; one that can no longer make it is given up.
    Admission as in Gao et al., "Chronus" (SoCC 2021), which refuses strict jobs and lets soft ones wait.

    *strict_max* bounds the strict jobs that wait, each with its reservation.
    """

    name = "edf"
    levels = 3
    uses_estimates = True

    def __init__(self, *, strict_max: int = 256) -> None:
        self.strict_max = strict_max

    def level(self, job: ScheduledJob, now: float) -> int:
        """The level by deadline: strict, soft, best effort."""
        if job.request.deadline is None:
            return _BEST_EFFORT
        return _STRICT if job.request.strict else _SOFT

    def order(self, job: ScheduledJob) -> int:
        """The place by deadline, in milliseconds; without one, by submission."""
        return job.order if job.request.deadline is None else int(job.request.deadline * 1000)

    def gives_up_at(self, job: ScheduledJob) -> float | None:
        """The last moment to start in time for a strict deadline."""
        return _latest_start(job) if _strict(job) else None

    def admit(self, job: ScheduledJob, planner: Planner, now: float) -> None:
        """Find room for a strict deadline. Raises BadRequest when there is none, QueueFull beyond *strict_max*."""
        if not _strict(job):
            return
        if job.request.expected_s is None:
            raise BadRequest(
                "a strict deadline needs an estimate",
                asked=job.id,
                hint="say how long it runs (expected_s), or make the deadline a soft one (strict=False)",
            )
        if len(planner.reservations) >= self.strict_max:
            raise QueueFull("too many strict deadlines wait", asked=job.id, found=f"{self.strict_max} waiting")
        latest = _latest_start(job)
        plan = planner.earliest(job, now)
        if plan is not None and plan.start <= latest:
            planner.reserve(job, plan, now, firm=True)
            return
        if latest >= now and (self._rearranged(job, planner, now) or self._made_room(job, planner, now)):
            return
        raise BadRequest(
            "the deadline cannot be kept",
            asked=f"{job.id} to be done by {job.request.deadline:g}, running {job.request.expected_s:g} s",
            found="it could be done by " + _end(job, plan),
            hint="ask for less, for a later deadline, or for a soft one (strict=False)",
            possible_at=None if plan is None or math.isinf(plan.start) else plan.start + job.request.expected_s,
        )

    @staticmethod
    def _rearranged(job: ScheduledJob, planner: Planner, now: float) -> bool:
        """Make all strict jobs' reservations anew, in the order of deadlines; or leave them as they are."""
        if not planner.fits_alone(job, now, _latest_start(job)):
            return False
        kept = [each for each in planner.reservations.values() if _strict(each.job) and not each.preempting]
        before = [(each.job, each.plan) for each in kept]
        waiting = [each for each, _ in before]
        for each in waiting:
            planner.drop(each)
        for each in sorted([*waiting, job], key=lambda each: (_latest_end(each), each.sequence)):
            plan = planner.earliest(each, now, _latest_start(each))
            if plan is None:
                break
            planner.reserve(each, plan, now, firm=True)
        else:
            return True
        for each in (*waiting, job):
            planner.drop(each)
        for each, plan in before:
            planner.reserve(each, plan, now, firm=True)
        return False

    @staticmethod
    def _made_room(job: ScheduledJob, planner: Planner, now: float) -> bool:
        """Plan to stop others so that the job is done in time."""
        plan = choose_victims(planner, job, now, lambda each: each.request.preemptible and not _strict(each))
        if plan is None or plan.start > _latest_start(job):
            return False
        planner.reserve(job, plan, now, firm=True)
        return True


def _strict(job: ScheduledJob) -> bool:
    return job.request.deadline is not None and job.request.strict


def _latest_end(job: ScheduledJob) -> float:
    assert job.request.deadline is not None
    return job.request.deadline


def _latest_start(job: ScheduledJob) -> float:
    return _latest_end(job) - (job.request.expected_s or 0.0)


def _end(job: ScheduledJob, plan: PlannedStart | None) -> str:
    if plan is None or plan.start == float("inf"):
        return "nobody knows when"
    return f"{plan.start + (job.request.expected_s or 0.0):g}"
