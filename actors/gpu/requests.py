"""A job's or lease's wish for room in the scheduler's words, from what the ledger says of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from actorgrid.actors.ledger.record_types import HostRecord, JobRecord, QuotaRecord
from actorgrid.demand import Demand
from actorgrid.models import AttemptState

from ..ledger.attempt_ids import attempt_id
from ..ledger.tables.preemption import may_ask
from ..ledger.tables.quotas import EVERYONE
from ..scheduling.request import DEFAULT_PRIORITY, LEASE_PRIORITY, Request
from ..scheduling.tenant_limits import Limits
from .feasibility import accepted_models
from .grant import Record

MODELS_MAX = 1024
"""Sets of models whose names are remembered."""
STOPPED_S = 1.0
"""After its grace, until what was killed is gone and the ledger knows: planned for beside the grace."""


def attempt_number(job: JobRecord) -> int:
    """The number of the attempt that a queued *job* waits for."""
    return int(job["attempts"][-1]["number"] if job["attempts"] else 0) + 1


def waiting_id(job: JobRecord) -> str:
    """The id under which a queued *job* waits: that of its next attempt."""
    return attempt_id(job["job_id"], attempt_number(job))


def request_of_job(id: str, demand: Demand, job: JobRecord) -> Request:
    """*demand* for an attempt of *job*, waiting or running. Raises BadRequest for times that are none.

    A deadline is strict when there is a time limit to plan with; without one it says only who goes first. A job that
    was stopped for another has waited since then.
    """
    attempts = [attempt for attempt in job["attempts"] if attempt["ended_at"] is not None]
    last = job["attempts"][-1] if job["attempts"] else None
    stopped = last is not None and last["state"] == AttemptState.PREEMPTED
    limit_s = job["max_execution_time_s"]
    return Request(
        id,
        demand,
        priority=DEFAULT_PRIORITY if job["policy"] == "fifo" else job["priority"],
        submitted_at=(last["ended_at"] or 0.0) if last is not None and stopped else job["submitted_at"],
        expected_s=limit_s,
        deadline=job.get("deadline"),
        strict=limit_s is not None,
        preemptible=may_ask(job),
        grace_s=_grace_s(float(job.get("grace_s") or 0.0)),
        tenant=job["user_id"],
        ran_s=sum(max(0.0, (attempt["ended_at"] or 0.0) - attempt["placed_at"]) for attempt in attempts),
    )


@lru_cache(maxsize=MODELS_MAX)
def _grace_s(given_s: float) -> float:
    return given_s + STOPPED_S  # one number for all jobs that have the same


def request_of_lease(id: str, demand: Demand, user: str, near: str) -> Request:
    """*demand* for a session of *user*, which is served before jobs and never stopped for others.

    Its client is *near*: a worker on that host is reached by one socket, on another by three.
    """
    return Request(id, demand, priority=LEASE_PRIORITY, preemptible=False, tenant=user, near=near)


def limits_of(quotas: Mapping[str, QuotaRecord]) -> tuple[dict[str, Limits], Limits | None]:
    """The scheduler's limits of each user who has a quota, and those of all others."""
    limits: dict[str, Limits] = {
        user: (quota["gpu_milli"], quota["gpu_memory_mib"], quota["cpu_milli"], quota["memory_mib"])
        for user, quota in quotas.items()
    }
    return limits, limits.get(EVERYONE)


class EngineArguments:
    """Demands as the engine takes them on one set of hosts: models by the engine's names, devices by their indexes."""

    def __init__(self, hosts: Iterable[HostRecord]) -> None:
        self._hosts = hosts
        self._models: dict[tuple[str, ...], tuple[str, ...]] = {}

    def of(self, demand: Demand) -> Record | None:
        """*demand* as the arguments of ``place``; ``None`` when no device there is could serve it."""
        arguments = demand.arguments()
        if demand.gpu_models:
            models = self._models.get(demand.gpu_models)
            if models is None:
                if len(self._models) >= MODELS_MAX:
                    self._models.clear()
                models = self._models[demand.gpu_models] = accepted_models(demand.gpu_models, self._hosts)
            if not models:
                return None
            arguments["gpu_models"] = models
        if demand.affinity_hard:
            wanted = set(demand.affinity_hard)
            found = [
                (host["host_id"], tuple(device["index"] for device in host["devices"] if device["uuid"] in wanted))
                for host in self._hosts
            ]
            arguments["within"] = tuple(share for share in found if share[1])
            if not arguments["within"]:
                return None
        return arguments
