"""Leases of sessions: which there are, who holds what by them, what their workers wrote; and their end from outside.

A lease is an allocation in the ledger, so every host lists all of them; its worker is asked on the host that it is on.
"""

from __future__ import annotations

from typing import Any, Literal

from aiohttp import web
from pydantic import Field

from actorgrid.access import Right
from actorgrid.actors.cluster.messages import SESSION
from actorgrid.actors.gateway.schemas.answers import LastKnown
from actorgrid.actors.gateway.server.last_known import cluster_known, last_known, presence
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.ledger.record_types import NO_HOST, AllocationRecord
from actorgrid.actors.links.messages import AskHost
from actorgrid.actors.work.messages import DetachLease, LeaseOutput
from actorgrid.errors import HostUnreachable, UnknownAllocation
from actorgrid.models import AnswerBody, HostPresence, RequestBody

ROUTES = RouteTable(Route)

CANCEL_S = 60.0
OUTPUT_S = 10.0
OUTPUT_MAX = 2**19

Plain = dict[str, Any]


class SessionLease(AnswerBody):
    """A worker that a client's session holds, with what was granted to it.

    ``home``: the host where the session was opened; ``held_since`` in seconds since the epoch; ``presence``: whether
    the host of the worker is there.
    """

    lease_id: str
    session_id: str
    user_id: str
    host: str
    hostname: str
    home: str
    presence: HostPresence
    pool: str | None
    gpu_indexes: list[int]
    gpu_uuids: list[str]
    gpu_milli: int
    gpu_memory_mib: int
    cpu_milli: int
    memory_mib: int
    held_since: float | None


class LeasesAnswer(AnswerBody):
    """All leases of sessions, by session and age."""

    leases: list[SessionLease]
    last_known: LastKnown | None = None


class LeaseCancelled(AnswerBody):
    """The lease is over: its worker is gone, and what it held is free."""

    lease_id: str
    session_id: str
    cancelled: bool = True


class LeaseLogsQuery(RequestBody):
    """Which stream."""

    stream: Literal["stdout", "stderr"] = "stdout"
    offset: int = Field(default=0, ge=0, le=2**62, description="bytes to leave out at the start")


def _view(call: RequestContext, allocation: AllocationRecord, known: Plain | None) -> Plain:
    owner = allocation["owner"]
    hosts = call.app.ledger.hosts
    session_id = str(owner["session_id"])
    return {
        "lease_id": allocation["allocation_id"],
        "session_id": session_id,
        "user_id": allocation.get("user_id") or "",
        "host": allocation["host"],
        "hostname": str(hosts.get(allocation["host"], NO_HOST).get("hostname", allocation["host"])),
        "home": session_id.rpartition(".")[0] or call.app.host.host_id,
        "presence": presence(known, str(allocation["host"])),
        "pool": allocation.get("pool"),
        "gpu_indexes": list(allocation["gpu_indexes"]),
        "gpu_uuids": list(allocation["gpu_uuids"]),
        "gpu_milli": allocation["gpu_milli"],
        "gpu_memory_mib": allocation["gpu_memory_mib"],
        "cpu_milli": allocation["cpu_milli"],
        "memory_mib": allocation["memory_mib"],
        "held_since": allocation.get("granted_at"),
    }


def _lease(call: RequestContext) -> AllocationRecord:
    """The lease that the path names. Raises UnknownAllocation, also for one out of reach."""
    lease_id = call.part("lease_id")
    allocation = call.app.ledger.allocations.get(lease_id)
    known = allocation is not None and allocation["owner"]["kind"] == SESSION
    if allocation is None or not known or not call.scope.covers(str(allocation.get("user_id") or "")):
        raise UnknownAllocation(
            "no session holds a lease of that id", asked=lease_id, hint="actorgrid ps --sessions lists them"
        )
    return allocation


@ROUTES.add("GET", "/api/leases", LeasesAnswer, "sessions", Right.LIST_LEASES)
async def get_leases(call: RequestContext) -> Any:
    """Workers that sessions hold, and by whom.

    Those in reach of whoever asks.
    """
    known = await cluster_known(call)
    held = [each for each in list(call.app.ledger.allocations.values()) if each["owner"]["kind"] == SESSION]
    rows = [_view(call, each, known) for each in held if call.scope.covers(str(each.get("user_id") or ""))]
    rows.sort(key=lambda row: (row["session_id"], row["held_since"] or 0.0))
    return {"leases": rows, "last_known": last_known(known)}


@ROUTES.add("GET", "/api/leases/{lease_id}", SessionLease, "sessions", Right.LIST_LEASES, errors=(UnknownAllocation,))
async def get_lease(call: RequestContext) -> Any:
    """One worker that a session holds."""
    return _view(call, _lease(call), await cluster_known(call, fresh=False))


@ROUTES.add(
    "POST",
    "/api/leases/{lease_id}/cancel",
    LeaseCancelled,
    "sessions",
    Right.STEER_JOBS,
    errors=(UnknownAllocation, HostUnreachable),
    unlimited=True,
)
async def cancel_lease(call: RequestContext) -> Any:
    """End a lease: its task is killed, and its client told."""
    lease = _lease(call)
    lease_id = str(lease["allocation_id"])
    if lease["host"] == call.app.host.host_id:
        await call.ask("worker_manager", DetachLease(lease_id, cancelled=True), CANCEL_S)
    else:
        fields = {"lease_id": lease_id, "cancelled": True}
        await _ask_there(call, lease, "detach_lease", fields, CANCEL_S)
    return {"lease_id": lease_id, "session_id": lease["owner"]["session_id"]}


@ROUTES.add(
    "GET",
    "/api/leases/{lease_id}/logs",
    "application/octet-stream",
    "sessions",
    Right.READ_OUTPUT,
    query=LeaseLogsQuery,
    errors=(UnknownAllocation, HostUnreachable),
)
async def get_lease_logs(call: RequestContext) -> Any:
    """What the worker wrote under the lease; 512 KiB from the offset on."""
    query, lease = call.query_as(LeaseLogsQuery), _lease(call)
    lease_id = str(lease["allocation_id"])
    if lease["host"] == call.app.host.host_id:
        ask = LeaseOutput(lease_id, query.stream, query.offset, OUTPUT_MAX)
        found = await call.ask("worker_manager", ask, OUTPUT_S)
    else:
        fields = {"lease_id": lease_id, "stream": query.stream, "offset": query.offset, "limit": OUTPUT_MAX}
        found = await _ask_there(call, lease, "lease_output", fields, OUTPUT_S)
    headers = {"X-Size": str(found["size"])}
    return web.Response(body=found["data"], content_type="application/octet-stream", headers=headers)


async def _ask_there(
    call: RequestContext, lease: AllocationRecord, service: str, fields: Plain, timeout_s: float
) -> Any:
    if call.app.host.enrolment is None:
        raise HostUnreachable("the lease is on another host, and this one is alone", found=str(lease["host"]))
    return await call.ask("links", AskHost(lease["host"], service, fields, timeout_s), timeout_s + 1)
