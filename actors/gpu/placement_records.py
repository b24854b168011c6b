"""Allocations of the ledger as the engine holds them: one placement for an attempt, with a share for each member."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from actorgrid.actors.ledger.record_types import NO_JOB, AllocationRecord, JobRecord
from actorgrid.demand import NEAR, Demand
from actorgrid.hotpath.records import WHOLE_GPU_MILLI, Shares

from ..ledger.attempt_ids import attempt_of, job_of


def by_placement(allocations: Mapping[str, AllocationRecord]) -> dict[str, list[AllocationRecord]]:
    """All allocations by the placement that they are of: those of a gang's members together, by rank."""
    found: dict[str, list[AllocationRecord]] = {}
    for id, record in allocations.items():
        found.setdefault(attempt_of(id), []).append(record)
    for records in found.values():
        if len(records) > 1:
            records.sort(key=lambda record: int(record["owner"].get("rank", 0)))
    return found


def records_of(
    id: str, allocations: Mapping[str, AllocationRecord], jobs: Mapping[str, JobRecord]
) -> list[AllocationRecord]:
    """The allocations that make the placement *id*, by rank; none when the ledger holds nothing of it."""
    if id in allocations:
        return [allocations[id]]
    attempts = jobs.get(job_of(id), NO_JOB).get("attempts", ())
    members = next((each.get("members", ()) for each in reversed(attempts) if each["attempt_id"] == id), ())
    ids = [member["allocation_id"] for member in members]
    return [allocations[each] for each in ids if each in allocations]


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
