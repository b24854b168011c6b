"""A request on its way: waiting, running, and what it has got so far."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from actorgrid.hotpath import Placement
from actorgrid.hotpath.capacity import GangNeeds

from .request import Request

if TYPE_CHECKING:
    from .job_queue import JobQueue
    from .reservation import Reservation


SortKey = tuple[float, int, int, int]
"""Rank of the tenant, where tenants share by rank; the policy's level and order; the number of the submission."""
NO_TIMER = -1
NOBODY: frozenset[str] = frozenset()
_ROUNDING_S = 1e-6


class ScheduledJob:
    """One request with the scheduler's notes on it. Policies read it and change nothing.

    *sequence* counts submissions; *order* is its place among its equals. *waiting_since* is when it last began to
    wait, *started_at* when it last began to run. While it waits, ``placement`` is ``None``.
    """

    __slots__ = (
        "_attained_gpu_s",
        "demand",
        "handle",
        "level",
        "needs",
        "not_before",
        "order",
        "placement",
        "queue",
        "ran_s",
        "request",
        "reservation",
        "sequence",
        "started_at",
        "stopping_at",
        "timer_change",
        "timer_give_up",
        "timer_ready",
        "unmet",
        "waiting_since",
    )

    def __init__(self, request: Request, sequence: int, order: int, now: float) -> None:
        self.request = request
        self.demand = request.demand
        self.sequence = sequence
        self.order = order
        self.level = 0
        self.waiting_since = now
        self.started_at = now
        self.placement: Placement | None = None
        self.ran_s = request.ran_s
        self._attained_gpu_s = request.ran_s * request.demand.total_gpu_milli / 1000 if request.ran_s else 0.0
        self.stopping_at: float | None = None
        """When it will have stopped: set once it was asked to."""
        self.queue: JobQueue | None = None
        self.handle = -1
        self.needs: GangNeeds | None = None
        self.reservation: Reservation | None = None
        # Of many thousands that wait, most have one timer and wait for nobody: no dict and no set for each of them.
        self.timer_ready = self.timer_change = self.timer_give_up = NO_TIMER
        self.not_before = 0.0
        self.unmet = NOBODY

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def key(self) -> SortKey:
        """The job's sort key among all that wait: lower goes first. Its tenant's rank may change at any time."""
        queue = self.queue
        return 0.0 if queue is None else queue.rank, self.level, self.order, self.sequence

    def begin(self, placement: Placement, now: float) -> None:
        """Begin a run of the job."""
        self.placement = placement
        self.started_at = now

    def end(self, now: float) -> None:
        """End the job's run; if it goes on later, it has waited since now."""
        self._attained_gpu_s = self.attained_gpu_s(now)
        self.ran_s += max(0.0, now - self.started_at)
        self.placement = None
        self.stopping_at = None
        self.waiting_since = now

    def waited_s(self, now: float) -> float:
        """Seconds that the job has been waiting since it last ran."""
        return max(0.0, now - self.waiting_since)

    def attained_gpu_s(self, now: float) -> float:
        """GPU-seconds that the job has had in all: GPUs times seconds run."""
        if self.placement is None:
            return self._attained_gpu_s
        return self._attained_gpu_s + max(0.0, now - self.started_at) * self.request.demand.total_gpu_milli / 1000

    def expect(self, expected_s: float) -> None:
        """Set how many seconds the rest of the job takes. Raises BadRequest for what is no time."""
        self.request = replace(self.request, expected_s=expected_s)

    def forgive(self) -> None:
        """Count what the job has had from nothing again."""
        self._attained_gpu_s = 0.0
        self.ran_s = 0.0

    def is_early(self, now: float) -> bool:
        """Whether the job was expected to run beyond *now*; true of a running one without an estimate."""
        expected_s = self.request.expected_s
        return expected_s is None or self.started_at + expected_s > now + _ROUNDING_S

    def expected_end(self, now: float) -> float:
        """The expected end of a job that starts now, or has started; infinite when nobody knows.

        One that has run past its estimate is given twice as long, until that is ahead (Tsafrir, Etsion and Feitelson,
        "Backfilling Using System-Generated Predictions", TPDS 2007, correct expired predictions in steps too).
        """
        if self.stopping_at is not None:
            return max(self.stopping_at, now)
        expected_s = self.request.expected_s
        if expected_s is None:
            return math.inf
        if self.placement is None:
            return now + expected_s
        end = self.started_at + expected_s
        step = max(expected_s, 1.0)
        while end <= now:
            end += step
            step *= 2
        return end
