"""What machines ask: alive, ready, figures, and the description of the API."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from actorgrid.errors import ActorGridError, CallTimeout, HostUnreachable
from actorgrid.models import NodeHealth

from ..cluster.messages import HealthReport
from ..telemetry.prometheus import CONTENT_TYPE
from .answers import Health, Readiness
from .auth import is_here
from .route import Call, Route

ALIVE_S = 2.0


async def healthz(call: Call) -> Any:
    """Both threads of the gateway turn."""

    async def turn() -> None:
        return None

    await call.door.bridge.run(turn, ALIVE_S)
    return {"status": "ok"}


async def readyz(call: Call) -> Any:
    """Whether work is accepted."""
    try:
        report = await call.ask("fault_detector", HealthReport(), ALIVE_S)
    except ActorGridError as error:
        report = {
            "ready": False,
            "health": NodeHealth.DEGRADED.value,
            "problems": [f"fault_detector: {error.message}"],
        }
    answer = {"ready": report["ready"], "health": report["health"], "problems": report["problems"]}
    return call.door.encoded(call.http, answer, 200 if report["ready"] else 503)


async def get_metrics(call: Call) -> Any:
    """Figures in the Prometheus text format."""
    if call.door.settings.security.metrics_need_token or not is_here(call.http.remote):
        call.door.admit(call.http)
    return web.Response(body=await call.door.scrape(), headers={"Content-Type": CONTENT_TYPE})


async def get_openapi(call: Call) -> Any:
    """This API's description."""
    return web.Response(body=call.door.openapi, content_type="application/json")


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
