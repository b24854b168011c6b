"""What machines ask: alive, ready, figures, and the description of the API."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from actorgrid.actors.gateway.schemas.answers import Health, Readiness
from actorgrid.actors.gateway.server.auth import is_here
from actorgrid.actors.gateway.server.last_known import cluster_known
from actorgrid.actors.gateway.server.route import RequestContext, Route
from actorgrid.actors.telemetry.prometheus import CONTENT_TYPE
from actorgrid.errors import CallTimeout, HostUnreachable
from actorgrid.models import ClusterHealth

ALIVE_S = 2.0


async def healthz(call: RequestContext) -> Any:
    """Both threads of the gateway turn."""

    async def turn() -> None:
        return None

    await call.app.bridge.run(turn, ALIVE_S)
    return {"status": "ok"}


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
        word = "what" if is_here(call.http.remote) else "name"
        wrong = [str(problem[word]) for problem in known["problems"] if problem["level"] != "note"]
        answer = {"ready": known["ready"], "health": known["health"], "problems": wrong}
    return call.app.encoded(call.http, answer, 200 if answer["ready"] else 503)


async def get_metrics(call: RequestContext) -> Any:
    """Figures in the Prometheus text format."""
    if call.app.settings.security.metrics_need_token or not is_here(call.http.remote):
        call.app.admit(call.http)
    return web.Response(body=await call.app.scrape(), headers={"Content-Type": CONTENT_TYPE})


async def get_openapi(call: RequestContext) -> Any:
    """This API's description."""
    return web.Response(body=call.app.openapi, content_type="application/json")


ROUTES = (
    Route(
        "GET",
        "/healthz",
        "Whether the process answers",
        healthz,
        Health,
        "system",
        token=False,
        errors=(CallTimeout, HostUnreachable),
    ),
    Route("GET", "/readyz", "Whether work is accepted", readyz, Readiness, "system", token=False, other=(503,)),
    Route("GET", "/metrics", "Figures in the Prometheus text format", get_metrics, "text/plain", "system", token=False),
    Route("GET", "/openapi.json", "This document", get_openapi, "application/json", "system", token=False),
)
