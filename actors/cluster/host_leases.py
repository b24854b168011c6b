"""When work on a host that is not heard of is over: the leader's half of the leases, decisions only.

A host stops what runs there ``max_isolation_s`` after its lease was last renewed (``work/host_lease.py``); the leader
ends it in the ledger that long after it last heard of the host, and a margin later. It heard of it after the host began
to count, so it ends later than the host does (docs/leases.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from actorgrid.actors.ledger.commands import LoseHost
from actorgrid.actors.ledger.record_types import NO_JOB, AllocationRecord, HostRecord, JobRecord

from ..ledger.records import MAX_ISOLATION_S, isolation_of
from ..work.host_lease import LEASE_MAX_S

MARGIN_S = 0.5
"""For the shim to wake up and the tree to die."""
DRIFT = 0.01
"""By so much two hosts' CLOCK_BOOTTIME may differ in pace. It is slewed by 0.05 % at most."""
AT_ONCE_MAX = 10_000


@dataclass(frozen=True, slots=True)
class LeaseView:
    """What is known before the question who was heard of: nothing that changed since is decided about."""

    hosts: Mapping[str, HostRecord]
    allocations: tuple[AllocationRecord, ...]
    jobs: Mapping[str, JobRecord]
    term: int


@dataclass(frozen=True, slots=True)
class HostLoss:
    """A host that is to be told lost, with the allocations (and their tokens) that are over; at most 10,000."""

    host: str
    incarnation: int
    seen_index: int
    quiet_s: float
    allocations: tuple[tuple[str, list[int]], ...]
    term: int

    def command(self, heard_at: float) -> LoseHost:
        """The ledger's command; *heard_at* is for people, by the wall clock."""
        over = [list(each) for each in self.allocations]
        return LoseHost(self.host, self.incarnation, self.seen_index, heard_at, over, self.term)


def over_after_s(max_isolation_s: float) -> float:
    """Seconds that the leader waits for a host before work that may go on alone for *isolation_s* is over.

    At least as long as the host may start something without renewal: what it starts then counts from there.
    """
    return max(max_isolation_s, LEASE_MAX_S) * (1 + DRIFT) + MARGIN_S


def lease_view(
    hosts: Mapping[str, HostRecord],
    allocations: Iterable[AllocationRecord],
    jobs: Mapping[str, JobRecord],
    term: int,
    away: Iterable[str],
) -> LeaseView:
    """The picture of the hosts that are *away*. Records are never written into, so it stays as it is."""
    them = {host_id: hosts[host_id] for host_id in away if host_id in hosts}
    held = tuple(allocation for allocation in allocations if allocation["host"] in them)
    named = {allocation["owner"].get("job_id") for allocation in held}
    return LeaseView(them, held, {id: jobs[id] for id in named if id is not None and id in jobs}, term)


def next_at(view: LeaseView, heard: Mapping[str, float]) -> float | None:
    """The time of the next decision, on the clock of *heard*; ``None`` when nothing is open."""
    return min(
        (heard[host_id] + over_after_s(patience) for host_id, patience, _ in _open(view) if host_id in heard),
        default=None,
    )


def losses(view: LeaseView, heard: Mapping[str, float], as_of: float) -> list[HostLoss]:
    """The losses to declare, by when each host was *heard* of, as known to a leader who still led at *as_of*."""
    over: dict[str, list[tuple[str, list[int]]]] = {}
    for host_id, patience, allocation in _open(view):
        if host_id in heard and as_of - heard[host_id] > over_after_s(patience):
            named = over.setdefault(host_id, [])
            if allocation is not None and len(named) < AT_ONCE_MAX:
                named.append((allocation["allocation_id"], allocation["token"]))
    return [
        HostLoss(
            host_id,
            view.hosts[host_id]["incarnation"],
            view.hosts[host_id].get("seen_index", 0),
            as_of - heard[host_id],
            tuple(named),
            view.term,
        )
        for host_id, named in over.items()
    ]


def _open(view: LeaseView) -> Iterable[tuple[str, float, AllocationRecord | None]]:
    """The open cases: each allocation with its patience, and each host that is up with that of usual work."""
    for allocation in view.allocations:
        job = view.jobs.get(allocation["owner"].get("job_id", ""), NO_JOB)
        absence_s = _absence_s(view, allocation["host"])
        yield allocation["host"], max(isolation_of(allocation, job), absence_s), allocation
    for host_id, host in view.hosts.items():
        if host["state"] == "up":
            yield host_id, max(MAX_ISOLATION_S, _absence_s(view, host_id)), None


def _absence_s(view: LeaseView, host_id: str) -> float:
    """Seconds for which the host said that it would be away."""
    return float(view.hosts[host_id].get("absence_s", 0.0))
