"""Short calls that get a place before it is free: each stands behind one that runs, and begins when that is over.

A place that is granted only after the end of what was there stands empty for two commits, which is longer than many a
call takes. So calls that wait are granted behind running ones of their kind: same user, same CPUs, same pool, no more
than CPUs. Nobody is passed by it. Only the first in the policy's order get such a place, one after the other, up to the
first that is of another kind; none while something else has a reservation, or its tenant's limits keep another out.
What comes later and ranks higher waits at most as long as it would have, had the grant been made that much earlier:
a host gives back what has stood for ``work/standing.py``'s STANDING_S.

How many stand behind one another follows from how long each kind has held its place of late: as many as are over in
AHEAD_S, at most DEPTH_MAX. So long ones get none, nor does a kind of which nothing is known.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import islice

from actorgrid.actors.ledger.record_types import NO_JOB, AllocationRecord, JobRecord
from actorgrid.demand import Demand

from ..ledger.attempt_ids import number_of
from ..scheduling.job import ScheduledJob
from .engine_mirror import EngineMirror
from .placement_records import PlacementRecords
from .proposals import Grant, Proposals
from .waiting_jobs import WaitingJobs

AHEAD_S = 0.1
DEPTH_MAX = 16
UNKNOWN_S = 1.0
"""What one that was given back, or refused, counts as: its kind gets no more of them until enough were short."""
NEWEST_PART = 0.25
"""The part that the last one has in what a kind is expected to take."""
KINDS_MAX = 1024
PLACES_MAX = 256
"""Places looked at in one pass; those that end come back as the last, so that all have their turn."""


@dataclass(frozen=True, slots=True)
class CallKind:
    """What calls have in common of which one may have the place of another."""

    user_id: str
    cpu_milli: int
    pool: str


class CallChains:
    """Keeps who stands behind whom, in the ledger and as proposed. At most DEPTH_MAX behind one."""

    def __init__(
        self, records: PlacementRecords, proposals: Proposals, mirror: EngineMirror, jobs: WaitingJobs
    ) -> None:
        self.allowed = False
        """Whether all members know such grants."""
        self._records = records
        self._proposals = proposals
        self._mirror = mirror
        self._jobs = jobs
        self._places: dict[CallKind, dict[str, None]] = {}
        self._kinds: dict[str, CallKind] = {}  # of those that hold a place
        self._front: dict[str, str] = {}
        self._follower: dict[str, str] = {}
        self._since: dict[str, float] = {}  # of those that have moved up
        self._takes_s: dict[CallKind, float] = {}

    # -- what the ledger says

    def load(self) -> None:
        """Start (again) from what the ledger holds and what is proposed."""
        for table in (self._places, self._kinds, self._front, self._follower, self._since):
            table.clear()
        for id, record in self._records.allocations.items():
            self.allocation_changed(id, record)
        for id, grant in self._proposals.grants.items():
            if grant.behind:
                self._link(id, grant.behind)

    def allocation_changed(self, id: str, record: AllocationRecord | None) -> None:
        """Follow an allocation; ``None`` when it is over."""
        self._unlink(id)
        if record is None:
            self._forget(id)
        elif "behind" in record:
            self._link(id, record["behind"])
        elif id not in self._kinds:
            job = self._records.jobs.get(record["owner"].get("job_id", ""))
            kind = None if job is None else kind_of(job)
            if kind is not None:
                self._kinds[id] = kind
                self._places.setdefault(kind, {})[id] = None

    def job_changed(self, record: JobRecord) -> None:
        """Learn how long a call has held its place, when it has."""
        attempt = record["attempts"][-1] if record["attempts"] else None
        if attempt is None or attempt["ended_at"] is None or (kind := kind_of(record)) is None:
            return
        since = self._since.pop(attempt["attempt_id"], attempt["placed_at"])
        started_at = attempt["started_at"]
        self._learn(kind, UNKNOWN_S if started_at is None else attempt["ended_at"] - min(since, started_at))

    def _learn(self, kind: CallKind, took_s: float) -> None:
        if len(self._takes_s) >= KINDS_MAX and kind not in self._takes_s:
            self._takes_s.clear()
        before_s = self._takes_s.get(kind, took_s)
        self._takes_s[kind] = before_s + NEWEST_PART * (max(0.0, took_s) - before_s)

    def _forget(self, id: str) -> None:
        kind = self._kinds.pop(id, None)
        if kind is not None:
            del self._places[kind][id]
            if not self._places[kind]:
                del self._places[kind]
        follower = self._follower.pop(id, None)
        if follower is not None:
            del self._front[follower]  # where it stands now, its own record says next; a proposed one is refused
            self._since[follower] = self._mirror.now

    def _link(self, id: str, front: str) -> None:
        self._front[id], self._follower[front] = front, id
        self._since.pop(id, None)

    def _unlink(self, id: str) -> None:
        front = self._front.pop(id, None)
        if front is not None:
            del self._follower[front]

    # -- deciding

    def decide(self, limit: int) -> list[Grant]:
        """The grants behind others to be proposed now, at most *limit*. Ask after all that fits was granted."""
        grants: list[Grant] = []
        if not self.allowed or not self._places or limit <= 0:
            return grants
        kind, chains = None, []
        for waiting in self._mirror.scheduler.first_waiting(limit):
            job = self._records.queued_job(self._jobs.job_under(waiting.id))
            found = None if job is None or waiting.demand != _plain(waiting.demand) else kind_of(job)
            if job is None or found is None or (kind is not None and found != kind):
                break
            if kind is None:
                kind = found
                if self._others_have_claims(waiting) or not (chains := self._open_chains(kind)):
                    break
            length, front, host = heapq.heappop(chains)
            grants.append(self._grant(waiting.id, job["job_id"], kind.user_id, waiting.demand, front, host))
            if length + 1 < self._depth(kind):
                heapq.heappush(chains, (length + 1, waiting.id, host))
            elif not chains:
                break
        return grants

    def refused(self, grant: Grant) -> None:
        """Forget a grant that the ledger has not committed."""
        self._unlink(grant.id)
        self._since.pop(grant.id, None)
        job = self._records.jobs.get(grant.job_id)
        kind = None if job is None else kind_of(job)
        if kind is not None:
            self._learn(kind, UNKNOWN_S)

    def _depth(self, kind: CallKind) -> int:
        takes_s = self._takes_s.get(kind, UNKNOWN_S)
        return min(DEPTH_MAX, int(AHEAD_S / max(takes_s, AHEAD_S / DEPTH_MAX)))

    def _open_chains(self, kind: CallKind) -> list[tuple[int, str, str]]:
        """A heap of (how many stand behind a place, the last of them, its host) where one more may stand."""
        depth = self._depth(kind)
        found = []
        for id in islice(self._places.get(kind, ()), PLACES_MAX if depth else 0):
            record, runs = self._records.allocations.get(id), self._mirror.scheduler.running.get(id)
            if record is None or runs is None or runs.stopping_at is not None or id in self._proposals.preemptions:
                continue
            if not self._mirror.takes_work(record["host"]):
                continue
            length, last = 0, id
            while length < depth and (follower := self._follower.get(last)) is not None:
                length, last = length + 1, follower
            if length < depth:
                found.append((length, last, record["host"]))
        heapq.heapify(found)
        return found

    def _others_have_claims(self, first: ScheduledJob) -> bool:
        kept = self._mirror.scheduler.planner.reservations.values()
        mine = first.demand, first.request.tenant
        return any((each.job.demand, each.job.request.tenant) != mine for each in kept)

    def _grant(self, id: str, job_id: str, user_id: str, demand: Demand, front: str, host: str) -> Grant:
        self._jobs.withdraw_attempt(id)
        self._link(id, front)
        grant = Grant(
            id=id,
            shares=((host, ()),),
            incarnations=(self._records.hosts[host]["incarnation"],),
            latency_us=0.0,
            demand=demand,
            job_id=job_id,
            number=number_of(id) or 0,
            user_id=user_id,
            behind=front,
            edits=self._records.jobs.get(job_id, NO_JOB).get("edits", 0),
        )
        self._proposals.grants[id] = grant
        return grant


def kind_of(job: JobRecord) -> CallKind | None:
    """The kind of a function job that needs CPUs and nothing else; ``None`` for any other."""
    resources = job["resources"]
    alone = (
        job.get("kind") != "function"
        or resources.get("gang", 1) != 1
        or resources.get("gpu_count", 0)
        or resources.get("memory_mib", 0)
        or job.get("stdin_digest")
        or "checkpoint" in job
    )
    return None if alone else CallKind(job["user_id"], resources.get("cpu_milli", 0), job.get("pool") or "")


def _plain(demand: Demand) -> Demand:
    """As much CPU, and nothing said of where it is to be."""
    return Demand(cpu_milli=demand.cpu_milli)
