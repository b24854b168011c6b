"""Soft affinity: for a while, a job waits for the hosts that it prefers rather than start elsewhere."""

from __future__ import annotations

from ..job import ScheduledJob
from .priority import Priority


class Affinity(Priority):
    """As ``priority``, but a job with an ``affinity_soft`` starts only there for its first *patience_s* of waiting.

    Delay scheduling: Zaharia et al. (EuroSys 2010) found that a short wait brings most tasks to their data. Then any
    place will do, the racks it likes first.
    """

    name = "affinity"

    def __init__(self, *, patience_s: float = 30.0, aging_s: float = 300.0, aged_max: int = 100) -> None:
        super().__init__(aging_s=aging_s, aged_max=aged_max)
        self.patience_s = patience_s

    def preferred(self, job: ScheduledJob, now: float) -> tuple[str, ...]:
        """The racks and nodes that the job prefers, until it has waited long enough."""
        return job.demand.affinity_soft if job.waited_s(now) < self.patience_s - 1e-6 else ()

    def next_change(self, job: ScheduledJob, now: float) -> float | None:
        """The time at which the job rises, or gives up on its affinity."""
        rises = super().next_change(job, now)
        if job.placement is not None or not self.preferred(job, now):
            return rises
        gives_up = job.waiting_since + self.patience_s
        return gives_up if rises is None else min(rises, gives_up)
