"""Sessions and their leases of warm workers."""

from __future__ import annotations

from typing import Any

from actorgrid.actors.cluster.messages import (
    AcquireWorker,
    CloseSession,
    LeaseEnd,
    OpenSession,
    RenewSession,
    ReturnWorker,
)
from actorgrid.actors.gateway.job_requests import check_env, check_python, resources_record
from actorgrid.actors.gateway.schemas.answers import Done, SessionRequest
from actorgrid.actors.gateway.schemas.sessions import LeaseEndAnswer, RenewalAnswer, SessionAnswer
from actorgrid.actors.gateway.server.rights import check_session
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.ledger.records import UNKNOWN_USER
from actorgrid.errors import (
    Overloaded,
    PythonMismatch,
    QuotaExceeded,
    RequestTooLarge,
    TooManyGpus,
    TooManySessions,
    UnknownGpuModel,
    UnknownSession,
)
from actorgrid.models import LeaseGrant, LeaseRequest

ROUTES = RouteTable(Route)

ATTACH_S = 60.0
"""Given to a lease beyond its own wait: commit, start of a worker, and their restarts."""


@ROUTES.add(
    "POST", "/api/sessions", SessionAnswer, "sessions", request=SessionRequest, errors=(TooManySessions, PythonMismatch)
)
async def open_session(call: RequestContext) -> Any:
    """Open a session."""
    request = call.body_as(SessionRequest)
    opening = OpenSession(call.only or request.user_id or UNKNOWN_USER, request.python, request.afar)
    return await call.ask("load_balancer", opening)


@ROUTES.add("POST", "/api/sessions/{session_id}/renew", RenewalAnswer, "sessions", errors=(UnknownSession,))
async def renew_session(call: RequestContext) -> Any:
    """Keep a session alive."""
    check_session(call, call.part("session_id"))
    return await call.ask("load_balancer", RenewSession(call.part("session_id")))


@ROUTES.add("DELETE", "/api/sessions/{session_id}", Done, "sessions")
async def close_session(call: RequestContext) -> Any:
    """End a session and free its leases."""
    check_session(call, call.part("session_id"))
    await call.ask("load_balancer", CloseSession(call.part("session_id")), 35.0)
    return {"done": True}


@ROUTES.add(
    "POST",
    "/api/sessions/{session_id}/leases",
    LeaseGrant,
    "sessions",
    request=LeaseRequest,
    errors=(
        UnknownSession,
        TooManySessions,
        Overloaded,
        PythonMismatch,
        UnknownGpuModel,
        TooManyGpus,
        RequestTooLarge,
        QuotaExceeded,
    ),
)
async def acquire_lease(call: RequestContext) -> Any:
    """Lease a warm worker."""
    request = call.body_as(LeaseRequest)
    check_session(call, call.part("session_id"))
    check_python(request.python)
    check_env(request.env, "env")
    pool = request.pool.value if request.pool else None
    ask = AcquireWorker(
        call.part("session_id"),
        resources_record(request),
        pool,
        dict(request.env),
        request.wait_s,
        request.lease_id or "",
    )
    return await call.ask("load_balancer", ask, request.wait_s + ATTACH_S)


@ROUTES.add("DELETE", "/api/sessions/{session_id}/leases/{lease_id}", Done, "sessions")
async def return_lease(call: RequestContext) -> Any:
    """Give a lease back."""
    check_session(call, call.part("session_id"))
    await call.ask("load_balancer", ReturnWorker(call.part("session_id"), call.part("lease_id")), 35.0)
    return {"done": True}


@ROUTES.add(
    "GET", "/api/sessions/{session_id}/leases/{lease_id}/end", LeaseEndAnswer, "sessions", errors=(UnknownSession,)
)
async def lease_end(call: RequestContext) -> Any:
    """How the worker of a lease ended."""
    check_session(call, call.part("session_id"))
    return await call.ask("load_balancer", LeaseEnd(call.part("session_id"), call.part("lease_id")), 12.0)
