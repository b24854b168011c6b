"""What is given out: the allocations of attempts and leases, and the guard that refuses what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from actorgrid.actors.ledger.attempt_ids import member_id
from actorgrid.actors.ledger.record_types import AllocationRecord, HostRecord, JobRecord, OwnerRecord, ResourcesRecord
from actorgrid.actors.ledger.records import new_allocation
from actorgrid.errors import StaleIncarnation, WrongState

from .capacity import Capacity
from .quotas import Quotas

ALLOCATIONS_MAX = 100_000


class GrantTarget(NamedTuple):
    """The place of one member: these devices of a host in that incarnation."""

    host: str
    incarnation: int
    gpu_indexes: list[int]


class Allocations:
    """The allocations by id, at most 100,000: part of the replicated state.

    *changed* is told of each that is new or gone.
    """

    def __init__(
        self, hosts: Mapping[str, HostRecord], quotas: Quotas, changed: Callable[[str, AllocationRecord | None], None]
    ) -> None:
        self.records: dict[str, AllocationRecord] = {}
        self.capacity = Capacity()
        self._ports: dict[str, set[int]] = {}  # where the gangs meet whose rank 0 a host runs
        self._hosts = hosts
        self._quotas = quotas
        self._changed = changed

    def load(self, records: list[AllocationRecord]) -> None:
        """Load what a snapshot held; for a new, empty object."""
        for record in records:
            self._take(record)

    def ports_of(self, host_id: str) -> set[int]:
        """The ports of that host at which gangs meet."""
        return self._ports.get(host_id, set())

    def host_for(self, place: GrantTarget) -> HostRecord:
        """The host that a grant names, if it may have one. Raises StaleIncarnation or WrongState."""
        host = self._hosts.get(place.host)
        if host is None:
            raise StaleIncarnation(f"no host {place.host} is registered", asked=place.host)
        if place.incarnation != host["incarnation"]:
            raise StaleIncarnation(
                f"host {place.host} has started again since",
                asked=f"incarnation {place.incarnation}",
                found=f"incarnation {host['incarnation']}",
            )
        if host["state"] != "up":
            raise WrongState(f"host {place.host} is {host['state']}", asked="a grant there")
        if host.get("draining"):
            raise WrongState(f"host {place.host} takes nothing new", asked="a grant there", found="it is draining")
        if host.get("unreachable"):
            raise WrongState(f"host {place.host} takes nothing new", asked="a grant there", found="nobody reaches it")
        if len(self.records) >= ALLOCATIONS_MAX:
            raise WrongState("the ledger holds its maximum of allocations", found=f"{ALLOCATIONS_MAX}")
        return host

    def give_out(
        self,
        allocation_id: str,
        owner: OwnerRecord,
        place: GrantTarget,
        resources: ResourcesRecord,
        *,
        user: str,
        token: list[int],
        at: float,
        pool: str | None,
        env: dict[str, str],
        max_isolation_s: float,
    ) -> AllocationRecord:
        """Make an allocation; gives its record.

        Raises Overcommit, WrongState or QuotaExceeded; nothing has changed then.
        """
        if allocation_id in self.records:
            raise WrongState(f"allocation {allocation_id} is there already", asked=allocation_id)
        devices = self.capacity.check(self._hosts[place.host], place.gpu_indexes, resources)
        self._quotas.check_grant(user, resources)
        terms = {"pool": pool, "env": env, "max_isolation_s": max_isolation_s, "user_id": user}
        where = {**place._asdict(), "token": token, "granted_at": at, **terms}
        allocation = new_allocation(allocation_id, owner, where, devices, resources)
        self._take(allocation)
        self._changed(allocation_id, allocation)
        return allocation

    def give_out_gang(
        self, job: JobRecord, number: int, places: list[GrantTarget], port: int, *, token: list[int], at: float
    ) -> list[AllocationRecord]:
        """Make the allocations of all members of an attempt, by rank; rank 0 holds the *port* they meet at.

        Raises Overcommit, WrongState or QuotaExceeded when not all of them fit together; nothing has changed then.
        """
        resources, user = job["resources"], job["user_id"]
        if len(self.records) + len(places) > ALLOCATIONS_MAX:
            raise WrongState("the ledger holds its maximum of allocations", found=f"{ALLOCATIONS_MAX}")
        self._quotas.check_grant(user, resources)
        given: list[AllocationRecord] = []
        try:
            for rank, place in enumerate(places):
                devices = self.capacity.check(self._hosts[place.host], place.gpu_indexes, resources)
                where = {
                    **place._asdict(),
                    "token": token,
                    "granted_at": at,
                    "pool": job["pool"],
                    "env": {},
                    "max_isolation_s": job["max_isolation_s"],
                    "user_id": user,
                    "port": None if rank else port,
                }
                owner: OwnerRecord = {"kind": "attempt", "job_id": job["job_id"], "attempt": number, "rank": rank}
                id = member_id(job["job_id"], number, rank)
                given.append(new_allocation(id, owner, where, devices, resources))
                self.capacity.take(given[-1])  # what comes after it has to fit beside it
        finally:
            for allocation in given:
                self.capacity.give(allocation)
        for allocation in given:
            self._take(allocation)
            self._changed(allocation["allocation_id"], allocation)
        return given

    def _take(self, allocation: AllocationRecord) -> None:
        self.records[allocation["allocation_id"]] = allocation
        self.capacity.take(allocation)
        self._quotas.take(allocation)
        port = allocation.get("port")
        if port is not None:
            self._ports.setdefault(allocation["host"], set()).add(port)

    def take_back(self, allocation_id: str) -> bool:
        """Remove an allocation; ``False`` when there was none of that id."""
        allocation = self.records.pop(allocation_id, None)
        if allocation is None:
            return False
        self.capacity.give(allocation)
        self._quotas.give(allocation)
        if allocation.get("port") is not None:
            self._ports[allocation["host"]].discard(allocation["port"])
        self._changed(allocation_id, None)
        return True
