"""Who may be stopped for whom: within a tenant as the policy says, of other tenants what is lent to them."""

from __future__ import annotations

from .fair_share import FairShare
from .job import ScheduledJob
from .planner import Planner
from .policies import SchedulingPolicy
from .preemption import Eligible, choose_victims


class Reclaim:
    """Says which running jobs may be stopped for one that does not fit."""

    def __init__(self, policy: SchedulingPolicy, planner: Planner, fair_share: FairShare) -> None:
        self._policy = policy
        self._planner = planner
        self._fair_share = fair_share

    def stop_others(self, job: ScheduledJob, now: float) -> bool | None:
        """Have others stopped for *job*, one that does not fit; ``False``: no stopping of those that may be makes room,
        ``None``: none may be stopped."""
        may_stop = self.victims_of(job, now)
        if may_stop is None:
            return None
        plan = choose_victims(self._planner, job, now, may_stop)
        if plan is not None:
            self._planner.reserve(job, plan, now)
        return plan is not None

    def victims_of(self, job: ScheduledJob, now: float) -> Eligible | None:
        """Whether each running job may be stopped for *job*, one that waits; ``None``: none may, whichever it is."""
        policy, fair_share = self._policy, self._fair_share
        group = "" if job.queue is None else job.queue.group
        reclaims = self._reclaims(job)
        if not policy.preemptive and not reclaims:
            return None

        def may_stop(victim: ScheduledJob) -> bool:
            if not victim.request.preemptible:
                return False
            if group == fair_share.group(victim.request.tenant):
                return policy.preemptive and policy.may_stop(job, victim, now)
            return reclaims and fair_share.may_reclaim(group, victim.id)

        return may_stop

    def _reclaims(self, job: ScheduledJob) -> bool:
        """Whether *job* may have back what its tenant's guarantee lends to others."""
        queue = job.queue
        fair_share = self._fair_share
        if queue is None or not queue.group or not fair_share.guarantees(queue.group):
            return False
        if not fair_share.within_guarantee(queue.group, queue.demand) or not fair_share.lends(queue.group):
            return False
        # What others are being stopped for already counts: it will be held.
        ahead = [
            each.job.demand
            for each in self._planner.reservations.values()
            if each.preempting and each.job.queue is not None and each.job.queue.group == queue.group
        ]
        return not ahead or fair_share.within_guarantee(queue.group, queue.demand, ahead)
