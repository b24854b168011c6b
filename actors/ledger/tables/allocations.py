"""What is given out: the allocations of attempts and leases, and the guard that refuses what does not fit.

An attempt may be granted *behind* another, which runs: it is to have that one's place when that is over, on the same
host, for the same user, in the same amounts. Until then it holds nothing, and counts for nothing. The entry that ends
the one in front makes the place its own; its host may have begun it before, once it saw that the one in front was
gone. So a place is always counted once, and held by one at a time. When one that stands behind ends before its turn,
those behind it move up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from actorgrid.actors.ledger.attempt_ids import member_id
from actorgrid.actors.ledger.field_checks import is_whole
from actorgrid.actors.ledger.record_types import (
    AllocationRecord,
    DeviceRecord,
    HostRecord,
    JobRecord,
    OwnerRecord,
    ResourcesRecord,
)
from actorgrid.actors.ledger.records import new_allocation
from actorgrid.errors import StaleIncarnation, WrongState

from ..tenant_records import charge_of
from .capacity import Capacity
from .quotas import Quotas, amounts_held
from .tenants import charge_in

ALLOCATIONS_MAX = 100_000
BEHIND_MAX = 32
"""So many may stand behind one that holds a place."""


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
        self._followers: dict[str, str] = {}  # by id: who stands right behind it
        self._ports: dict[str, set[int]] = {}  # where the gangs meet whose rank 0 a host runs
        self._hosts = hosts
        self._quotas = quotas
        self._changed = changed

    def load(self, records: list[AllocationRecord]) -> None:
        """Load what a snapshot held; for a new, empty object. Raises ValueError for what holds no amounts."""
        for record in records:
            if not all(map(is_whole, amounts_held(record).values())):
                raise ValueError(f"allocation {record['allocation_id']!r:.60} holds what is no amount")
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
        behind: str | None = None,
    ) -> AllocationRecord:
        """Make an allocation; gives its record.

        Raises Overcommit, WrongState or QuotaExceeded; nothing has changed then.
        """
        if allocation_id in self.records:
            raise WrongState(f"allocation {allocation_id} is there already", asked=allocation_id)
        terms: dict[str, Any] = {"pool": pool, "env": env, "max_isolation_s": max_isolation_s, "user_id": user}
        devices: list[DeviceRecord] = []
        if behind is None:
            devices = self.capacity.check(self._hosts[place.host], place.gpu_indexes, resources)
            charge = self._charge(resources, devices)
            self._quotas.check_grant(user, resources, charge)
            if self._quotas.tenants.records:
                terms["charge"] = charge
        else:
            self._check_behind(behind, place, resources, user)
            self._quotas.tenants.check_grant(user, {})
            terms["behind"] = behind
        where = {**place._asdict(), "token": token, "granted_at": at, **terms}
        allocation = new_allocation(allocation_id, owner, where, devices, resources)
        self._take(allocation)
        self._changed(allocation_id, allocation)
        return allocation

    def _check_behind(self, front_id: str, place: GrantTarget, resources: ResourcesRecord, user: str) -> None:
        """Refuse a place behind *front_id* that would not be the same place. Raises WrongState."""
        front = self.records.get(front_id)
        if front is None or front["owner"]["kind"] != "attempt" or "rank" in front["owner"]:
            raise WrongState(f"nothing can stand behind {front_id}", asked="its place", found="it is over, or a gang's")
        has = front["host"], front["incarnation"], front["user_id"], front["cpu_milli"], front["memory_mib"]
        asked = place.host, place.incarnation, user, resources["cpu_milli"], resources["memory_mib"]
        if has != asked or front["gpu_indexes"] or place.gpu_indexes or resources["gpu_count"]:
            raise WrongState(f"the place of {front_id} is another", asked=f"{asked}", found=f"{has}")
        if front_id in self._followers:
            raise WrongState(f"another stands behind {front_id}", found=self._followers[front_id])
        ahead = 1
        while (before := front.get("behind")) is not None:
            front, ahead = self.records[before], ahead + 1
        if ahead > BEHIND_MAX:
            raise WrongState(f"too many stand before it, behind {front['allocation_id']}", found=f"{ahead - 1}")

    def give_out_gang(
        self, job: JobRecord, number: int, places: list[GrantTarget], port: int, *, token: list[int], at: float
    ) -> list[AllocationRecord]:
        """Make the allocations of all members of an attempt, by rank; rank 0 holds the *port* they meet at.

        Raises Overcommit, WrongState or QuotaExceeded when not all of them fit together; nothing has changed then.
        """
        resources, user = job["resources"], job["user_id"]
        if len(self.records) + len(places) > ALLOCATIONS_MAX:
            raise WrongState("the ledger holds its maximum of allocations", found=f"{ALLOCATIONS_MAX}")
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
                if self._quotas.tenants.records:
                    where["charge"] = self._charge(resources, devices)
                owner: OwnerRecord = {"kind": "attempt", "job_id": job["job_id"], "attempt": number, "rank": rank}
                id = member_id(job["job_id"], number, rank)
                given.append(new_allocation(id, owner, where, devices, resources))
                self.capacity.take(given[-1])  # what comes after it has to fit beside it
            whole = Counter[str]()
            for allocation in given:
                whole.update(charge_in(allocation))
            self._quotas.check_grant(user, resources, whole)
        finally:
            for allocation in given:
                self.capacity.give(allocation)
        for allocation in given:
            self._take(allocation)
            self._changed(allocation["allocation_id"], allocation)
        return given

    @staticmethod
    def _charge(resources: ResourcesRecord, devices: list[DeviceRecord]) -> dict[str, int]:
        """The amounts that one member counts as."""
        held = resources["cpu_milli"], resources["memory_mib"], resources["gpu_milli"], resources["gpu_memory_mib"]
        return charge_of(*held, devices)

    def _take(self, allocation: AllocationRecord) -> None:
        self.records[allocation["allocation_id"]] = allocation
        front_id = allocation.get("behind")
        if front_id is not None:
            self._followers[front_id] = allocation["allocation_id"]
            return
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
        front_id = allocation.get("behind")
        if front_id is None:
            self.capacity.give(allocation)
            self._quotas.give(allocation)
            if allocation.get("port") is not None:
                self._ports[allocation["host"]].discard(allocation["port"])
        else:
            del self._followers[front_id]
        self._changed(allocation_id, None)
        follower_id = self._followers.pop(allocation_id, None)
        if follower_id is not None:
            follower = self.records[follower_id].copy()
            del follower["behind"]
            if front_id is not None:
                follower["behind"] = front_id
            self._take(follower)
            self._changed(follower_id, follower)
        return True
