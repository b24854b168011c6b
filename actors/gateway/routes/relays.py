"""Relays: how clients on other machines reach the workers of their sessions."""

from __future__ import annotations

from typing import Any

from actorgrid.access import Right
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.errors import Overloaded

ROUTES = RouteTable(Route)


@ROUTES.add(
    "GET", "/api/relay", "application/octet-stream", "sessions", Right.USE_WORKERS, errors=(Overloaded,), status=101
)
async def relay(call: RequestContext) -> Any:
    """Upgrade this connection to streams that lead to workers."""
    return await call.app.relays.serve(call.http, call.scope)
