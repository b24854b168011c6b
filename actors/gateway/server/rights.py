"""What work may do at its host's door: what its submitter may, with what is the submitter's own, and nothing more.

Work shows the credential of its grant (``work/credentials.py``). It may look at the cluster, submit, follow and cancel
jobs and sessions of the user that it was submitted for, and use locks and the shared state. It may not change the
cluster: settings, keys, tokens, quotas, hosts and the supervision tree take the host's own token or an API key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from actorgrid.actors.cluster.messages import GetJob
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.errors import ActorGridError, NotAllowed

if TYPE_CHECKING:
    from .route import RequestContext, Route

Plain = dict[str, Any]

WORK_MAY = frozenset(
    {
        ("GET", "/api/cluster"),
        ("GET", "/api/hosts"),
        ("GET", "/api/members"),
        ("GET", "/api/gpus"),
        ("GET", "/api/allocations"),
        ("GET", "/api/decisions"),
        ("GET", "/api/performance"),
        ("GET", "/api/config"),
        ("GET", "/api/quotas"),
        ("GET", "/api/usage"),
        ("GET", "/api/events"),
        ("POST", "/api/jobs"),
        ("POST", "/api/jobs/batch"),
        ("POST", "/api/working-dirs"),
        ("POST", "/api/environments"),
        ("GET", "/api/environments"),
        ("POST", "/api/graph-files"),
        ("POST", "/api/graphs"),
        ("GET", "/api/graphs/{graph_id}"),
        ("GET", "/api/graphs/{graph_id}/steps"),
        ("GET", "/api/graphs/{graph_id}/steps/{step}/result"),
        ("POST", "/api/graphs/{graph_id}/retry"),
        ("POST", "/api/graphs/{graph_id}/indexes/cancel"),
        ("POST", "/api/graphs/{graph_id}/indexes/retry"),
        ("GET", "/api/jobs"),
        ("GET", "/api/jobs/{job_id}"),
        ("POST", "/api/jobs/wait"),
        ("POST", "/api/jobs/results"),
        ("POST", "/api/jobs/cancel"),
        ("POST", "/api/jobs/{job_id}/cancel"),
        ("POST", "/api/jobs/{job_id}/retry"),
        ("POST", "/api/jobs/{job_id}/channel"),
        ("GET", "/api/jobs/{job_id}/why"),
        ("GET", "/api/jobs/{job_id}/logs"),
        ("GET", "/api/jobs/{job_id}/result"),
        ("GET", "/api/jobs/{job_id}/files"),
        ("GET", "/api/jobs/{job_id}/file"),
        ("POST", "/api/sessions"),
        ("GET", "/api/leases"),
        ("GET", "/api/leases/{lease_id}"),
        ("GET", "/api/leases/{lease_id}/logs"),
        ("POST", "/api/leases/{lease_id}/cancel"),
        ("POST", "/api/sessions/{session_id}/renew"),
        ("DELETE", "/api/sessions/{session_id}"),
        ("POST", "/api/sessions/{session_id}/leases"),
        ("DELETE", "/api/sessions/{session_id}/leases/{lease_id}"),
        ("GET", "/api/sessions/{session_id}/leases/{lease_id}/end"),
        ("GET", "/api/relay"),
        ("GET", "/api/state"),
        ("GET", "/api/state-watch"),
        ("GET", "/api/state/{key}"),
        ("POST", "/api/state/{key}"),
        ("POST", "/api/state-batch"),
        ("GET", "/api/locks"),
        ("POST", "/api/locks/{name}/acquire"),
        ("POST", "/api/locks/{name}/renew"),
        ("POST", "/api/locks/{name}/release"),
    }
)
"""By method and documented path; all others are refused, and so is each new one until it is listed here."""


def check_route(route: Route, only: str | None) -> None:
    """Raises NotAllowed for work that asks for what is not its submitter's to do."""
    if only is not None and (route.method, route.documented_path) not in WORK_MAY:
        raise NotAllowed(
            "a job or task may not do that",
            asked=f"{route.method} {route.documented_path}",
            found=f"it has the rights of user {only}, with what is that user's own",
            hint="do it from outside of work, with the host's token or an API key: --data-dir, or ACTORGRID_URL and"
            " ACTORGRID_TOKEN",
        )


def check_owner(call: RequestContext, user: str, what: str, identity: str) -> None:
    """Raises NotAllowed for work that asks about what is another user's."""
    if call.only is not None and user != call.only:
        raise NotAllowed(
            f"{what} {identity} is another user's",
            asked=identity,
            found=f"this job or task has the rights of user {call.only}",
            hint="ask from outside of work",
        )


async def check_job(call: RequestContext, job_id: str) -> None:
    """Raises NotAllowed for work that names a job of another user, UnknownJob."""
    if call.only is not None:
        job: JobRecord = await call.ask("cluster_manager", GetJob(job_id, seen=call.seen), 10.0)
        check_owner(call, str(job["user_id"]), "job", job_id)


async def check_jobs(call: RequestContext, job_ids: Iterable[str]) -> None:
    """``check_job`` of several."""
    if call.only is not None:
        for job_id in dict.fromkeys(job_ids):
            await check_job(call, job_id)


def check_session(call: RequestContext, session_id: str) -> None:
    """Raises NotAllowed for work that names a session of another user.

    Of a session without leases nobody but its client knows the id.
    """
    if call.only is not None:
        for held in list(call.app.ledger.allocations.values()):
            if held["owner"].get("session_id") == session_id:
                check_owner(call, str(held.get("user_id") or ""), "session", session_id)


async def own_changes(call: RequestContext, event: Mapping[str, Any], users: dict[str, str | None]) -> Plain | None:
    """The part of an event that is about jobs of the user that work was submitted for; ``None``: none is.

    *users* remembers whose job is whose, where the event does not say.
    """
    kept = []
    for change in event["changes"]:
        if change["kind"] != "job":
            continue
        user = change.get("user_id") or users.get(change["id"])
        if user is None and change["id"] not in users:
            user = users[change["id"]] = await _user_of(call, change["id"])
        if user == call.only:
            kept.append(change)
    return {**event, "changes": kept} if kept else None


async def _user_of(call: RequestContext, job_id: str) -> str | None:
    try:
        job: JobRecord = await call.ask("cluster_manager", GetJob(job_id), 10.0)
    except ActorGridError:
        return None
    return str(job["user_id"])
