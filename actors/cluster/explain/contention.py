"""Who holds the room a waiting job could use, what would free it, and what smaller request might fit. No I/O."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from actorgrid.actors.gpu.device_words import record_is_one_of
from actorgrid.actors.gpu.feasibility import members_on
from actorgrid.actors.ledger.record_types import (
    NO_ATTEMPT,
    NO_JOB,
    AllocationRecord,
    HeldAmounts,
    HostRecord,
    JobRecord,
    ResourcesRecord,
)
from actorgrid.demand import Demand

FitReport = Mapping[str, Any]
"""What the engine's ``explain()`` gives."""

CANCELLED_MAX = 3
"""Nobody is told to cancel more jobs than this to let one start."""
OTHER_MODELS_MAX = 2
LOOKED_AT_MAX = 256


class Holder(HeldAmounts):
    """A job, or a client's lease, that holds room on a host; times are seconds since the epoch."""

    job_id: str | None
    """``None`` of a lease."""
    session_id: str | None
    """Of a lease."""
    lease_id: str | None
    """Of a lease."""
    name: str
    """For people."""
    priority: int | None
    """Of a job."""
    gpus: float
    """Whole devices, or a share of one."""
    since: float
    """When it was granted."""
    ends_by: float | None
    """When its time limit ends it, where it has one."""
    host_id: str
    """Where it is."""


def holders(host: HostRecord, allocations: Iterable[AllocationRecord], jobs: Mapping[str, JobRecord]) -> list[Holder]:
    """The holders of room on *host*, lowest priority first.

    Of equal priority, the one that began last comes first: ending it wastes least.
    """
    return _holders((held for held in allocations if held["host"] == host["host_id"]), jobs)


def holders_of_user(user: str, allocations: Iterable[AllocationRecord], jobs: Mapping[str, JobRecord]) -> list[Holder]:
    """The holders of room on behalf of *user*, as ``holders`` gives them, with ``host_id``."""
    return _holders((held for held in allocations if held["user_id"] == user), jobs)


def _holders(allocations: Iterable[AllocationRecord], jobs: Mapping[str, JobRecord]) -> list[Holder]:
    found: list[Holder] = []
    for held in allocations:
        owner = held["owner"]
        job = jobs.get(owner.get("job_id") or "", NO_JOB)
        attempt = job["attempts"][-1] if job.get("attempts") else NO_ATTEMPT
        began, limit = attempt.get("started_at"), job.get("max_execution_time_s")
        found.append(
            {
                "job_id": owner.get("job_id"),
                "session_id": owner.get("session_id"),
                "lease_id": owner.get("lease_id"),
                "name": job.get("name") or ("a client's session" if owner.get("session_id") else ""),
                "priority": job.get("priority"),
                "gpus": held["gpu_milli"] * len(held["gpu_indexes"]) / 1000,
                "gpu_indexes": list(held["gpu_indexes"]),
                "gpu_milli": held["gpu_milli"],
                "gpu_memory_mib": held["gpu_memory_mib"],
                "cpu_milli": held["cpu_milli"],
                "memory_mib": held["memory_mib"],
                "since": held["granted_at"],
                "ends_by": began + limit if began and limit else None,
                "host_id": held["host"],
            }
        )
    found.sort(key=lambda one: (one["priority"] is None, one["priority"] or 0, -one["since"]))
    return found


def fits(host: HostRecord, held: Iterable[HeldAmounts], resources: ResourcesRecord) -> bool:
    """Whether *host* could serve *resources* if nothing but *held* were on it."""
    return members_on(Demand.of(resources), host, held) > 0


def may_go(one: Holder, priority: int) -> bool:
    """Whether *one*, as :func:`holders` gives it, is a job of at most *priority*: others may be told to cancel it."""
    return bool(one["job_id"]) and one["priority"] is not None and one["priority"] <= priority


def freeing(host: HostRecord, held: list[Holder], resources: ResourcesRecord, priority: int) -> list[str]:
    """The jobs of at most *priority* to cancel so that *host* has room for *resources*: none could be left out.

    Lowest priorities first; sessions are never named. Empty when it takes more than 3 jobs, or cannot be done.
    *held* is what :func:`holders` gives; no more than 256 of them are looked at.
    """
    kept = [one for one in held if not may_go(one, priority)]
    victims = [one for one in held if may_go(one, priority)][:LOOKED_AT_MAX]
    if not fits(host, kept, resources):
        return []
    needed = list(victims)
    for one in reversed(victims):  # those it would be the greatest pity to lose are spared first
        without = [other for other in needed if other is not one]
        spared = [other for other in victims if other not in without]
        if fits(host, [*kept, *spared], resources):
            needed = without
    return [str(one["job_id"]) for one in needed] if len(needed) <= CANCELLED_MAX else []


def fits_at(host: HostRecord, held: list[Holder], resources: ResourcesRecord) -> float | None:
    """The time by which *host* has room for *resources*, by its jobs' time limits; ``None`` without such a time."""
    ends = sorted({one["ends_by"] for one in held if one["ends_by"] is not None})
    for end in ends[:LOOKED_AT_MAX]:
        left = [one for one in held if one["ends_by"] is None or one["ends_by"] > end]
        if fits(host, left, resources):
            return float(end)
    return None


def reduced(demand: Demand, report: FitReport) -> Demand | None:
    """*demand* cut down to what the nearest host of *report* (the engine's ``explain``) has, as far as that tells.

    ``None`` when it tells nothing, or when nothing of what is short would be left.
    """
    missing = (report.get("nearest") or {}).get("missing") or {}
    changed: dict[str, Any] = {}
    short = int(missing.get("gpus", 0))
    if short and "gpu_milli" in missing:
        left = demand.gpu_milli - int(missing["gpu_milli"])
        if demand.gpu_count > short:
            changed["gpu_count"] = demand.gpu_count - short
        elif demand.gpu_count == 1 and left > 0:
            changed["gpu_milli"] = left
        else:
            return None
    for name in ("gpu_memory_mib", "cpu_milli", "memory_mib"):
        if name in missing:
            changed[name] = int(getattr(demand, name)) - int(missing[name])
            if changed[name] <= 0:
                return None
    return replace(demand, **changed) if changed else None


def options(asked: Demand, instead: Demand) -> str:
    """The command-line options that ask for *instead* rather than for *asked*."""
    words = []
    if asked.gpus != instead.gpus:
        words.append(f"--gpus {instead.gpus:g}")
    for name, option in (("gpu_memory_mib", "--gpu-memory"), ("memory_mib", "--memory")):
        if getattr(asked, name) != getattr(instead, name):
            words.append(f"{option} {getattr(instead, name)}MiB")
    if asked.cpu_milli != instead.cpu_milli:
        words.append(f"--cpus {instead.cpu_milli / 1000:g}")
    if asked.gpu_models != instead.gpu_models:
        words += [f"--gpu-model {shlex.quote(model)}" for model in instead.gpu_models]
    return " ".join(words) or "any device instead of those named"


def other_kinds(demand: Demand, hosts: Iterable[HostRecord]) -> list[Demand]:
    """*demand* on a model there is and that was not asked for, at most 2; and on any device, where some were named.

    Whether one fits, only the engine knows.
    """
    found: list[Demand] = []
    if demand.gpu_models:
        there = {str(one.get("model", "")): one for host in hosts for one in host["devices"]}
        others = [model for model in sorted(there) if model and not record_is_one_of(there[model], demand.gpu_models)]
        found += [replace(demand, gpu_models=(model,)) for model in others[:OTHER_MODELS_MAX]]
    if demand.affinity_hard:
        found.append(replace(demand, affinity_hard=()))
    return found
