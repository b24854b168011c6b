"""Gathering figures from every server of a host, each within a short time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from actorgrid.errors import ActorGridError
from actorgrid.supervisors.envelope import GetMetrics

from ..cluster.messages import HealthReport
from ..gpu.messages import Inventory
from ..ledger.messages import Query
from .processes import ProcessReading

ASK_TIMEOUT_S = 1.0
"""A server that does not answer in this time is reported as not up; the others are not held back by it."""

Ask = Callable[[str, Any, float], Awaitable[Any]]


@dataclass(slots=True)
class HostReading:
    """The figures of a host at one moment. What could not be read is missing, never zero."""

    servers: dict[str, dict[str, float] | None] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    processes: dict[str, ProcessReading] = field(default_factory=dict)
    jobs: dict[str, int] = field(default_factory=dict)
    gpus: list[dict[str, Any]] = field(default_factory=list)
    ready: bool | None = None


async def collect(
    ask: Ask,
    names: Iterable[str],
    read_processes: Callable[[dict[str, int]], Awaitable[dict[str, ProcessReading]]],
    own: tuple[str, int],
) -> HostReading:
    """Ask every server at once. Never raises an ActorGridError; takes little over ``ASK_TIMEOUT_S`` at worst.

    *own* is the name and pid of the asking process, which is up by definition.
    """
    names = tuple(names)

    async def try_ask(name: str, request: Any) -> Any:
        try:
            return await ask(name, request, ASK_TIMEOUT_S)
        except ActorGridError:
            return None

    health, counts, gpus, *figures = await asyncio.gather(
        try_ask("fault_detector", HealthReport()),
        try_ask("consensus", Query("counts")),
        try_ask("gpu_coordinator", Inventory()),
        *(try_ask(name, GetMetrics()) for name in names),
    )
    vitals = (health or {}).get("servers", {})
    pids = {name: int(vital["pid"]) for name, vital in vitals.items()} | {own[0]: own[1]}
    jobs = (counts or {}).get("jobs", {})
    return HostReading(
        servers=dict(zip(names, figures, strict=True)),
        restarts={name: int(vital["restarts"]) for name, vital in vitals.items() if "restarts" in vital},
        processes=await read_processes(pids),
        jobs={str(state): count for state, count in jobs.items() if isinstance(count, int)},
        gpus=list(gpus or ()),
        ready=health["ready"] if health else None,
    )
