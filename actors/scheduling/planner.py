"""Reservations: when and where a job could start, made per node and device on a forecast of the cluster.

A reservation names the earliest time at which the whole gang fits, given when running jobs are expected to end and
what is reserved for others, and the devices it will take. A job that is started past it (backfilled) either ends
before that time or leaves those devices, CPUs and memory alone, so it delays nobody: Lifka, "The ANL/IBM SP
Scheduling System" (JSSPP 1995); Mu'alem and Feitelson, TPDS 2001, compare one reservation (EASY) with one for
every job (conservative).

Where nobody knows when running jobs end, a reservation can still name a place: jobs without an estimate are taken to
end in the order in which they started, the place is closed to all others, and so the one that waits is not starved.
"""

from __future__ import annotations

import math
from dataclasses import replace

from actorgrid.hotpath import Forecast, PlacementEngine
from actorgrid.hotpath.records import Shares

from .job import ScheduledJob
from .preemption_view import PreemptionView
from .reservation import PlannedStart, Reservation


class Planner:
    """Keeps the reservations. A plan costs a look at each node, and one more for each change up to its start."""

    def __init__(self, engine: PlacementEngine) -> None:
        self.engine = engine
        self.running: dict[str, ScheduledJob] = {}
        self.reservations: dict[str, Reservation] = {}
        self._yielding: dict[str, ScheduledJob] = {}  # those whose reservations are not firm
        self.to_stop: dict[str, str] = {}
        """Victims to be told, each with the job it is stopped for."""
        self.stopped_for: dict[str, str] = {}
        """All victims that still run, told or not, each with the job it is stopped for."""
        self._forecast: Forecast | None = None  # both are made when they are asked for, and kept up from then on
        self._preemption_view: PreemptionView | None = None
        self._capacity = 0  # of GPUs, as these two have it
        self._allocated = 0

    def refresh(self) -> None:
        """Look at the engine anew, as others changed it."""
        self._forecast = self._preemption_view = None

    def started(self, job: ScheduledJob) -> None:
        """Take note that *job* has its placement."""
        self.running[job.id] = job
        if self._forecast is not None:
            self._begin(self._forecast, job)
        if self._preemption_view is not None:
            self._preemption_view.started(job)
        self._allocated += _gpu_milli(job)

    def ended(self, job: ScheduledJob) -> None:
        """Take note that *job* gives its placement back."""
        del self.running[job.id]
        self.to_stop.pop(job.id, None)
        self.stopped_for.pop(job.id, None)
        if self._forecast is not None:
            self._forecast.end(job.id)
        if self._preemption_view is not None:
            self._preemption_view.ended(job)
        self._allocated -= _gpu_milli(job)

    # -- planning

    def earliest(self, job: ScheduledJob, now: float, latest: float = math.inf) -> PlannedStart | None:
        """The earliest plan for *job*: when and where it fits beside all reservations but its own.

        ``None``: not by *latest*, nor before its own reservation if it has one, or not even when all have ended, as
        far as the forecast looks.
        """
        assert job.needs is not None
        if job.reservation is not None:
            latest = min(latest, math.nextafter(job.reservation.start, -math.inf))
        found = self.forecast().earliest(job.id, job.needs, now, _or_endless(job.request.expected_s), latest)
        return None if found is None else PlannedStart(*found)

    def fits_alone(self, job: ScheduledJob, now: float, latest: float) -> bool:
        """Whether *job* could start by *latest* if there were no reservations: if not, no order of them helps."""
        assert job.needs is not None
        duration_s = _or_endless(job.request.expected_s)
        return self.forecast().earliest(job.id, job.needs, now, duration_s, latest, alone=True) is not None

    # -- reservations

    def reserve(self, job: ScheduledJob, plan: PlannedStart, now: float, *, firm: bool = False) -> None:
        """Keep *plan* for *job*, in place of what was kept for it; *firm* as in ``Reservation``.

        Its victims are to be stopped (``to_stop``), unless they are being stopped already; that makes it firm.
        """
        assert job.needs is not None
        self.drop(job)
        forecast = self.forecast()
        reservation = Reservation(job, job.needs, plan, firm or bool(plan.victims))
        job.reservation = self.reservations[job.id] = reservation
        if not reservation.firm:
            self._yielding[job.id] = job
        self._keep(forecast, reservation)
        if self._preemption_view is not None:
            self._preemption_view.keep(reservation)
        for id in plan.victims:
            victim = self.running[id]
            if victim.stopping_at is None:
                victim.stopping_at = now + victim.request.grace_s
                forecast.stop_at(id, victim.stopping_at)
                self.to_stop[id] = self.stopped_for[id] = job.id

    def drop(self, job: ScheduledJob) -> bool:
        """Keep nothing for *job* any more; ``False`` when nothing was. Victims that were not told yet are let off."""
        reservation = self.reservations.pop(job.id, None)
        self._yielding.pop(job.id, None)
        job.reservation = None
        if reservation is None:
            return False
        if self._forecast is not None:
            self._forecast.drop(job.id)
        if self._preemption_view is not None:
            self._preemption_view.release(reservation)
        for id in reservation.plan.victims:
            if self.to_stop.get(id) == job.id:
                del self.to_stop[id]
                self.stopped_for.pop(id, None)
                if id in self.running:
                    self.running[id].stopping_at = None
                    if self._forecast is not None:
                        self._forecast.stop_at(id, None)
        return True

    def resume(self, job: ScheduledJob, plan: PlannedStart | None, now: float) -> None:
        """Keep *plan* for *job* (``None``: the one it has), as the place that others are being stopped for."""
        if plan is None and job.reservation is not None:
            plan = job.reservation.plan
        if plan is not None:
            victims = tuple(id for id, for_id in self.stopped_for.items() if for_id == job.id)
            self.reserve(job, replace(plan, victims=victims), now)

    # -- what may start beside them

    def closed_to(self, job: ScheduledJob, end: float) -> tuple[str, ...]:
        """The nodes where *job*, were it to run from now to *end*, would meet someone else's reservation."""
        return self.forecast().closed(job.id, self._binding(job), end)

    def beside(self, job: ScheduledJob, closed: tuple[str, ...], now: float, end: float) -> Shares:
        """What the reservations on the *closed* nodes leave to a single *job* until *end*, as ``within`` has it."""
        assert job.needs is not None
        return self.forecast().beside(job.id, job.needs, closed, self._binding(job), now, end)

    def _binding(self, job: ScheduledJob) -> list[str] | None:
        """The jobs whose reservations *job* has to leave alone; ``None``: everybody's. Firm ones bind all."""
        if job.reservation is not None or not self._yielding:
            return None
        key = job.key
        passed = {id for id, holder in self._yielding.items() if holder.key > key}
        return [id for id in self.reservations if id not in passed] if passed else None

    # -- the cluster, as it is and as it will be

    def forecast(self) -> Forecast:
        """The forecast of what will be free when, reservations included."""
        self._compare()
        if self._forecast is None:
            self._forecast = Forecast(self.engine.nodes())
            for job in self.running.values():
                self._begin(self._forecast, job, counted_in=True)
            for reservation in self.reservations.values():
                self._keep(self._forecast, reservation)
        return self._forecast

    def preemption_view(self) -> PreemptionView:
        """The cluster as it is now, reservations included."""
        self._compare()
        if self._preemption_view is None:
            self._preemption_view = PreemptionView(self.engine, self.running.values())
            for reservation in self.reservations.values():
                self._preemption_view.keep(reservation)
        return self._preemption_view

    def _compare(self) -> None:
        """Look at the engine anew when its free GPUs, in sum, are not as thought: others took or added some."""
        capacity, allocated = self.engine.capacity_gpu_milli, self.engine.allocated_gpu_milli
        if capacity != self._capacity or allocated != self._allocated:
            self.refresh()
            self._capacity, self._allocated = capacity, allocated

    @staticmethod
    def _begin(forecast: Forecast, job: ScheduledJob, *, counted_in: bool = False) -> None:
        assert job.placement is not None and job.needs is not None
        expected_s = _or_endless(job.request.expected_s)
        shares = job.placement.shares
        forecast.begin(job.id, job.needs, shares, job.started_at, expected_s, job.sequence, counted_in=counted_in)
        if job.stopping_at is not None:
            forecast.stop_at(job.id, job.stopping_at)

    @staticmethod
    def _keep(forecast: Forecast, reservation: Reservation) -> None:
        plan = reservation.plan
        forecast.reserve(
            reservation.job.id, reservation.needs, plan.shares, plan.start, reservation.expected_s, plan.awaited
        )


def _or_endless(expected_s: float | None) -> float:
    return math.inf if expected_s is None else expected_s


def _gpu_milli(job: ScheduledJob) -> int:
    """The thousandths of GPUs that the engine counts as given to *job*."""
    assert job.placement is not None and job.needs is not None
    return job.needs.milli * sum(len(indexes) for _, indexes in job.placement.shares)
