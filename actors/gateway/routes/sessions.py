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
from actorgrid.actors.gateway.schemas.sessions import LeaseEndAnswer, SessionAnswer
from actorgrid.actors.gateway.server.rights import check_session
from actorgrid.actors.gateway.server.route import RequestContext, Route
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

ATTACH_S = 60.0
"""Given to a lease beyond its own wait: commit, start of a worker, and their restarts."""


async def open_session(call: RequestContext) -> Any:
    """Open a session."""
    request = call.body_as(SessionRequest)
    return await call.ask("load_balancer", OpenSession(call.only or request.user_id or UNKNOWN_USER, request.python))


async def renew_session(call: RequestContext) -> Any:
    """Keep a session alive."""
    check_session(call, call.part("session_id"))
    await call.ask("load_balancer", RenewSession(call.part("session_id")))
    return {"done": True}


async def close_session(call: RequestContext) -> Any:
    """End a session and free its leases."""
    check_session(call, call.part("session_id"))
    await call.ask("load_balancer", CloseSession(call.part("session_id")), 35.0)
    return {"done": True}


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


async def return_lease(call: RequestContext) -> Any:
    """Give a lease back."""
    check_session(call, call.part("session_id"))
    await call.ask("load_balancer", ReturnWorker(call.part("session_id"), call.part("lease_id")), 35.0)
    return {"done": True}


async def lease_end(call: RequestContext) -> Any:
    """How a lease's worker ended."""
    check_session(call, call.part("session_id"))
    return await call.ask("load_balancer", LeaseEnd(call.part("session_id"), call.part("lease_id")), 12.0)


ROUTES = (
    Route(
        "POST",
        "/api/sessions",
        "Open a session",
        open_session,
        SessionAnswer,
        "sessions",
        request=SessionRequest,
        errors=(TooManySessions, PythonMismatch),
    ),
    Route(
        "POST",
        "/api/sessions/{session_id}/renew",
        "Keep a session alive",
        renew_session,
        Done,
        "sessions",
        errors=(UnknownSession,),
    ),
    Route("DELETE", "/api/sessions/{session_id}", "End a session and free its leases", close_session, Done, "sessions"),
    Route(
        "POST",
        "/api/sessions/{session_id}/leases",
        "Lease a warm worker",
        acquire_lease,
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
    ),
    Route(
        "DELETE",
        "/api/sessions/{session_id}/leases/{lease_id}",
        "Give a lease back",
        return_lease,
        Done,
        "sessions",
    ),
    Route(
        "GET",
        "/api/sessions/{session_id}/leases/{lease_id}/end",
        "How the worker of a lease ended",
        lease_end,
        LeaseEndAnswer,
        "sessions",
        errors=(UnknownSession,),
    ),
)
