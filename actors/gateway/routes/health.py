"""What machines ask: alive, ready, figures, and the description of the API."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from actorgrid.access import Right
from actorgrid.actors.gateway.schemas.answers import Health, Readiness
from actorgrid.actors.gateway.server.auth import is_here
from actorgrid.actors.gateway.server.last_known import cluster_known
from actorgrid.actors.gateway.server.route import REQUEST_STATE, RequestContext, Route, RouteTable
from actorgrid.actors.telemetry.prometheus import CONTENT_TYPE
from actorgrid.errors import CallTimeout, HostUnreachable, NotAllowed
from actorgrid.models import ClusterHealth

ROUTES = RouteTable(Route)

ALIVE_S = 2.0


@ROUTES.add("GET", "/healthz", Health, "system", Right.SEE_HEALTH, token=False, errors=(CallTimeout, HostUnreachable))
async def healthz(call: RequestContext) -> Any:
    """Whether the process answers.

    Both threads of the gateway turn.
    """

    async def turn() -> None:
        return None

    await call.app.bridge.run(turn, ALIVE_S)
    return {"status": "ok"}


@ROUTES.add("GET", "/readyz", Readiness, "system", Right.SEE_HEALTH, token=False, other=(503,))
async def readyz(call: RequestContext) -> Any:
    """Whether work is accepted."""
    known = await cluster_known(call, fresh=False)
    if known is None:
        answer = {
            "ready": False,
            "health": ClusterHealth.NOT_READY.value,
            "problems": ["fault_detector does not answer"],
        }
    else:
        # Asked without a token: names of hosts are for those of this machine.
        word = "what" if is_here(REQUEST_STATE.get().address) else "name"
        wrong = [str(problem[word]) for problem in known["problems"] if problem["level"] != "note"]
        answer = {"ready": known["ready"], "health": known["health"], "problems": wrong}
    return call.app.encoded(call.http, answer, 200 if answer["ready"] else 503)


@ROUTES.add("GET", "/metrics", "text/plain", "system", Right.SEE_METRICS, token=False)
async def get_metrics(call: RequestContext) -> Any:
    """Figures in the Prometheus text format."""
    if call.app.settings.security.metrics_need_token or not is_here(REQUEST_STATE.get().address):
        who = call.app.admit(call.http)
        if who.scope(Right.SEE_METRICS) is None:
            raise NotAllowed(
                f"the role {who.role.value} may not read the host's metrics",
                asked="GET /metrics",
                found=f"{who.name}: tenant {who.tenant}",
                hint="actorgrid key create --role viewer --tenant '*' makes a key that may",
            )
    return web.Response(body=await call.app.scrape(), headers={"Content-Type": CONTENT_TYPE})


@ROUTES.add("GET", "/openapi.json", "application/json", "system", Right.SEE_HEALTH, token=False)
async def get_openapi(call: RequestContext) -> Any:
    """This document."""
    return web.Response(body=call.app.openapi, content_type="application/json")
