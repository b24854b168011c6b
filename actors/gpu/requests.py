"""A job's or lease's wish for room in the scheduler's words, from what the ledger says of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from actorgrid.hotpath.records import WHOLE_GPU_MILLI
from actorgrid.models import AttemptState

from ..ledger.attempt_ids import attempt_id
from ..ledger.tables.preemption import may_ask
from ..ledger.tables.quotas import EVERYONE
from ..scheduling.queue import DEFAULT_PRIORITY, LEASE_PRIORITY, Shape
from ..scheduling.request import APART, NEAR, Need, Request
from ..scheduling.tenant_limits import Limits
from .feasibility import accepted_models
from .grant import Record

MODELS_MAX = 1024
"""Sets of models whose names are remembered."""
STOPPED_S = 1.0
"""After its grace, until what was killed is gone and the ledger knows: planned for beside the grace."""


def attempt_number(job: Record) -> int:
    """The number of the attempt that a queued *job* waits for."""
    return int(job["attempts"][-1]["number"] if job["attempts"] else 0) + 1


def waiting_id(job: Record) -> str:
    """The id under which a queued *job* waits: that of its next attempt."""
    return attempt_id(job["job_id"], attempt_number(job))


def request_of(id: str, shape: Shape, **more: Any) -> Request:
    """Room for *shape*; devices that are named by UUID are its affinity. Raises BadRequest."""
    return Request(
        id,
        cpu_milli=shape.cpu_milli,
        memory_mib=shape.memory_mib,
        gpu_count=shape.gpu_count,
        gpu_milli=shape.gpu_milli or WHOLE_GPU_MILLI,
        gpu_memory_mib=shape.gpu_memory_mib,
        gpu_models=shape.gpu_models,
        affinity=shape.gpu_affinity,
        gang=shape.gang,
        layout="" if shape.gang == 1 else APART if shape.spread else NEAR,
        **more,
    )


def request_of_job(id: str, shape: Shape, job: Record) -> Request:
    """*shape* for an attempt of *job*, waiting or running. Raises BadRequest for times that are none.

    A deadline is strict when there is a time limit to plan with; without one it says only who goes first. A job that
    was stopped for another has waited since then.
    """
    attempts = [attempt for attempt in job["attempts"] if attempt["ended_at"] is not None]
    last = job["attempts"][-1] if job["attempts"] else None
    stopped = last is not None and last["state"] == AttemptState.PREEMPTED
    limit_s = job["max_execution_time_s"]
    return request_of(
        id,
        shape,
        priority=DEFAULT_PRIORITY if job["policy"] == "fifo" else job["priority"],
        submitted_at=last["ended_at"] if last is not None and stopped else job["submitted_at"],
        expected_s=limit_s,
        deadline=job.get("deadline"),
        strict=limit_s is not None,
        preemptible=may_ask(job),
        grace_s=_grace_s(float(job.get("grace_s") or 0.0)),
        tenant=job["user_id"],
        ran_s=sum(max(0.0, attempt["ended_at"] - attempt["placed_at"]) for attempt in attempts),
    )


@lru_cache(maxsize=MODELS_MAX)
def _grace_s(given_s: float) -> float:
    return given_s + STOPPED_S  # one number for all jobs that have the same


def request_of_lease(id: str, shape: Shape, user: str, near: str) -> Request:
    """*shape* for a session of *user*, which is served before jobs and never stopped for others.

    Its client is *near*: a worker on that host is reached by one socket, on another by three.
    """
    return request_of(id, shape, priority=LEASE_PRIORITY, preemptible=False, tenant=user, near=near)


def limits_of(quotas: Mapping[str, Record]) -> tuple[dict[str, Limits], Limits | None]:
    """The scheduler's limits of each user who has a quota, and those of all others."""
    limits: dict[str, Limits] = {
        user: (quota["gpu_milli"], quota["gpu_memory_mib"], quota["cpu_milli"], quota["memory_mib"])
        for user, quota in quotas.items()
    }
    return limits, limits.get(EVERYONE)


class EngineWords:
    """Wishes as the engine takes them, for one set of hosts: models by the engine's names, devices by their indexes."""

    def __init__(self, hosts: Iterable[Record]) -> None:
        self._hosts = hosts
        self._models: dict[tuple[str, ...], tuple[str, ...]] = {}

    def arguments_of_need(self, need: Need) -> Record | None:
        """*need* as the arguments of ``place``; as ``arguments``."""
        return self.arguments(
            Shape(
                gpu_count=need.gpu_count,
                gpu_milli=need.gpu_milli,
                gpu_memory_mib=need.gpu_memory_mib,
                gpu_models=need.gpu_models,
                gpu_affinity=need.affinity,
                cpu_milli=need.cpu_milli,
                memory_mib=need.memory_mib,
                gang=need.gang,
                spread=need.apart,
            )
        )

    def arguments(self, shape: Shape) -> Record | None:
        """*shape* as the arguments of ``place``; ``None`` when no device there is could serve it."""
        request: Record = {"cpu_milli": shape.cpu_milli, "memory_mib": shape.memory_mib}
        if shape.gang > 1:
            request["gang"] = shape.gang
        if not shape.gpu_count:
            return request
        request.update(
            gpu_count=shape.gpu_count,
            gpu_milli=shape.gpu_milli or WHOLE_GPU_MILLI,
            gpu_memory_mib=shape.gpu_memory_mib,
        )
        if shape.gpu_models:
            models = self._models.get(shape.gpu_models)
            if models is None:
                if len(self._models) >= MODELS_MAX:
                    self._models.clear()
                models = self._models[shape.gpu_models] = accepted_models(shape.gpu_models, self._hosts)
            if not models:
                return None
            request["gpu_models"] = models
        if shape.gpu_affinity:
            wanted = set(shape.gpu_affinity)
            found = [
                (host["host_id"], tuple(device["index"] for device in host["devices"] if device["uuid"] in wanted))
                for host in self._hosts
            ]
            request["within"] = tuple(share for share in found if share[1])
            if not request["within"]:
                return None
        return request
