"""Hosts: start one anew, give it nothing new."""

from __future__ import annotations

from time import time
from typing import Any

from actorgrid.access import Right
from actorgrid.actors.gateway.schemas.answers import DrainAnswer, DrainRequest, RestartAnswer
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.host.messages import RestartHost
from actorgrid.actors.ledger.commands import DrainHost
from actorgrid.actors.links.messages import AskHost
from actorgrid.errors import HostUnreachable, NotFound, WrongState

ROUTES = RouteTable(Route)

RESTART_S = 10.0


@ROUTES.add(
    "POST",
    "/api/hosts/{host_id}/restart",
    RestartAnswer,
    "cluster",
    Right.MANAGE_HOSTS,
    errors=(NotFound, WrongState, HostUnreachable),
)
async def post_restart(call: RequestContext) -> Any:
    """Start a host's agent anew; work that runs there goes on.

    Whichever host of the cluster it is.
    """
    host_id = call.part("host_id")
    host = call.app.host
    if host_id == host.host_id:
        return await call.ask("host", RestartHost(call.caller), RESTART_S)
    if host_id not in call.app.ledger.members:
        raise NotFound(
            "no host of that id",
            asked=host_id,
            found=f"{max(1, len(call.app.ledger.members))} hosts",
            hint="actorgrid hosts --json has the ids",
        )
    return await call.ask("links", AskHost(host_id, "restart", {"by": call.caller}, RESTART_S), RESTART_S)


@ROUTES.add(
    "POST",
    "/api/hosts/{host_id}/drain",
    DrainAnswer,
    "cluster",
    Right.MANAGE_HOSTS,
    request=DrainRequest,
    errors=(NotFound,),
)
async def post_drain(call: RequestContext) -> Any:
    """Give a host nothing new, or again; what runs there goes on."""
    wanted = call.body_as(DrainRequest)
    return await call.propose(DrainHost(call.part("host_id"), wanted.draining, call.caller, at=time()))
