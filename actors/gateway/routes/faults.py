"""Hosts in trouble: why one is as it is, what was done about it, and when nothing is."""

from __future__ import annotations

from time import time
from typing import Any

from actorgrid.access import Right
from actorgrid.actors.cluster.messages import ListFaults, WhyHost
from actorgrid.actors.gateway.schemas.faults import (
    FaultsAnswer,
    FaultsQuery,
    HostWhyAnswer,
    MaintenanceListed,
    MaintenanceRequest,
    MaintenanceSet,
)
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.ledger.commands import SetMaintenance
from actorgrid.actors.ledger.recovery_records import maintained
from actorgrid.actors.links.messages import AskLeader
from actorgrid.errors import BadRequest, NotFound, NotLeader

ROUTES = RouteTable(Route)

LEADER_S = 5.0


@ROUTES.add("GET", "/api/hosts/{host_id}/why", HostWhyAnswer, "cluster", Right.SEE_FAULTS, errors=(NotFound, NotLeader))
async def get_host_why(call: RequestContext) -> Any:
    """Why a host is as it is, and what would be done about it."""
    host_id = call.part("host_id")
    if call.app.ledger.leads:
        return await call.ask("fault_detector", WhyHost(host_id), LEADER_S)
    return await call.ask("links", AskLeader("why_host", {"host_id": host_id}, LEADER_S), LEADER_S + 1)


@ROUTES.add("GET", "/api/faults", FaultsAnswer, "cluster", Right.SEE_FAULTS, query=FaultsQuery, errors=(NotLeader,))
async def get_faults(call: RequestContext) -> Any:
    """What happened to hosts, and was done about them."""
    wanted = call.query_as(FaultsQuery)
    if call.app.ledger.leads:
        return await call.ask("fault_detector", ListFaults(wanted.host_id, wanted.limit), LEADER_S)
    fields = {"host_id": wanted.host_id, "limit": wanted.limit}
    return await call.ask("links", AskLeader("list_faults", fields, LEADER_S), LEADER_S + 1)


@ROUTES.add("GET", "/api/maintenance", MaintenanceListed, "cluster", Right.SEE_FAULTS)
async def get_maintenance(call: RequestContext) -> Any:
    """Hosts about which nothing is done now."""
    ledger, now = call.app.ledger, time()
    return {
        "maintenance": [
            {**window, "host_id": host_id, "hostname": str(ledger.hosts[host_id]["hostname"])}
            for host_id, record in sorted(ledger.recoveries.items())
            if (window := maintained(record, now)) is not None and host_id in ledger.hosts
        ]
    }


@ROUTES.add(
    "PUT",
    "/api/hosts/{host_id}/maintenance",
    MaintenanceSet,
    "cluster",
    Right.MANAGE_HOSTS,
    request=MaintenanceRequest,
    errors=(NotFound, BadRequest),
)
async def put_maintenance(call: RequestContext) -> Any:
    """Have nothing done about a host for a while, because somebody works on it."""
    wanted, now = call.body_as(MaintenanceRequest), time()
    command = SetMaintenance(call.part("host_id"), now + wanted.for_s, wanted.reason, call.caller, at=now)
    return await call.propose(command)


@ROUTES.add(
    "DELETE", "/api/hosts/{host_id}/maintenance", MaintenanceSet, "cluster", Right.MANAGE_HOSTS, errors=(NotFound,)
)
async def delete_maintenance(call: RequestContext) -> Any:
    """End a host's maintenance; none that is open is no error."""
    return await call.propose(SetMaintenance(call.part("host_id"), None, "", call.caller, at=time()))
