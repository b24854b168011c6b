"""What jobs, leases and allocations are in the scheduler's words: requests, shares, limits of tenants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from actorgrid.hotpath import TypicalTask

from ..consensus.quotas import EVERYONE
from ..scheduling.allowance import Limits
from ..scheduling.queue import Shape
from ..scheduling.request import WHOLE_GPU_MILLI, Request, Shares
from .feasibility import accepted_models

Record = Mapping[str, Any]


def request_of(id: str, shape: Shape, **more: Any) -> Request:
    """A job's or lease's wish for room; devices that are named by UUID are its affinity."""
    return Request(
        id,
        cpu_milli=shape.cpu_milli,
        memory_mib=shape.memory_mib,
        gpu_count=shape.gpu_count,
        gpu_milli=shape.gpu_milli or WHOLE_GPU_MILLI,
        gpu_memory_mib=shape.gpu_memory_mib,
        gpu_models=shape.gpu_models,
        affinity=shape.gpu_affinity,
        **more,
    )


def request_behind(record: Record) -> Request:
    """The wish that *record*, an allocation, fulfils, as far as quotas count it."""
    return Request(
        record["allocation_id"],
        cpu_milli=record["cpu_milli"],
        memory_mib=record["memory_mib"],
        gpu_count=len(record["gpu_indexes"]),
        gpu_milli=record["gpu_milli"] or WHOLE_GPU_MILLI,
        gpu_memory_mib=record["gpu_memory_mib"],
        tenant=record["user_id"],
    )


def shares_of(record: Record) -> Shares:
    """Where an allocation is, as the engine has it."""
    return ((record["host"], tuple(record["gpu_indexes"])),)


def limits_of(quotas: Mapping[str, Record]) -> tuple[dict[str, Limits], Limits | None]:
    """The limits of each user who has a quota, and those of all others."""
    limits: dict[str, Limits] = {
        user: (quota["gpu_milli"], quota["gpu_memory_mib"], quota["cpu_milli"], quota["memory_mib"])
        for user, quota in quotas.items()
    }
    return limits, limits.get(EVERYONE)


def typical_tasks(mix: Mapping[Shape, float], hosts: Iterable[Record]) -> list[TypicalTask]:
    """What usually comes, for the engine to weigh by; for a model that is not here nothing need be kept."""
    tasks = []
    for shape, part in mix.items():
        models = accepted_models(shape.gpu_models, hosts)
        if models or not shape.gpu_models:
            milli = shape.gpu_milli or WHOLE_GPU_MILLI
            tasks.append(TypicalTask(shape.cpu_milli, shape.gpu_count, milli, part, models))
    return tasks
