"""Paths between hosts: which there are, which large things come over, and what they do when they are measured."""

from __future__ import annotations

from typing import Any

from actorgrid.access import Right
from actorgrid.actors.gateway.schemas.paths import BenchAnswer, BenchRequest, PathsAnswer
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.links.messages import AskHost, TellPaths
from actorgrid.errors import BadRequest, CallTimeout, HostUnreachable, NotFound, Overloaded, WrongState

ROUTES = RouteTable(Route)
TELL_S = 5.0
BENCH_S = 40.0
"""More than the bounds of one path together: 5 s of round trips, 10 s of bytes, 3 s for a pair, and its connections."""


@ROUTES.add("GET", "/api/paths", PathsAnswer, "cluster", Right.SEE_SERVERS)
async def get_paths(call: RequestContext) -> Any:
    """The paths by which large things come to the host that answers, as their transfers showed."""
    host = call.app.host
    peers = [] if host.enrolment is None else await call.ask("links", TellPaths(), TELL_S)
    return {"here": host.host_id, "peers": peers}


@ROUTES.add(
    "POST",
    "/api/hosts/{host_id}/bench",
    BenchAnswer,
    "cluster",
    Right.MANAGE_HOSTS,
    request=BenchRequest,
    errors=(BadRequest, NotFound, HostUnreachable, CallTimeout, Overloaded, WrongState),
)
async def post_bench(call: RequestContext) -> Any:
    """Have a host measure one of its paths to another one.

    One at a time on each host; what it sends fills the path for some seconds, beside everything else that goes there.
    """
    wanted, host_id = call.body_as(BenchRequest), call.part("host_id")
    members = call.app.ledger.members
    if host_id not in members and host_id != call.app.host.host_id:
        raise NotFound(
            "no host of that id",
            asked=host_id[:128],
            found=f"{max(1, len(members))} hosts",
            hint="actorgrid hosts --json has the ids",
        )
    if call.app.host.enrolment is None:
        raise WrongState(
            "this host is no host of a cluster, and has no paths to others",
            asked=wanted.to,
            hint="the paths of one machine: actorgrid bench net",
        )
    fields = {"host_id": wanted.to, "path": wanted.path, "bytes": wanted.bytes, "trips": wanted.trips}
    return await call.ask("links", AskHost(host_id, "bench_path", fields, BENCH_S), BENCH_S + 1)
