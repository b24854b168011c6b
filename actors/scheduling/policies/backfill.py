"""Backfill: small jobs go first where they do not delay those before them."""

from __future__ import annotations

from ..job import ScheduledJob
from .priority import Priority


class EasyBackfill(Priority):
    """By priority and submission; the first that does not fit gets a reservation, others start if they do not delay it.

    EASY: Lifka, "The ANL/IBM SP Scheduling System" (JSSPP 1995). A job without ``expected_s`` counts as endless: it
    may start only beside a reservation. Where only endless jobs are in the way, a place is kept after *hold_after_s*.
    """

    name = "easy_backfill"
    uses_estimates = True
    reserve_after_s = 0.0


class ConservativeBackfill(EasyBackfill):
    """As EASY, but each of the first *reservations_max* that do not fit has a reservation: nobody delays any of them.

    Mu'alem and Feitelson, "Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling the IBM
    SP2 with Backfilling" (TPDS 2001). When jobs end early, reservations only ever move forward, in line order.
    """

    name = "conservative_backfill"
    reservations_max = 32
    replan_s = 30.0


class Gang(Priority):
    """By priority and submission; the first *reservations_max* gangs that do not fit each have a place kept at once.

    A gang starts whole or not at all. Single jobs pass gangs as long as they leave the kept places alone, so that no
    gang starves, with or without estimates.
    """

    name = "gang"
    reservations_max = 4
    uses_estimates = True
    reserve_after_s = 0.0
    hold_after_s = 0.0

    def reserves(self, job: ScheduledJob) -> bool:
        """Whether the job is a gang of two or more."""
        return job.demand.gang > 1
