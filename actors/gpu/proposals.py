"""Decisions on their way to the ledger: grants of room, ends of running attempts, failures of waiting jobs.

A decision is proposed, and stands until the ledger shows it, shows that it is settled otherwise, or refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from actorgrid.actors.ledger.commands import FailJob, GrantAttempt, GrantGang, GrantLease, PreemptAttempt
from actorgrid.actors.ledger.field_checks import ABSENT
from actorgrid.actors.ledger.record_types import (
    NO_ATTEMPT,
    NO_JOB,
    AllocationRecord,
    GangPlace,
    JobRecord,
    PreemptionRecord,
)
from actorgrid.demand import Demand
from actorgrid.errors import ErrorRecord
from actorgrid.hotpath.records import Shares

from ..ledger.attempt_ids import attempt_of, job_of
from .messages import AcquireLease
from .placement_records import PlacementRecords
from .scheduler_requests import STOPPED_S, waiting_id

PORTS = (29_500, 29_999)
"""Where the members of gangs meet when the host's settings do not say."""
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 10.0


@dataclass(frozen=True, slots=True)
class Grant:
    """A decision to be committed; ``id`` is the allocation's, or the attempt's of a gang, whose *shares* are by rank.

    *incarnations* are those of the hosts, by share. *number* is an attempt's, *lease* a lease's request; *user_id* is
    whose quota it counts for. *behind* names the attempt whose place it gets; then it holds nothing until that is over.
    *edits*: how often the job's demand had been changed by then.
    """

    id: str
    shares: Shares
    incarnations: tuple[int, ...]
    latency_us: float
    demand: Demand
    job_id: str = ""
    number: int = 0
    lease: AcquireLease | None = None
    user_id: str = ""
    behind: str = ""
    edits: int = 0

    @property
    def host(self) -> str:
        """The host that it is on, or its first member."""
        return self.shares[0][0]

    def command(self, term: int, ports: tuple[int, int] = PORTS) -> GrantAttempt | GrantGang | GrantLease:
        """The ledger's command for it; *ports* are the first and the last at which the members of a gang may meet."""
        places: list[GangPlace] = [
            {"host": host, "incarnation": incarnation, "gpu_indexes": list(indexes)}
            for (host, indexes), incarnation in zip(self.shares, self.incarnations, strict=True)
        ]
        if self.lease is None:
            edits = self.edits or ABSENT  # so that grants of jobs as they came are what they were to older hosts
            if self.demand.gang > 1:
                return GrantGang(self.job_id, self.number, places, list(ports), term, self.latency_us, edits)
            behind = self.behind or ABSENT
            latency_us = self.latency_us
            return GrantAttempt(
                self.job_id,
                self.number,
                **places[0],
                term=term,
                placement_latency_us=latency_us,
                behind=behind,
                edits=edits,
            )
        return GrantLease(
            self.id,
            self.lease.session_id,
            **places[0],
            resources=self.lease.resources,
            term=term,
            pool=self.lease.pool,
            env=self.lease.env,
            user_id=self.user_id,
        )


@dataclass(frozen=True, slots=True)
class AttemptPreemption:
    """The decision, made at *at*, that an attempt end within *grace_s* so that *for_job*, a job or lease, can start.

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
class JobFailure:
    """The decision that a waiting job fail with *error*, as its deadline cannot be kept."""

    job_id: str
    error: ErrorRecord

    def command(self, _term: int) -> FailJob:
        """The ledger's command for it."""
        return FailJob(self.job_id, self.error)


Termination = AttemptPreemption | JobFailure


class Proposals:
    """Keeps decisions not yet seen in the ledger: at most one grant and preemption per attempt, one failure per job."""

    def __init__(self, records: PlacementRecords) -> None:
        self.grants: dict[str, Grant] = {}
        self.preemptions: dict[str, AttemptPreemption] = {}
        self.failures: dict[str, JobFailure] = {}
        self._new: list[Termination] = []
        self._records = records

    def load(self) -> None:
        """Start (again) from a snapshot: what it shows, or what it shows the end of, is proposed no more."""
        held = {attempt_of(id) for id in self._records.allocations}
        self.grants = {id: grant for id, grant in self.grants.items() if id not in held}
        for id in list(self.preemptions):
            if self._asked(id) is not None or (id not in held and id not in self.grants):
                self.attempt_over(id)
        for id in list(self.failures):
            if self._records.queued_job(id) is None:
                del self.failures[id]

    def clear(self) -> None:
        """Drop all that is proposed: another host decides from here on, and it is settled without this one."""
        self.grants.clear()
        self.preemptions.clear()
        self.failures.clear()
        self._new.clear()

    @property
    def under_way(self) -> int:
        """The number of decisions under way."""
        return len(self.grants) + len(self.preemptions) + len(self.failures)

    def concerns_job(self, job_id: str) -> bool:
        """Whether a waiting job is being granted or given up, and so is not to be decided about again."""
        return job_id in self.failures or any(grant.job_id == job_id for grant in self.grants.values())

    # -- terminations

    def terminate(self, termination: Termination) -> None:
        """Decide *termination*; the end of an attempt is proposed once its own grant is committed."""
        if isinstance(termination, JobFailure):
            self.failures[termination.job_id] = termination
            self._new.append(termination)
            return
        self.preemptions[termination.attempt_id] = termination
        if termination.token is not None:  # the guard refuses one without the token that the grant gave it
            self._new.append(termination)

    def take_terminations(self) -> list[Termination]:
        """The terminations to be proposed since this was asked last."""
        taken, self._new = self._new, []
        return [each for each in taken if self.stands(each)]

    def stands(self, termination: Termination) -> bool:
        """Whether it is still to be committed: the ledger shows neither it nor the end of what it is about."""
        if isinstance(termination, AttemptPreemption):
            return self.preemptions.get(termination.attempt_id) == termination
        return self.failures.get(termination.job_id) == termination

    def drop(self, termination: Termination) -> None:
        """Forget a termination that the ledger did not commit."""
        if isinstance(termination, AttemptPreemption):
            self.preemptions.pop(termination.attempt_id, None)
        else:
            self.failures.pop(termination.job_id, None)

    # -- what the ledger says

    def attempt_granted(self, id: str, allocation: AllocationRecord) -> None:
        """Take note that the ledger holds an attempt's allocation: now it can be stopped."""
        preemption = self.preemptions.get(id)
        if preemption is not None and preemption.token is None:
            self.terminate(replace(preemption, token=tuple(allocation["token"])))

    def attempt_over(self, id: str) -> None:
        """Forget the preemption of an attempt that has ended, or was never granted."""
        self.preemptions.pop(id, None)

    def job_waits_no_more(self, job_id: str, record: JobRecord | None) -> None:
        """Take note that a job's record has changed, and is no longer that of a waiting one."""
        self.failures.pop(job_id, None)
        if record is not None and record["attempts"] and record["attempts"][-1].get("preemption") is not None:
            self.attempt_over(record["attempts"][-1]["attempt_id"])

    def stopping(self, attempt_id: str) -> tuple[float | None, str]:
        """The time at which a running attempt will have stopped, and the waiting id of whom it is stopped for.

        ``(None, "")`` for one that is not to stop.
        """
        asked = self._asked(attempt_id)
        preemption = self.preemptions.get(attempt_id)
        if asked is not None:
            at, grace_s, for_job = asked["asked_at"], asked["grace_s"], asked["for_job"]
        elif preemption is not None:
            at, grace_s, for_job = preemption.at, preemption.grace_s, preemption.for_job
        else:
            return None, ""
        waiting = self._records.jobs.get(for_job)
        return at + grace_s + STOPPED_S, for_job if waiting is None else waiting_id(waiting)

    def _asked(self, attempt_id: str) -> PreemptionRecord | None:
        """What the ledger says of a live attempt's preemption."""
        job = self._records.jobs.get(job_of(attempt_id), NO_JOB)
        last = (job.get("attempts") or [NO_ATTEMPT])[-1]
        return last.get("preemption") if last.get("attempt_id") == attempt_id else None


def retry_delay_s(refusals: int) -> float:
    """The seconds that work waits whose grant was refused *refusals* times in a row, from 1.

    0.1 at first, then twice as long each time, at most 10: the ledger is not asked in a loop.
    """
    # Ten doublings are past the most already; a thousand, which take three hours of refusals, overflow a float.
    return min(RETRY_MAX_S, RETRY_FIRST_S * 2.0 ** min(refusals - 1, 10))
