"""The load of hosts, and workers that leave those with too much."""

from __future__ import annotations

from typing import Any

from actorgrid.access import Right
from actorgrid.actors.cluster.messages import LoadReport, Rebalance
from actorgrid.actors.gateway.schemas.load import LoadAnswer, RebalanceAnswer, RebalanceRequest
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.errors import BadRequest

ROUTES = RouteTable(Route)

REBALANCE_S = 15.0


@ROUTES.add("GET", "/api/load", LoadAnswer, "cluster", Right.SEE_FAULTS)
async def get_load(call: RequestContext) -> Any:
    """The load of each host, as this one heard of it: history and what is expected."""
    return {"hosts": await call.ask("load_balancer", LoadReport())}


@ROUTES.add(
    "POST",
    "/api/rebalance",
    RebalanceAnswer,
    "cluster",
    Right.MANAGE_HOSTS,
    request=RebalanceRequest,
    errors=(BadRequest,),
)
async def post_rebalance(call: RequestContext) -> Any:
    """Have sessions' workers leave overloaded hosts; without dry_run=false only say which."""
    wanted = call.body_as(RebalanceRequest)
    return await call.ask("load_balancer", Rebalance(tuple(wanted.exclude), wanted.dry_run), REBALANCE_S)
