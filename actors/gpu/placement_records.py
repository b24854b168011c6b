"""The ledger's records that placing work goes by, and its allocations as placements: one for all members of a gang."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from actorgrid.actors.ledger.record_types import NO_JOB, AllocationRecord, HostRecord, JobRecord, QuotaRecord
from actorgrid.demand import NEAR, Demand
from actorgrid.hotpath.records import WHOLE_GPU_MILLI, Shares
from actorgrid.models import JobState

from ..ledger.attempt_ids import attempt_of, job_of
from ..ledger.tenant_records import TenantRecord, TenantUseRecord


@dataclass(slots=True)
class PlacementRecords:
    """Holds what the ledger says that placing goes by, on host *own_host* in life *own_incarnation*.

    The mappings are their owner's, who keeps them current but for hosts: those are told by ``host_changed``.
    """

    own_host: str
    own_incarnation: int
    jobs: Mapping[str, JobRecord] = field(default_factory=dict)
    allocations: Mapping[str, AllocationRecord] = field(default_factory=dict)
    hosts: dict[str, HostRecord] = field(default_factory=dict)
    quotas: Mapping[str, QuotaRecord] = field(default_factory=dict)
    tenants: Mapping[str, TenantRecord] = field(default_factory=dict)
    tenant_uses: Mapping[str, TenantUseRecord] = field(default_factory=dict)

    @property
    def registered(self) -> bool:
        """Whether the ledger knows this host as it is now."""
        own = self.hosts.get(self.own_host)
        return own is not None and own["incarnation"] == self.own_incarnation

    def host_changed(self, id: str, record: HostRecord | None) -> None:
        """Take over a host's new record; ``None`` when it was removed."""
        if record is None:
            self.hosts.pop(id, None)
        else:
            self.hosts[id] = record

    def queued_job(self, job_id: str) -> JobRecord | None:
        """The record of a job that waits to be placed; ``None`` of any other."""
        job = self.jobs.get(job_id)
        return job if job is not None and job["state"] == JobState.QUEUED else None

    def of_placement(self, id: str) -> list[AllocationRecord]:
        """The allocations that make the placement *id*, by rank; none when the ledger holds nothing of it."""
        if id in self.allocations:
            return [self.allocations[id]]
        attempts = self.jobs.get(job_of(id), NO_JOB).get("attempts", ())
        members = next((each.get("members", ()) for each in reversed(attempts) if each["attempt_id"] == id), ())
        ids = [member["allocation_id"] for member in members]
        return [self.allocations[each] for each in ids if each in self.allocations]

    def allocated(self) -> dict[tuple[str, int], tuple[int, int, list[str]]]:
        """Per (host, device index): thousandths and MiB given out by the ledger, and to whom."""
        used: dict[tuple[str, int], tuple[int, int, list[str]]] = {}
        for record in self.allocations.values():
            owner = record["owner"]
            for index in record["gpu_indexes"]:
                milli, memory, owners = used.get((record["host"], index), (0, 0, []))
                whose = owner.get("job_id") or owner.get("lease_id", "")
                owners = owners if whose in owners else [*owners, whose]
                used[record["host"], index] = (milli + record["gpu_milli"], memory + record["gpu_memory_mib"], owners)
        return used


def by_placement(allocations: Mapping[str, AllocationRecord]) -> dict[str, list[AllocationRecord]]:
    """All allocations by the placement that they are of: those of a gang's members together, by rank."""
    found: dict[str, list[AllocationRecord]] = {}
    for id, record in allocations.items():
        found.setdefault(attempt_of(id), []).append(record)
    for records in found.values():
        if len(records) > 1:
            records.sort(key=lambda record: int(record["owner"].get("rank", 0)))
    return found


def shares_of(records: Iterable[AllocationRecord]) -> Shares:
    """Where they lie, as the engine takes it."""
    return tuple((record["host"], tuple(record["gpu_indexes"])) for record in records)


def demand_held(records: list[AllocationRecord], cpu_milli: int, memory_mib: int) -> Demand:
    """What each of them has of its host; where it lies is settled, so models and devices do not matter."""
    first = records[0]
    return Demand(
        cpu_milli,
        memory_mib,
        len(first["gpu_indexes"]),
        first["gpu_milli"] or WHOLE_GPU_MILLI,
        first["gpu_memory_mib"],
        gang=len(records),
        layout=NEAR,
    )
