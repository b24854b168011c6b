"""Sessions and their leases of warm workers."""

from __future__ import annotations

from typing import Any

from actorgrid.access import Right
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
from actorgrid.actors.gateway.server.rights import user_for
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.errors import (
    BadRequest,
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
    "POST",
    "/api/sessions",
    SessionAnswer,
    "sessions",
    Right.USE_WORKERS,
    request=SessionRequest,
    errors=(TooManySessions, PythonMismatch),
)
async def open_session(call: RequestContext) -> Any:
    """Open a session."""
    request = call.body_as(SessionRequest)
    opening = OpenSession(user_for(call, request.user_id), request.python, request.afar)
    return await call.ask("load_balancer", opening)


@ROUTES.add(
    "POST",
    "/api/sessions/{session_id}/renew",
    RenewalAnswer,
    "sessions",
    Right.USE_WORKERS,
    errors=(UnknownSession,),
    unlimited=True,
)
async def renew_session(call: RequestContext) -> Any:
    """Keep a session alive."""
    return await call.ask("load_balancer", RenewSession(call.part("session_id"), call.scope))


@ROUTES.add("DELETE", "/api/sessions/{session_id}", Done, "sessions", Right.USE_WORKERS, unlimited=True)
async def close_session(call: RequestContext) -> Any:
    """End a session and free its leases."""
    await call.ask("load_balancer", CloseSession(call.part("session_id"), call.scope), 35.0)
    return {"done": True}


@ROUTES.add(
    "POST",
    "/api/sessions/{session_id}/leases",
    LeaseGrant,
    "sessions",
    Right.USE_WORKERS,
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
    if request.min_isolation:
        raise BadRequest(
            "workers of sessions are there before their tasks, and kept apart as their host keeps them",
            asked=f"min_isolation = {request.min_isolation}",
            hint="run it as a job",
            field="min_isolation",
        )
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
        call.scope,
    )
    return await call.ask("load_balancer", ask, request.wait_s + ATTACH_S)


@ROUTES.add(
    "DELETE", "/api/sessions/{session_id}/leases/{lease_id}", Done, "sessions", Right.USE_WORKERS, unlimited=True
)
async def return_lease(call: RequestContext) -> Any:
    """Give a lease back."""
    back = ReturnWorker(call.part("session_id"), call.part("lease_id"), call.scope)
    await call.ask("load_balancer", back, 35.0)
    return {"done": True}


@ROUTES.add(
    "GET",
    "/api/sessions/{session_id}/leases/{lease_id}/end",
    LeaseEndAnswer,
    "sessions",
    Right.USE_WORKERS,
    errors=(UnknownSession,),
)
async def lease_end(call: RequestContext) -> Any:
    """How the worker of a lease ended."""
    asked = LeaseEnd(call.part("session_id"), call.part("lease_id"), call.scope)
    return await call.ask("load_balancer", asked, 12.0)
