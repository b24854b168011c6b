"""Decisions beside grants that still have to be committed: whom to stop for another, and which job to give up."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from actorgrid.actors.ledger.commands import FailJob, PreemptAttempt
from actorgrid.actors.ledger.record_types import NO_ATTEMPT, NO_JOB, AllocationRecord, JobRecord, PreemptionRecord
from actorgrid.models import JobState

from ..ledger.attempt_ids import job_of
from .grant import Record
from .requests import STOPPED_S, waiting_id


@dataclass(frozen=True, slots=True)
class PreemptionOrder:
    """An attempt is to end within *grace_s* so that *for_job*, a job or lease, can start. Decided at *at*.

    *token* is ``None`` as long as the attempt's own grant is not committed.
    """

    attempt_id: str
    grace_s: float
    for_job: str
    at: float
    token: tuple[int, ...] | None

    def command(self, term: int) -> PreemptAttempt:
        """The ledger's command for it."""
        return PreemptAttempt(self.attempt_id, list(self.token or ()), self.grace_s, self.for_job, term)


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A waiting job is to fail with *error*, as its deadline cannot be kept."""

    job_id: str
    error: Record

    def command(self, _term: int) -> FailJob:
        """The ledger's command for it."""
        return FailJob(self.job_id, self.error)


Order = PreemptionOrder | GivenUp


class Orders:
    """Orders that are decided and not yet seen in the ledger, at most one per attempt and job.

    The mappings given to ``load`` are kept, and expected to be kept current by their owner.
    """

    def __init__(self) -> None:
        self.preempting: dict[str, PreemptionOrder] = {}
        self.giving_up: dict[str, GivenUp] = {}
        self._new: list[Order] = []
        self._jobs: Mapping[str, JobRecord] = {}

    def load(self, jobs: Mapping[str, JobRecord], allocations: Container[str], in_flight: Container[str]) -> None:
        """Start (again) from a snapshot: what it shows, or what it shows the end of, is no order any more."""
        self._jobs = jobs
        for id in list(self.preempting):
            if self._asked(id) is not None or (id not in allocations and id not in in_flight):
                self.attempt_over(id)
        for id in list(self.giving_up):
            if jobs.get(id, NO_JOB).get("state") != JobState.QUEUED:
                del self.giving_up[id]

    def give(self, order: Order) -> None:
        """Decide *order*; the end of an attempt is taken once its own grant is committed."""
        if isinstance(order, GivenUp):
            self.giving_up[order.job_id] = order
            self._new.append(order)
            return
        self.preempting[order.attempt_id] = order
        if order.token is not None:
            self._new.append(order)

    @property
    def under_way(self) -> int:
        """How many there are."""
        return len(self.preempting) + len(self.giving_up)

    def take(self) -> list[Order]:
        """Those to be proposed since this was asked last."""
        taken, self._new = self._new, []
        return [order for order in taken if self.stands(order)]

    def stands(self, order: Order) -> bool:
        """Whether *order* is still to be committed: the ledger shows neither it nor the end of what it is about."""
        if isinstance(order, PreemptionOrder):
            return self.preempting.get(order.attempt_id) == order
        return self.giving_up.get(order.job_id) == order

    def drop(self, order: Order) -> None:
        """The ledger did not commit it."""
        if isinstance(order, PreemptionOrder):
            self.preempting.pop(order.attempt_id, None)
        else:
            self.giving_up.pop(order.job_id, None)

    # -- what the ledger says

    def attempt_granted(self, id: str, allocation: AllocationRecord) -> None:
        """The ledger holds its allocation: now it can be stopped."""
        order = self.preempting.get(id)
        if order is not None and order.token is None:
            self.give(replace(order, token=tuple(allocation["token"])))

    def attempt_over(self, id: str) -> None:
        """It has ended, or was never granted."""
        self.preempting.pop(id, None)

    def job_changed(self, id: str, record: JobRecord | None) -> None:
        """A job's record has changed, and is no longer that of a waiting one."""
        self.giving_up.pop(id, None)
        if record is not None and record["attempts"] and record["attempts"][-1].get("preemption") is not None:
            self.attempt_over(record["attempts"][-1]["attempt_id"])

    def stopping(self, attempt_id: str) -> tuple[float | None, str]:
        """When a running attempt will have stopped, and the waiting id of whom it is stopped for."""
        asked = self._asked(attempt_id)
        order = self.preempting.get(attempt_id)
        if asked is not None:
            at, grace_s, for_job = asked["asked_at"], asked["grace_s"], asked["for_job"]
        elif order is not None:
            at, grace_s, for_job = order.at, order.grace_s, order.for_job
        else:
            return None, ""
        waiting = self._jobs.get(for_job)
        return at + grace_s + STOPPED_S, for_job if waiting is None else waiting_id(waiting)

    def _asked(self, attempt_id: str) -> PreemptionRecord | None:
        """What the ledger says of a live attempt's preemption."""
        job = self._jobs.get(job_of(attempt_id), NO_JOB)
        last = (job.get("attempts") or [NO_ATTEMPT])[-1]
        return last.get("preemption") if last.get("attempt_id") == attempt_id else None
