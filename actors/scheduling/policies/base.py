"""What a scheduling policy is: a small class that ranks those who wait and says what else may be done for them."""

from __future__ import annotations

import math
from typing import ClassVar

from ..job import ScheduledJob
from ..planner import Planner


class SchedulingPolicy:
    """Serve in the order of submission, let smaller ones pass: what every policy starts from.

    A policy decides nothing about devices; the engine does. It holds no state of its own about jobs: it is asked
    about a :class:`~actorgrid.actors.scheduling.job.ScheduledJob` and reads it. Times are seconds; *now* is the
    present. The attributes are its settings.
    """

    name: ClassVar[str] = ""
    """What it is called in settings."""
    levels: int = 1
    """Levels it tells apart, 1 to 4096."""
    overtaking: bool = True
    """Whether those behind one that does not fit are tried."""
    uses_estimates: bool = False
    """Whether jobs of one need are told apart by ``expected_s`` (to a fifth), as one may be over in time."""
    reservations_max: int = 0
    """How many of the first that do not fit get a reservation; what starts past them must not delay them."""
    candidates_max: int = 256
    """Jobs tried with the engine in one pass at most; the next pass goes on from there."""
    reserve_after_s: float = 0.0
    """How long one waits until it gets a reservation."""
    hold_after_s: float = math.inf
    """How long one waits until it gets a place even where nobody knows when that will be free."""
    replan_s: float = 1.0
    """When jobs end early, reservations are moved forward at most this often."""
    preemptive: bool = False
    """Whether ``may_stop`` is asked at all."""
    preemptions_max: int = 8
    """Jobs for which victims are looked for in one pass at most."""

    def level(self, job: ScheduledJob, now: float) -> int:
        """The level of *job*, 0 (first) to ``levels`` - 1. Asked when it begins to wait, and at ``next_change``."""
        return 0

    def order(self, job: ScheduledJob) -> int:
        """The place of *job* within its level: lower goes first, equals as they came. Asked when it begins to wait."""
        return job.order

    def next_change(self, job: ScheduledJob, now: float) -> float | None:
        """When what this policy says of *job*, waiting or running, next changes by itself; ``None``: never."""
        return None

    def forgives(self, job: ScheduledJob, now: float) -> bool:
        """Whether, at a ``next_change`` of a waiting *job*, what it has had is to be counted from nothing again."""
        return False

    def reserves(self, job: ScheduledJob) -> bool:
        """Whether *job* may get a reservation when it stands among the first."""
        return True

    def preferred(self, job: ScheduledJob, now: float) -> tuple[str, ...]:
        """The racks and nodes that are the only ones good enough for *job* for now; empty: any will do."""
        return ()

    def may_stop(self, job: ScheduledJob, victim: ScheduledJob, now: float) -> bool:
        """Whether the running *victim*, which is preemptible, may be stopped so that *job* can start."""
        return False

    def admit(self, job: ScheduledJob, planner: Planner, now: float) -> None:
        """Look at a new *job*, and make a reservation if it needs one. Raises BadRequest to refuse it."""

    def gives_up_at(self, job: ScheduledJob) -> float | None:
        """The time from which on starting *job* makes no sense any more; ``None``: it always does."""
        return None
