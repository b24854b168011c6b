"""Jobs that wait to be placed: the ledger's queued jobs in the scheduler's queue, and those that it does not take."""

from __future__ import annotations

import math
from typing import cast

from actorgrid.actors.ledger.record_types import JobRecord, ResourcesRecord
from actorgrid.demand import Demand
from actorgrid.errors import ActorGridError, BadRequest, QueueFull
from actorgrid.models import JobState

from ..ledger.attempt_ids import job_of
from ..ledger.field_checks import Plain
from ..ledger.graph_checks import steps_of
from ..scheduling.request import Refuse, Request
from .engine_mirror import EngineMirror
from .placement_records import PlacementRecords
from .proposals import JobFailure, Proposals, retry_delay_s
from .scheduler_requests import admission_refused, request_of_job, waiting_id

_BATCH = 2**20
"""Jobs of one batch share its index in the ledger; their places in it are far fewer than this."""
_TRIAL = "?"
"""Stands for a job that is only asked about."""


class WaitingJobs:
    """Keeps the jobs that wait, each under the id of its next attempt: at most as many as the scheduler's queue holds.

    The others stay in the ledger, and are queued when half of the queue is free.
    """

    def __init__(self, records: PlacementRecords, proposals: Proposals, mirror: EngineMirror) -> None:
        self._records = records
        self._proposals = proposals
        self._mirror = mirror
        self._queued: dict[str, str] = {}  # by job: the id its next attempt waits under
        self._doubtful: dict[str, None] = {}  # jobs that were refused by a state that may have been incomplete
        self._ended: list[str] = []  # jobs that ended while not all was known: who waits for them is told later
        self._refusals: dict[str, int] = {}  # by job: grants refused in a row
        self._overflow = False

    def load(self) -> None:
        """Start (again) from a snapshot: grants of a job that does not wait any more are not counted."""
        self._refusals = {id: count for id, count in self._refusals.items() if self._records.queued_job(id)}

    def queue_all(self, now: float) -> None:
        """Queue what waits in the ledger and not here; about 15 us for each job."""
        self._overflow = False
        granting = {grant.job_id for grant in self._proposals.grants.values()}
        waiting = [
            (job.get("deadline") or math.inf, id)
            for id, job in self._records.jobs.items()
            if job["state"] == JobState.QUEUED
            and id not in granting
            and id not in self._proposals.failures
            and id not in self._queued
        ]
        # The earliest deadline first, or a promise made before could fail for one made in another order. Records are
        # made as they are asked for: a long queue is never in memory whole.
        waiting.sort(key=lambda found: found[0])
        for _, id in waiting:
            self.queue(self._records.jobs[id], now)

    def queue(self, job: JobRecord, now: float) -> None:
        """Let *job* wait; one that the policy refuses is asked for again, by ``catch_up``."""
        try:
            self._submit(job, now)
        except (BadRequest, QueueFull):
            self.doubt(job["job_id"])

    def doubt(self, job_id: str) -> None:
        """Have ``catch_up`` decide about *job_id*."""
        self._doubtful[job_id] = None

    def clear(self) -> None:
        """Forget what waits."""
        self._queued.clear()
        self._doubtful.clear()
        self._ended.clear()

    def forget_refusals(self) -> None:
        """Forget how often grants were refused: another host grants from here on."""
        self._refusals.clear()

    def changed(self, id: str, record: JobRecord | None, now: float) -> None:
        """Follow a job to its new record; ``None`` when the ledger has none any more."""
        state = None if record is None else record["state"]
        if record is not None and state == JobState.QUEUED:
            if not self._proposals.concerns_job(id):
                self.queue(record, now)
            return
        self._withdraw(id)
        self._refusals.pop(id, None)
        self._proposals.job_waits_no_more(id, record)
        if state is None or JobState(state).final:
            self._doubtful.pop(id, None)
            # A job that ends otherwise takes those that wait for it along, in the same entry.
            if self._records.registered and not self._mirror.stale:
                self._mirror.scheduler.resolve(id, now)
            else:
                self._ended.append(id)  # whether a deadline can be kept is to be asked when all is known

    def catch_up(self, now: float) -> None:
        """Settle what was left open, now that the engine is at what the ledger says."""
        for id in self._ended:
            self._mirror.scheduler.resolve(id, now)
        self._ended.clear()
        for id in list(self._doubtful):
            self._settle_doubt(id, now)
        scheduler = self._mirror.scheduler
        # Half: a look at all jobs of the ledger for each one that is placed would make a long queue quadratic.
        if self._overflow and len(scheduler.waiting) < scheduler.queue_max // 2:
            self.queue_all(now)

    # -- attempts

    def job_under(self, id: str) -> str:
        """The job that waits under *id*; ``""`` for a lease, and for what does not wait."""
        job_id = job_of(id)
        return job_id if self._queued.get(job_id) == id else ""

    def attempt_waiting(self, job_id: str | None) -> str | None:
        """The id under which a job waits; ``None`` when it does not."""
        return self._queued.get(job_id) if job_id is not None else None

    def started(self, id: str) -> str:
        """Take note that what waited under *id* waits no longer; gives the job, ``""`` for a lease."""
        job_id = self.job_under(id)
        self._queued.pop(job_id, None)
        return job_id

    def withdraw_attempt(self, id: str) -> None:
        """Let what waits under *id*, a job or a lease, wait no longer."""
        self.started(id)
        self._mirror.scheduler.withdraw(id)

    def try_again(self, job_id: str, now: float) -> None:
        """Let *job_id* wait again after a grant for it was refused, longer each time."""
        job = self._records.queued_job(job_id)
        if job is None:
            self._refusals.pop(job_id, None)
            return
        self._refusals[job_id] = refusals = self._refusals.get(job_id, 0) + 1
        again_at = now + retry_delay_s(refusals)
        self.queue({**job, "not_before": max(job["not_before"], again_at)}, now)

    # -- refusals of the policy

    def check_deadline(self, resources: ResourcesRecord, deadline: float, limit_s: float | None, now: float) -> None:
        """Check that the policy would take a job of that deadline (seconds since the epoch) and time limit now.

        Raises AdmissionRefused when it would not, or when the queue is full.
        """
        self._mirror.catch_up()
        demand = Demand.of(resources)
        request = Request(_TRIAL, demand, expected_s=limit_s, deadline=deadline, strict=limit_s is not None)
        try:
            self._mirror.scheduler.check(request, now)
        except BadRequest as error:
            raise admission_refused(error, error.message, deadline, limit_s, now) from None

    def give_up(self, job_id: str, decision: Refuse, now: float) -> None:
        """Have *job_id* fail, which the policy lets wait no longer."""
        if (job := self._records.queued_job(job_id)) is not None:
            text = decision.why if decision.error is None else decision.error.message
            self._fail(job, decision.error, text, now)

    def _fail(self, job: JobRecord, why: ActorGridError | None, text: str, now: float) -> None:
        error = admission_refused(why, text, job.get("deadline"), job["max_execution_time_s"], now)
        self._proposals.terminate(JobFailure(job["job_id"], error.to_dict()))

    def _settle_doubt(self, job_id: str, now: float) -> None:
        """Ask again for a job that was refused: now all hosts are known, so the answer stands."""
        self._doubtful.pop(job_id, None)
        job = self._records.queued_job(job_id)
        if job is None or job_id in self._queued:
            return
        try:
            self._submit(job, now)
        except (BadRequest, QueueFull) as error:
            self._fail(job, error, error.message, now)

    def _submit(self, job: JobRecord, now: float) -> None:
        scheduler = self._mirror.scheduler
        job_id, id = job["job_id"], waiting_id(job)
        if job_id in self._queued and self._queued[job_id] != id:
            self._withdraw(job_id)
        if id in self._mirror.engine:
            self._mirror.release(id)  # an attempt that nobody knows of any more
        if id not in scheduler.waiting and len(scheduler.waiting) >= scheduler.queue_max:
            self._overflow = True  # the ledger keeps it; it is queued when there is room here
            return
        try:
            scheduler.submit(
                request_of_job(id, Demand.of(job["resources"]), job),
                now,
                order=_order(job),
                not_before=job["not_before"],
                unmet=[name for name in job["depends_on"] if name in self._records.jobs or name in self._ended],
            )
        except (BadRequest, QueueFull):
            self._withdraw(job_id)
            raise
        self._queued[job_id] = id
        self._mirror.arrivals.saw(Demand.of(job["resources"]))

    def _withdraw(self, job_id: str) -> None:
        self._mirror.scheduler.withdraw(self._queued.pop(job_id, job_id))


def _order(job: JobRecord) -> int:
    """The place of *job* among its equals: as it was accepted; of steps of a graph, as that was, and as it wants."""
    steps = steps_of(cast("Plain", job)) if "step_of" in job else None
    return job["submitted_index"] * _BATCH + job.get("ordinal", 0) if steps is None else int(steps["order"])
