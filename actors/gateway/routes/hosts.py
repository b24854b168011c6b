"""Hosts: start one anew, give it nothing new."""

from __future__ import annotations

from time import time
from typing import Any

from actorgrid.access import Right
from actorgrid.actors.gateway.schemas.answers import DrainAnswer, DrainRequest, RestartAnswer
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.host.messages import RestartHost
from actorgrid.actors.ledger.commands import DrainHost
from actorgrid.actors.links.messages import AskHost, AskLeader
from actorgrid.errors import BadRequest, HostUnreachable, NotFound, WrongState

ROUTES = RouteTable(Route)

RESTART_S = 10.0
MOVE_S = 30.0
"""For up to 256 attempts to be asked, an entry of the ledger each."""


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
    errors=(NotFound, BadRequest),
)
async def post_drain(call: RequestContext) -> Any:
    """Give a host nothing new, or again; what runs there goes on, unless ``move`` says that it moves."""
    wanted, host_id = call.body_as(DrainRequest), call.part("host_id")
    if wanted.move and not wanted.draining:
        raise BadRequest("a host whose work moves gets nothing new", asked="move, without draining")
    answer = dict(await call.propose(DrainHost(host_id, wanted.draining, call.caller, at=time())))
    moved = 0
    if wanted.move:
        fields = {"host_id": host_id, "by": call.caller}
        told = await call.ask("links", AskLeader("move_work", fields, MOVE_S), MOVE_S + 1)
        moved = int(told["moved"])
    return {**answer, "moved": moved}
