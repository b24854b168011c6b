"""Tenants: what each is given, holds and has waiting; created, changed and removed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import time
from typing import Any

from actorgrid.access import EVERYTHING, Right, check_tenant, tenant_of
from actorgrid.actors.cluster.messages import CloseSession, ListJobs, RequestCancel
from actorgrid.actors.gateway.schemas.tenants import (
    Tenant,
    TenantAmounts,
    TenantBounds,
    TenantRemoved,
    TenantRequest,
    TenantsAnswer,
    TenantTermsRequest,
)
from actorgrid.actors.gateway.server.rights import tenant_in_reach
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.ledger.commands import PutTenant, RemoveTenant
from actorgrid.actors.ledger.messages import Query
from actorgrid.actors.ledger.query_answers import JobsPage
from actorgrid.actors.ledger.record_types import HostRecord
from actorgrid.actors.ledger.tables.tenants import no_tenant
from actorgrid.actors.ledger.tenant_records import (
    CPU,
    GPU,
    GPU_MEMORY,
    JOBS_WAITING,
    MEMORY,
    OF_MODEL,
    WAITING_BYTES,
    WHOLE_MILLI,
    TenantUsage,
    charge_of,
)
from actorgrid.errors import ActorGridError, BadRequest, NotFound, WrongState
from actorgrid.models import JobState

ROUTES = RouteTable(Route)

ANSWER_S = 10.0
COMMIT_TIMEOUT_S = 45.0
CANCELLED_MAX = 1_000
TOGETHER = 50
"""Jobs that are cancelled at a time."""
ALL_TENANTS = "*"


@ROUTES.add("GET", "/api/tenants", TenantsAnswer, "quotas", Right.READ_QUOTAS)
async def get_tenants(call: RequestContext) -> Any:
    """Tenants: what they are given, hold, held of late and have waiting."""
    reach = tenant_in_reach(call)
    hosts = call.app.ledger.hosts
    return {"tenants": [_shown(row, hosts) for row in await _rows(call) if reach in (ALL_TENANTS, row["tenant"])]}


@ROUTES.add("GET", "/api/tenants/{tenant}", Tenant, "quotas", Right.READ_QUOTAS, errors=(NotFound,))
async def get_tenant(call: RequestContext) -> Any:
    """One tenant."""
    return _shown(await _row(call, call.part("tenant")), call.app.ledger.hosts)


@ROUTES.add(
    "POST",
    "/api/tenants",
    Tenant,
    "quotas",
    Right.WRITE_QUOTAS,
    request=TenantRequest,
    errors=(BadRequest, WrongState),
)
async def post_tenant(call: RequestContext) -> Any:
    """Create a tenant."""
    wanted = call.body_as(TenantRequest)
    check_tenant(wanted.name)
    weight_milli = 1000 if wanted.weight is None else round(1000 * wanted.weight)
    guarantee, limits = _amounts(wanted.guarantee), _amounts(wanted.limits)
    await call.propose(PutTenant(wanted.name, weight_milli, guarantee, limits, True, call.caller, at=time()))
    return _shown(await _row(call, wanted.name), call.app.ledger.hosts)


@ROUTES.add(
    "PUT",
    "/api/tenants/{tenant}",
    Tenant,
    "quotas",
    Right.WRITE_QUOTAS,
    request=TenantTermsRequest,
    errors=(BadRequest, NotFound),
)
async def put_tenant(call: RequestContext) -> Any:
    """Give a tenant another weight, guarantee or limits."""
    name, wanted = call.part("tenant"), call.body_as(TenantTermsRequest)
    record = (await _row(call, name))["record"]
    if record is None:
        raise no_tenant(name, call.app.ledger.tenants)
    command = PutTenant(
        name,
        record["weight_milli"] if wanted.weight is None else round(1000 * wanted.weight),
        record["guarantee"] if wanted.guarantee is None else _amounts(wanted.guarantee),
        record["limits"] if wanted.limits is None else _amounts(wanted.limits),
        False,
        call.caller,
        at=time(),
    )
    await call.propose(command)
    return _shown(await _row(call, name), call.app.ledger.hosts)


@ROUTES.add("DELETE", "/api/tenants/{tenant}", TenantRemoved, "quotas", Right.WRITE_QUOTAS, errors=(NotFound,))
async def delete_tenant(call: RequestContext) -> Any:
    """Remove a tenant: its keys open nothing any more, nothing of it starts, and what runs is ended.

    Asked again while there are more than 1,000 jobs.
    """
    name = call.part("tenant")
    if name not in call.app.ledger.tenants:
        raise no_tenant(name, call.app.ledger.tenants)
    await call.propose(RemoveTenant(name, call.caller, at=time()))
    live = tuple(state.value for state in JobState if not state.final)
    page: JobsPage = await call.ask("cluster_manager", ListJobs(live, CANCELLED_MAX, tenant=name), ANSWER_S)
    jobs = [job["job_id"] for job in page["jobs"] if not job["cancel_requested"]]
    for first in range(0, len(jobs), TOGETHER):
        asks = (
            call.ask("cluster_manager", RequestCancel(job_id, by=call.caller), COMMIT_TIMEOUT_S)
            for job_id in jobs[first : first + TOGETHER]
        )
        await asyncio.gather(*asks)
    sessions = {
        record["owner"].get("session_id", "")
        for record in call.app.ledger.allocations.values()
        if record["owner"]["kind"] == "session" and tenant_of(record["user_id"]) == name
    }
    closed = 0
    for session_id in sorted(sessions):
        try:
            await call.ask("load_balancer", CloseSession(session_id, EVERYTHING), COMMIT_TIMEOUT_S)
            closed += 1
        except ActorGridError:
            continue  # it is on a host that does not answer, and ends with its lease
    row = _shown(await _row(call, name), call.app.ledger.hosts)
    more = page["next"] is not None or closed < len(sessions)
    return {"tenant": row, "cancelled": len(jobs), "sessions": closed, "more": more}


async def _rows(call: RequestContext) -> list[TenantUsage]:
    rows: list[TenantUsage] = (await call.ask("consensus", Query("tenants"), ANSWER_S))["tenants"]
    return rows


async def _row(call: RequestContext, name: str) -> TenantUsage:
    if tenant_in_reach(call) in (ALL_TENANTS, name):
        for row in await _rows(call):
            if row["tenant"] == name:
                return row
    raise no_tenant(name, {})


def _amounts(given: TenantAmounts | None) -> dict[str, int]:
    """Amounts of a request as the ledger has them."""
    if given is None:
        return {}
    found = {
        GPU: _milli(given.gpus),
        GPU_MEMORY: _mib(given.gpu_memory_bytes),
        CPU: _milli(given.cpus),
        MEMORY: _mib(given.memory_bytes),
        **{OF_MODEL + model: _milli(count) for model, count in given.gpus_by_model.items()},
    }
    if isinstance(given, TenantBounds):
        found |= {JOBS_WAITING: given.jobs_waiting, WAITING_BYTES: given.waiting_bytes}
    return {name: amount for name, amount in found.items() if amount is not None}


def _shown(row: TenantUsage, hosts: Mapping[str, HostRecord]) -> dict[str, Any]:
    """A row of the ledger in the units of answers, with its share of what there is."""
    record = row["record"]
    weight = 1.0 if record is None else record["weight_milli"] / 1000
    guarantee, limits = ({}, {}) if record is None else (record["guarantee"], record["limits"])
    share, share_of = dominant_share(row, weight, hosts)
    return {
        "name": row["tenant"],
        "known": record is not None,
        "removed_at": None if record is None else record["removed_at"],
        "weight": weight,
        "guarantee": _held(guarantee),
        "limits": {
            **_held(limits),
            "jobs_waiting": limits.get(JOBS_WAITING),
            "waiting_bytes": limits.get(WAITING_BYTES),
        },
        "used": _held(row["used"], 0),
        "of_late": _held(row["of_late"], 0),
        "jobs_waiting": row["jobs_waiting"],
        "waiting_bytes": row["waiting_bytes"],
        "share": share,
        "share_of": share_of,
    }


def dominant_share(row: TenantUsage, weight: float, hosts: Mapping[str, HostRecord]) -> tuple[float, str]:
    """The largest part of any resource of *hosts* that are up which a tenant holds and held of late, by *weight*; and
    the resource. Of devices each model counts by itself."""
    there: dict[str, int] = {}
    for host in hosts.values():
        if host["state"] == "up":
            whole = charge_of(host["cpu_milli"], host["memory_mib"], WHOLE_MILLI, 0, host["devices"])
            for name, amount in whole.items():
                there[name] = there.get(name, 0) + amount
    parts = {
        name: (row["used"].get(name, 0) + row["of_late"].get(name, 0)) / there[name] / weight
        for name in row["used"].keys() | row["of_late"].keys()
        if name != GPU and there.get(name)
    }
    name = min(parts, key=lambda each: (-parts[each], each), default="")
    return parts.get(name, 0.0), name


def _held(amounts: Mapping[str, int], missing: int | None = None) -> dict[str, Any]:
    def units(name: str) -> float | None:
        amount = amounts.get(name, missing)
        return None if amount is None else amount / 1000

    def size(name: str) -> int | None:
        amount = amounts.get(name, missing)
        return None if amount is None else amount * 2**20

    return {
        "gpus": units(GPU),
        "gpus_by_model": {
            name[len(OF_MODEL) :]: amount / 1000 for name, amount in amounts.items() if name.startswith(OF_MODEL)
        },
        "gpu_memory_bytes": size(GPU_MEMORY),
        "cpus": units(CPU),
        "memory_bytes": size(MEMORY),
    }


def _milli(units: float | None) -> int | None:
    return None if units is None else round(units * 1000)


def _mib(size: int | None) -> int | None:
    return None if size is None else size // 2**20  # down to whole MiB: never more than was said
