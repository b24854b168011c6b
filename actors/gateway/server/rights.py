"""What of a request is in reach of whoever asks: the route's right for his role, and whose the things are.

Rights and roles are in ``actorgrid/access.py``. What is not in reach is answered as what does not exist: by the same
error, in the same words.

Work shows the credential of its grant (``work/credentials.py``), a key of its attempt that ends with the grant. It has
the role ``service`` of the user that it was submitted for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from actorgrid.access import ALL_TENANTS, DEFAULT_TENANT, SIGN, TABLE, Identity, Reach, Right, Role, Scope, tenant_of
from actorgrid.actors.cluster.explain.reach import without_output
from actorgrid.actors.cluster.messages import GetJob
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.actors.ledger.records import UNKNOWN_USER
from actorgrid.errors import ActorGridError, NotAllowed, NotFound, UnknownJob, WrongState

if TYPE_CHECKING:
    from .route import RequestContext, Route

Plain = dict[str, Any]


def scope_of(route: Route, who: Identity) -> Scope:
    """What *who* reaches by the right of *route*. Raises NotAllowed where that is nothing."""
    scope = who.scope(route.right)
    if scope is not None:
        return scope
    verb, what = route.right.value
    only_all = Reach.CLUSTER in TABLE[route.right] and who.role in (Role.OPERATOR, Role.ADMIN)
    where = "of all tenants" if only_all else f"in tenant {who.tenant}"
    raise NotAllowed(
        f"{'a job or task' if who.role is Role.SERVICE else 'the role ' + who.role.value} may not {verb} {what}",
        asked=f"{route.method} {route.documented_path}",
        found=f"{who.name}: {who.role.value} {'of tenant ' + who.tenant if only_all else where}",
        hint="do it from outside of work, with the host's token or an API key: --data-dir, or ACTORGRID_URL and"
        " ACTORGRID_TOKEN"
        if who.role is Role.SERVICE
        else "actorgrid key roles shows who may; an administrator makes keys",
    )


def user_for(call: RequestContext, wanted: str) -> str:
    """Whose it is that is asked for: the caller's own. An administrator of all tenants may say *wanted*."""
    return (wanted or UNKNOWN_USER) if call.who.is_cluster_admin else call.who.user


def tenant_in_reach(call: RequestContext) -> str:
    """The tenant that the request is about; ``*``: all."""
    scope = call.scope
    if scope.is_all:
        return ALL_TENANTS
    return scope.tenant if scope.tenant is not None else tenant_of(str(scope.user))


def tenant_prefix(call: RequestContext) -> str:
    """What names that belong to a tenant begin with in the ledger, for whoever reaches one tenant: ``@lab/``."""
    tenant = tenant_in_reach(call)
    return "" if tenant in (ALL_TENANTS, DEFAULT_TENANT) else f"{SIGN}{tenant}/"


def unknown_job(job_id: str) -> UnknownJob:
    """The error for a job that is not there, as its manager words it."""
    return UnknownJob(f"there is no job {job_id}", asked=job_id, hint="actorgrid ps --all lists the jobs there are")


def check_owner(call: RequestContext, user: str, missing: NotFound) -> None:
    """Raises *missing* where what is *user*'s is out of reach."""
    if not call.scope.covers(user):
        raise missing


async def check_job(call: RequestContext, job_id: str) -> None:
    """Raises UnknownJob for a job that is not there, for whoever asks."""
    if not call.scope.is_all:
        job: JobRecord = await call.ask("cluster_manager", GetJob(job_id, seen=call.seen), 10.0)
        check_owner(call, str(job["user_id"]), unknown_job(job_id))


def reads_output(call: RequestContext, user: str) -> bool:
    """Whether whoever asks may read what *user*'s work was given and wrote, and not only that it is there."""
    scope = call.who.scope(Right.READ_OUTPUT)
    return scope is not None and scope.covers(user)


def readable(call: RequestContext, job: JobRecord) -> JobRecord:
    """The job's record, as far as whoever asks may read it."""
    return job if reads_output(call, str(job["user_id"])) else without_output(job)


async def check_dependencies(call: RequestContext, job_ids: Iterable[str], together: Collection[str]) -> None:
    """Raises UnknownJob for a job that is not there, for whoever asks: who depends on it is given its result.

    Of those that are accepted *together*, none has to be there yet. One that is somebody else's is no part of them: its
    id is taken, and naming it again makes it nobody else's.
    """
    if call.scope.is_all:
        return
    for job_id in dict.fromkeys(job_ids):
        try:
            job: JobRecord = await call.ask("cluster_manager", GetJob(job_id, seen=call.seen), 10.0)
        except UnknownJob:
            if job_id not in together:
                raise
        else:
            check_owner(call, str(job["user_id"]), unknown_job(job_id))


async def check_taken(call: RequestContext, job_id: str) -> None:
    """Raises WrongState where a job's id is that of one out of reach: it was not submitted."""
    try:
        await check_job(call, job_id)
    except UnknownJob:
        raise WrongState("that id of a job is taken", asked=job_id, hint="take another, or none: one is made") from None


async def changes_in_reach(
    call: RequestContext, event: Mapping[str, Any], users: dict[str, str | None]
) -> Plain | None:
    """The part of an event that is about jobs in reach; ``None``: none is.

    *users* remembers whose job is whose, where the event does not say.
    """
    kept = []
    for change in event["changes"]:
        if change["kind"] != "job":
            continue
        user = change.get("user_id") or users.get(change["id"])
        if user is None and change["id"] not in users:
            user = users[change["id"]] = await _user_of(call, change["id"])
        if user is not None and call.scope.covers(user):
            kept.append(change)
    return {**event, "changes": kept} if kept else None


async def _user_of(call: RequestContext, job_id: str) -> str | None:
    try:
        job: JobRecord = await call.ask("cluster_manager", GetJob(job_id), 10.0)
    except ActorGridError:
        return None
    return str(job["user_id"])
