"""Channels of jobs: how people come to one that runs. What goes over them is between the client and the job's shim."""

from __future__ import annotations

from typing import Any, cast

from actorgrid.access import Right
from actorgrid.actors.cluster.messages import GetJob
from actorgrid.actors.gateway.schemas.jobs import ChannelAnswer, ChannelQuery
from actorgrid.actors.gateway.server.rights import check_owner, unknown_job
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.ledger.record_types import AttemptRecord, JobRecord
from actorgrid.actors.links.messages import AskHost
from actorgrid.actors.work.messages import FindChannel
from actorgrid.errors import (
    CallTimeout,
    HostUnreachable,
    JobNotRunning,
    NotFound,
    NotSupported,
    PeerGone,
    UnknownJob,
)

ROUTES = RouteTable(Route)
FIND_S = 5.0


@ROUTES.add(
    "POST",
    "/api/jobs/{job_id}/channel",
    ChannelAnswer,
    "jobs",
    Right.READ_OUTPUT,
    query=ChannelQuery,
    errors=(UnknownJob, JobNotRunning, NotFound, NotSupported, HostUnreachable),
)
async def find_channel(call: RequestContext) -> Any:
    """Where a running job is come to."""
    job: JobRecord = await call.ask("cluster_manager", GetJob(call.part("job_id"), seen=call.seen), 10.0)
    check_owner(call, str(job["user_id"]), unknown_job(job["job_id"]))
    attempt, rank = _running(job), call.query_as(ChannelQuery).rank
    members = attempt.get("members")
    if rank >= len(members or (attempt,)):
        raise NotFound(f"job {job['job_id']} has no member of rank {rank}", asked=f"rank {rank}")
    part = attempt if members is None else cast("AttemptRecord", members[rank])
    attempt_id, host_id = str(part["allocation_id"]), str(part["host"])
    try:
        found = await _find(call, host_id, attempt_id)
    except (HostUnreachable, CallTimeout, PeerGone) as error:
        raise HostUnreachable(
            "the host that the job runs on is not reached",
            asked=job["job_id"],
            found=f"host {host_id}: {error.message}",
            hint="actorgrid hosts says how it is; the job starts elsewhere once it is lost, if it may be retried",
        ) from error
    return {
        "job_id": job["job_id"],
        "attempt_id": attempt_id,
        "attempt": attempt["number"],
        "host": host_id,
        "secret": found["secret"],
        "terminal": found["terminal"],
    }


async def _find(call: RequestContext, host_id: str, attempt_id: str) -> dict[str, Any]:
    if host_id == call.app.host.host_id:
        here: dict[str, Any] = await call.ask("worker_manager", FindChannel(attempt_id), FIND_S)
        return here
    if call.app.host.enrolment is None:
        raise HostUnreachable("this host is alone", found=host_id)
    asked = AskHost(host_id, "find_channel", {"attempt_id": attempt_id}, FIND_S)
    there: dict[str, Any] = await call.ask("links", asked, FIND_S + 1)
    return there


def _running(job: JobRecord) -> AttemptRecord:
    """The attempt that runs. Raises JobNotRunning."""
    attempts: list[AttemptRecord] = job["attempts"]
    last = attempts[-1] if attempts else None
    if job["state"] == "running" and last is not None and last["ended_at"] is None:
        return last
    waits = job["state"] in ("queued", "placed")
    raise JobNotRunning(
        f"the job is not running: it is {job['state']}",
        asked=job["job_id"],
        found=f"{len(job['attempts'])} attempt(s)",
        hint=f"actorgrid why {job['job_id']} says what it waits for"
        if waits
        else f"what it wrote: actorgrid logs {job['job_id']}",
        state=job["state"],
    )
