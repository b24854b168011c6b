"""The shapes of the ledger's records: job, attempt, allocation, host, with a value for every field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from actorgrid.actors.ledger.record_types import (
    AllocationRecord,
    AttemptRecord,
    DeviceRecord,
    EndFacts,
    HostFacts,
    HostRecord,
    JobRecord,
    OwnerRecord,
    ResourcesRecord,
)
from actorgrid.digests import is_digest
from actorgrid.errors import (
    ActorGridError,
    DependencyFailed,
    ErrorRecord,
    TaskCancelled,
    TaskFailed,
    TaskTimedOut,
    WorkerLost,
)
from actorgrid.working_dir import VARIABLE

from .field_checks import is_whole
from .tables.preemption import PREEMPTED, preempted_error

END_FACTS = ("exit_code", "signal", "max_rss_bytes", "cpu_s", "result_bytes")
NO_FACTS: EndFacts = {"exit_code": None, "signal": None, "max_rss_bytes": None, "cpu_s": None, "result_bytes": None}
NEVER_BEFORE = 0.0
MAX_ISOLATION_S = 10.0
"""How long work goes on alone when nobody said."""
MIN_ISOLATION_S = 3.0
"""Less is no patience: a leader waits for so long at least (``LEASE_MAX_S``), so that less would only end work sooner
than it can begin elsewhere, and a host renews once a second, which a busy machine makes slower. What an earlier version
took as less counts as that."""
DEVICE_MILLI = 1000
"""A whole device, in thousandths."""
UNKNOWN_USER = "local"
"""Whose work it is when nobody said."""


def resources_of(given: Mapping[str, Any]) -> ResourcesRecord:
    """The record of the resources asked for, per member of a gang; what is not named is not asked for.

    Only a gang has a size.
    """
    record = {
        "gpus": 0.0,
        "gpu_count": 0,
        "gpu_milli": 0,
        "gpu_memory_mib": 0,
        "gpu_models": [],
        "gpu_affinity": [],
        "cpu_milli": 0,
        "memory_mib": 0,
        **given,
    }
    return cast("ResourcesRecord", record)


def new_job(given: Mapping[str, Any], ordinal: int, index: int, at: float) -> JobRecord:
    """A queued job. ``ordinal`` counts jobs in the order of their acceptance, from 1."""
    record = {
        "name": "",
        "user_id": UNKNOWN_USER,
        "kind": "command",
        "command": [],
        "payload_digest": None,
        "stdin_digest": None,
        "python": "",
        "priority": 50,
        "policy": "priority",
        "env": {},
        "cwd": None,
        "max_execution_time_s": None,
        "pool": None,
        "max_isolation_s": MAX_ISOLATION_S,
        "retries_left": 0,
        "deadline": None,
        "preemptible": True,
        "grace_s": 5.0,
        "submitted_at": at,
        **given,
        "depends_on": list(dict.fromkeys(given.get("depends_on", ()))),
        "resources": resources_of(given["resources"]),
        "ordinal": ordinal,
        "state": "queued",
        "cancel_requested": False,
        "preemptions": 0,
        "submitted_index": index,
        "not_before": NEVER_BEFORE,
        "ended_at": None,
        "error": None,
        "attempts": [],
    }
    return cast("JobRecord", record)


def new_attempt(allocation: AllocationRecord, number: int, latency_us: float | None) -> AttemptRecord:
    """A placed attempt, from the allocation it runs on."""
    record = {
        "number": number,
        "attempt_id": allocation["allocation_id"],
        "allocation_id": allocation["allocation_id"],
        "host": allocation["host"],
        "incarnation": allocation["incarnation"],
        "state": "placed",
        "token": allocation["token"],
        "gpu_indexes": allocation["gpu_indexes"],
        "gpu_uuids": allocation["gpu_uuids"],
        "placed_at": allocation["granted_at"],
        "started_at": None,
        "ended_at": None,
        "error": None,
        "preemption": None,
        "placement_latency_us": latency_us,
        **NO_FACTS,
    }
    return cast("AttemptRecord", record)


def with_attempt(job: JobRecord, attempt: AttemptRecord) -> list[AttemptRecord]:
    """The job's attempts with *attempt* in place of the one with its number."""
    return [attempt if each["number"] == attempt["number"] else each for each in job["attempts"]]


def last_number(job: JobRecord) -> int:
    """The number of the job's latest attempt; 0 before the first."""
    number: int = job["attempts"][-1]["number"] if job["attempts"] else 0
    return number


def new_allocation(
    allocation_id: str,
    owner: OwnerRecord,
    where: Mapping[str, Any],
    devices: list[DeviceRecord],
    resources: ResourcesRecord,
) -> AllocationRecord:
    """An allocation's record; *where* holds host, incarnation, gpu_indexes, token, granted_at, pool, env, user_id."""
    record = {
        "allocation_id": allocation_id,
        "owner": owner,
        "gpu_uuids": [device["uuid"] for device in devices],
        "gpu_milli": resources["gpu_milli"] if devices else 0,
        "gpu_memory_mib": resources["gpu_memory_mib"] if devices else 0,
        "cpu_milli": resources["cpu_milli"],
        "memory_mib": resources["memory_mib"],
        **where,
    }
    parents = [parent for parent in map(parent_of, devices) if parent]
    if parents:
        record["gpu_parents"] = sorted(set(parents))
    return cast("AllocationRecord", record)


def parent_of(device: DeviceRecord) -> str:
    """The UUID of the whole device that *device* is an instance of; ``""`` for one that is whole."""
    parent = device.get("parent")
    # What an entry of an earlier version says under that name was never read.
    return parent if isinstance(parent, str) else ""


def profiles_of(device: DeviceRecord) -> list[str]:
    """The instances that *device* is cut into when work asks for one, as ``parent_of`` reads."""
    told: object = device.get("profiles")
    return [each for each in told if isinstance(each, str)] if isinstance(told, list) else []


def share_of(device: DeviceRecord) -> int:
    """How much *device* is of a whole one, in thousandths."""
    share = device.get("share_milli", DEVICE_MILLI)
    return share if is_whole(share) and 1 <= share <= DEVICE_MILLI else DEVICE_MILLI


def isolation_of(allocation: AllocationRecord, job: JobRecord) -> float:
    """Seconds that the holder of *allocation* may go on without its leader.

    The leader and the host must use the same.
    """
    given = allocation if "max_isolation_s" in allocation else job
    return max(MIN_ISOLATION_S, float(given.get("max_isolation_s") or MAX_ISOLATION_S))


def working_dir_of(job: JobRecord) -> str:
    """The digest of the job's working directory; empty when it has none.

    It is one of the job's two files, and named by its variable: a command has no payload, a function no standard input.
    """
    digest = (job.get("env") or {}).get(VARIABLE, "")
    file = job.get("payload_digest") if job.get("kind", "command") == "command" else job.get("stdin_digest")
    return digest if is_digest(digest) and digest == file else ""


def new_host(given: HostFacts, at: float) -> HostRecord:
    """A registered host."""
    unknown = {
        "vendor": "",
        "model": "",
        "source": "declared",
        "compute_capability": None,
        "pcie_bus_id": None,
        "numa_node": None,
    }
    record = {
        "hostname": given["host_id"],
        "state": "up",
        "address": None,
        "port": None,
        **given,
        "devices": [{**unknown, **device} for device in given["devices"]],
        "registered_at": at,
    }
    return cast("HostRecord", record)


def dependency_failed(job_id: str, dependency: str, state: str) -> ErrorRecord:
    """The error of a job that can never run."""
    return DependencyFailed(
        f"job {dependency}, which job {job_id} depends on, ended {state}",
        asked=job_id,
        found=state,
        hint=f"actorgrid why {dependency}",
    ).to_dict()


def cancelled_before_start(by: str) -> ErrorRecord:
    """The error of a job that was cancelled while it waited."""
    return TaskCancelled(f"cancelled by {by or 'request'} before it started").to_dict()


def default_error(outcome: str, attempt: AttemptRecord) -> ErrorRecord:
    """The error of an attempt that ended badly and came with none."""
    attempt_id = attempt["attempt_id"]
    if outcome == PREEMPTED:
        return preempted_error(attempt)
    kinds: dict[str, type[ActorGridError]] = {
        "failed": TaskFailed,
        "cancelled": TaskCancelled,
        "timed_out": TaskTimedOut,
        "lost": WorkerLost,
    }
    return kinds[outcome](f"attempt {attempt_id} {outcome.replace('_', ' ')}").to_dict()
