"""Jobs: accept, list, wait, cancel, explain."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from time import time
from typing import Any

from actorgrid.access import Right
from actorgrid.actors.cluster.messages import AcceptJobs, ChangeDemand, GetJob, ListJobs, RequestCancel, Why
from actorgrid.actors.gateway.job_notices import check_targets, notices_shown, with_defaults
from actorgrid.actors.gateway.job_requests import job_checks, job_record
from actorgrid.actors.gateway.job_tracing import in_traces, tell
from actorgrid.actors.gateway.named_files import here_of
from actorgrid.actors.gateway.schemas.answers import (
    Accepted,
    BatchAccepted,
    BatchRequest,
    JobsAnswer,
    JobsQuery,
    WaitQuery,
    WhyAnswer,
)
from actorgrid.actors.gateway.schemas.jobs import CancelRequest, EditRequest, JobEdited, JobRetried, JobsCancelled
from actorgrid.actors.gateway.secret_wishes import check_wishes
from actorgrid.actors.gateway.server.last_known import ON_A_HOST, cluster_known, last_known, marked
from actorgrid.actors.gateway.server.rights import (
    check_dependencies,
    check_job,
    check_owner,
    check_taken,
    readable,
    reads_output,
    unknown_job,
    user_for,
)
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.ledger.answers import SubmittedJob
from actorgrid.actors.ledger.commands import EditJob, RetryJob
from actorgrid.actors.ledger.query_answers import JobsPage
from actorgrid.actors.ledger.record_checks import JOB_FILES
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.actors.links.messages import FetchBlobs, SpreadBlobs
from actorgrid.demand import DemandEdit
from actorgrid.errors import (
    AdmissionRefused,
    BadRequest,
    CommandTooLarge,
    DependencyFailed,
    DiskFull,
    NotFound,
    PythonMismatch,
    QueueFull,
    QuotaExceeded,
    RequestTooLarge,
    TargetNotAllowed,
    TooManyGpus,
    UnknownGpuModel,
    UnknownJob,
    UnknownPolicy,
    UnknownTarget,
    WrongState,
)
from actorgrid.labels import labels_of
from actorgrid.models import Job, JobState, TaskRequest
from actorgrid.trace_context import HEADER

ROUTES = RouteTable(Route)
ADMISSION = (
    AdmissionRefused,
    UnknownGpuModel,
    TooManyGpus,
    RequestTooLarge,
    CommandTooLarge,
    QuotaExceeded,
    UnknownPolicy,
    PythonMismatch,
    DependencyFailed,
    UnknownJob,
    QueueFull,
    DiskFull,
    NotFound,
    WrongState,
    UnknownTarget,
    TargetNotAllowed,
)

CANCELLED_MAX = 1_000
PAGES_MAX = 20
"""Pages of jobs that are looked through for those that are not stopping already."""
TOGETHER = 50
"""Cancellations that are proposed together."""
COMMIT_TIMEOUT_S = 45.0
"""A proposal outlives a restart of the ledger, which itself waits 30 s."""
ANSWER_S = 10.0
SPREAD_S = 45.0


@ROUTES.add("POST", "/api/jobs", Accepted, "jobs", Right.SUBMIT_JOBS, request=TaskRequest, errors=ADMISSION, status=201)
async def post_job(call: RequestContext) -> Any:
    """Accept a job: committed when this answers."""
    request = call.body_as(TaskRequest)
    job_checks(request)
    return (await _accept(call, [request]))[0]


@ROUTES.add(
    "POST",
    "/api/jobs/batch",
    BatchAccepted,
    "jobs",
    Right.SUBMIT_JOBS,
    request=BatchRequest,
    errors=ADMISSION,
    status=201,
)
async def post_jobs(call: RequestContext) -> Any:
    """Accept up to 1000 jobs, all or none."""
    requests = call.body_as(BatchRequest).jobs
    call.app.charge(call.who, len(requests) - 1)  # one is counted already
    seen: set[str] = set()
    for position, request in enumerate(requests):
        job_checks(request, f"jobs.{position}.")
        if request.task_id in seen:
            raise BadRequest(
                f"jobs.{position}.task_id: used twice in this batch", asked=request.task_id, hint="each job has its own"
            )
        seen.add(request.task_id)
    return {"jobs": await _accept(call, requests)}


async def _accept(call: RequestContext, requests: list[TaskRequest]) -> list[SubmittedJob]:
    spans, header = call.app.spans, call.http.headers.get(HEADER)
    parents: dict[str, str] = {}
    began = time()
    if spans is not None or header is not None or any(each.traceparent for each in requests):
        requests, parents = in_traces(requests, header, spans, call.app.ledger.members)
    jobs = await recorded(call, requests, frozenset(request.task_id for request in requests))
    asked = time()
    accepted: list[SubmittedJob] = await call.ask("cluster_manager", AcceptJobs(jobs), COMMIT_TIMEOUT_S)
    for answer in accepted:
        if answer["duplicate"]:
            await check_taken(call, answer["job_id"])
    if spans is not None:
        tell(spans, jobs, parents, began, asked, time())
    return accepted


async def recorded(
    call: RequestContext, requests: list[TaskRequest], together: frozenset[str] = frozenset()
) -> tuple[JobRecord, ...]:
    """The jobs that are asked for as the ledger keeps them, with their files kept and spread. Raises BadRequest,
    DiskFull, UnknownJob.

    *together*: the ids of jobs that are accepted with them; they may depend on these before they are there.
    """
    # Whose it is, the token says; what the body says counts from an administrator of all tenants alone.
    requests = [request.model_copy(update={"user_id": user_for(call, request.user_id)}) for request in requests]
    await check_dependencies(call, (name for request in requests for name in request.depends_on), together)
    settings = call.app.settings
    await check_wishes(call, requests)
    requests = [
        request.model_copy(update=with_defaults(call.app, request.notify, request.notify_on)) for request in requests
    ]
    if targets := list(dict.fromkeys(target for request in requests for target in request.notify)):
        await call.app.in_pool(lambda: check_targets(call.app, targets))
    contents = [content for request in requests for content in (request.payload, request.stdin) if content is not None]
    wanted = sum(len(content) for content in contents)
    store = call.app.blobs

    sent_before = dict.fromkeys(
        sent
        for request in requests
        for sent in (
            ("the archive of the working directory", "/api/working-dirs", request.working_dir),
            ("the Python environment", "/api/environments", request.environment),
        )
    )
    named_before = [(what, route, digest) for what, route, digest in sent_before if digest is not None]
    here = await here_of(call, [digest for _, _, digest in named_before])

    def keep() -> dict[bytes, str]:
        for what, route, digest in named_before:
            if digest not in here:
                raise BadRequest(
                    f"{what} is not here",
                    asked=digest,
                    hint=f"send it to {route} first; the client and the command line do",
                )
        store.check_room(wanted, settings.performance.min_free_bytes)
        return dict(zip(contents, store.put_all(contents), strict=True))

    # On the disk for good first: once the ledger names a payload, a crash of ours must not lose it.
    digests = await call.app.in_pool(keep)
    named = (*digests.values(), *(digest for _, _, digest in named_before))
    if named and call.app.host.enrolment is not None:
        # As durable as the ledger's entry will be: the loss of this host must not lose the job.
        await call.ask("links", SpreadBlobs(named), SPREAD_S)
    now = time()
    return tuple(
        job_record(
            request,
            digests[request.payload] if request.payload is not None else None,
            digests[request.stdin] if request.stdin is not None else None,
            settings.work.max_isolation_s,
            settings.work.kill_grace_s,
            now,
        )
        for request in requests
    )


@ROUTES.add("GET", "/api/jobs", JobsAnswer, "jobs", Right.LIST_JOBS, query=JobsQuery)
async def get_jobs(call: RequestContext) -> Any:
    """Jobs, newest first."""
    query = call.query_as(JobsQuery)
    if query.cursor is not None and query.before is not None:
        raise BadRequest("both cursor and before", asked=query.cursor, hint="one of them: a page goes on, or a time")
    if query.cursor is not None:
        await check_job(call, query.cursor)
    states = tuple(part.strip() for part in query.state.split(",") if part.strip())
    words = [state.value for state in JobState]
    for state in states:
        if state not in words:
            raise BadRequest(
                f"there is no job state {state[:40]!r}", asked=state[:40], hint=f"one of {', '.join(words)}"
            )
    known = await cluster_known(call)
    wanted = ListJobs(
        states,
        query.limit,
        query.cursor or query.before,
        query.prefix,
        query.user if call.scope.user is None else call.scope.user,
        tenant=call.scope.tenant or "",
        since_at=None if query.since_s is None else time() - query.since_s,
        name=query.name,
        labels=_labels(query.label),
        host=query.host,
    )
    answer = await call.ask("cluster_manager", wanted, ANSWER_S)
    ledger = call.app.ledger
    return {
        **answer,
        "jobs": marked([readable(call, job) for job in answer["jobs"]], known, ledger.hosts, ledger.notices),
        "last_known": last_known(known),
    }


def _labels(text: str) -> dict[str, str]:
    """Labels as a query has them. Raises BadRequest."""
    try:
        return labels_of(part for part in text.split(",") if part)
    except ValueError as error:
        raise BadRequest(str(error), asked=text[:200], hint="label=team=vision,stage=train") from None


@ROUTES.add("POST", "/api/jobs/cancel", JobsCancelled, "jobs", Right.STEER_JOBS, request=CancelRequest, unlimited=True)
async def cancel_jobs(call: RequestContext) -> Any:
    """Cancel jobs with a label that wait or run, up to 1,000 at once; asked again while there are more."""
    wanted = call.body_as(CancelRequest)
    live = tuple(state.value for state in JobState if not state.final)
    asked = ListJobs(
        live, CANCELLED_MAX, user=call.scope.user or "", tenant=call.scope.tenant or "", labels=wanted.labels
    )
    jobs: list[JobRecord] = []
    for _ in range(PAGES_MAX):
        page: JobsPage = await call.ask("cluster_manager", asked, ANSWER_S)
        jobs += [job for job in page["jobs"] if not job["cancel_requested"]]
        asked = replace(asked, before=page["next"])
        if len(jobs) >= CANCELLED_MAX or page["next"] is None:
            break
    more = len(jobs) > CANCELLED_MAX or page["next"] is not None
    del jobs[CANCELLED_MAX:]
    for first in range(0, len(jobs), TOGETHER):
        asks = (
            call.ask("cluster_manager", RequestCancel(job["job_id"], by="http"), COMMIT_TIMEOUT_S)
            for job in jobs[first : first + TOGETHER]
        )
        await asyncio.gather(*asks)
    cancelled = [{"job_id": job["job_id"], "state": job["state"]} for job in jobs]
    return {"jobs": cancelled, "more": more}


@ROUTES.add("GET", "/api/jobs/{job_id}", Job, "jobs", Right.LIST_JOBS, query=WaitQuery, errors=(UnknownJob,))
async def get_job(call: RequestContext) -> Any:
    """One job; wait_s waits for its end."""
    wait_s = call.query_as(WaitQuery).wait_s
    await check_job(call, call.part("job_id"))
    job = await call.ask("cluster_manager", GetJob(call.part("job_id"), wait_s, call.seen), wait_s + ANSWER_S)
    known = await cluster_known(call, fresh=False) if job["state"] in ON_A_HOST else None
    return marked([readable(call, job)], known, call.app.ledger.hosts, call.app.ledger.notices)[0]


@ROUTES.add("POST", "/api/jobs/{job_id}/cancel", Job, "jobs", Right.STEER_JOBS, errors=(UnknownJob,), unlimited=True)
async def cancel_job(call: RequestContext) -> Any:
    """Cancel a job.

    A final one stays as it is.
    """
    await check_job(call, call.part("job_id"))
    job = await call.ask("cluster_manager", RequestCancel(call.part("job_id"), by="http"), COMMIT_TIMEOUT_S)
    return {**readable(call, job), **notices_shown(job, call.app.ledger.notices)}


@ROUTES.add(
    "POST",
    "/api/jobs/{job_id}/edit",
    JobEdited,
    "jobs",
    Right.STEER_JOBS,
    request=EditRequest,
    errors=(
        UnknownJob,
        WrongState,
        AdmissionRefused,
        UnknownGpuModel,
        TooManyGpus,
        RequestTooLarge,
        QuotaExceeded,
        QueueFull,
    ),
)
async def post_edit(call: RequestContext) -> Any:
    """Change the priority, the time limit, the deadline, the labels of a job that waits, or what it asks for."""
    wanted = call.body_as(EditRequest)
    demand = wanted.demand()
    named = {name: getattr(wanted, name) for name in wanted.model_fields_set if not hasattr(demand, name)}
    if not wanted.model_fields_set:
        raise BadRequest(
            "nothing is to be changed",
            hint="name priority, max_execution_time_s, deadline, gpus, gpu_memory, gpu_models, cpus, memory or labels",
        )
    if {"deadline", "deadline_s"} <= named.keys():
        raise BadRequest("deadline and deadline_s say the same thing twice", hint="give one of them")
    if named.get("deadline") is not None:
        named["deadline"] = named["deadline"].timestamp()
    if "deadline_s" in named:
        left_s = named.pop("deadline_s")
        named["deadline"] = None if left_s is None else time() + left_s
    await check_job(call, call.part("job_id"))
    if "labels" in named:
        limits = call.app.settings.scheduling
        named["waiting_bytes"] = {"user": limits.user_waiting_bytes_max, "all": limits.waiting_bytes_max}
    edit = EditJob(call.part("job_id"), by=call.caller, **named)
    if demand != DemandEdit():
        return await call.ask("cluster_manager", ChangeDemand(edit, demand, call.seen), COMMIT_TIMEOUT_S)
    return await call.propose(edit)


@ROUTES.add(
    "POST",
    "/api/jobs/{job_id}/retry",
    JobRetried,
    "jobs",
    Right.STEER_JOBS,
    errors=(UnknownJob, WrongState, QuotaExceeded, QueueFull, NotFound),
)
async def retry_job(call: RequestContext) -> Any:
    """Queue a job again that has ended without success.

    It stays the same job, with one more attempt. What succeeded, a graph, and what ended longer ago than the last 1,000
    are refused.
    """
    job_id = call.part("job_id")
    job = await call.ask("cluster_manager", GetJob(job_id, seen=call.seen), ANSWER_S)
    check_owner(call, str(job["user_id"]), unknown_job(job_id))
    await _keep_files(call, job)
    return await call.propose(RetryJob(job_id, by=call.caller))


async def _keep_files(call: RequestContext, job: JobRecord) -> None:
    """Have the files that a job names where they were when it was accepted. Raises NotFound where one is gone."""
    digests = tuple(str(digest) for name in JOB_FILES if (digest := job.get(name)))

    def missing() -> tuple[str, ...]:
        return tuple(digest for digest in digests if not call.app.blobs.has(digest))

    gone = await call.app.in_pool(missing)
    if call.app.host.enrolment is not None and digests:
        if gone:
            await call.ask("links", FetchBlobs(gone), SPREAD_S)
        await call.ask("links", SpreadBlobs(digests), SPREAD_S)
    elif gone:
        raise NotFound(
            f"what job {job['job_id']} ran is not kept any more",
            asked=gone[0],
            hint="files are kept as long as a job that names them lives, and an hour after; submit it anew",
        )


@ROUTES.add("GET", "/api/jobs/{job_id}/why", WhyAnswer, "jobs", Right.LIST_JOBS, errors=(UnknownJob,))
async def why_job(call: RequestContext) -> Any:
    """Why a job is where it is."""
    job: JobRecord = await call.ask("cluster_manager", GetJob(call.part("job_id"), seen=call.seen), ANSWER_S)
    user = str(job["user_id"])
    check_owner(call, user, unknown_job(job["job_id"]))
    asked = Why(job["job_id"], call.seen, call.scope, reads_output(call, user))
    return await call.ask("cluster_manager", asked, 15.0)
