"""Graphs of steps: accept, look at, begin again; what their steps gave."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator
from time import time
from typing import Any, cast

from aiohttp import web

from actorgrid.access import Right
from actorgrid.actors.cluster.explain.graphs import step_states
from actorgrid.actors.cluster.explain.reach import error_without_output
from actorgrid.actors.cluster.messages import AcceptGraph, AskGraph
from actorgrid.actors.gateway.attempt_files import AttemptFiles, files_of
from actorgrid.actors.gateway.graph_objectives import objectives_of
from actorgrid.actors.gateway.job_notices import check_targets, notices_shown, with_defaults
from actorgrid.actors.gateway.job_requests import check_env, check_python
from actorgrid.actors.gateway.named_files import has_or_keep, here_of
from actorgrid.actors.gateway.schemas.graphs import (
    GraphAccepted,
    GraphAnswer,
    GraphFileAnswer,
    GraphFileRequest,
    GraphRetried,
    IndexesCancelled,
    IndexesRequest,
    ItemsAnswer,
    ItemsRequest,
    ObjectivesAnswer,
    StepsAnswer,
    StepsQuery,
)
from actorgrid.actors.gateway.server.rights import (
    check_owner,
    check_taken,
    readable,
    reads_output,
    unknown_job,
    user_for,
)
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.gateway.server.stream import send_bytes
from actorgrid.actors.gateway.step_items import items_of
from actorgrid.actors.jobs.graph_spec import GraphSpec, write_spec
from actorgrid.actors.ledger.answers import SubmittedJob
from actorgrid.actors.ledger.commands import CancelSteps, RetryGraph, RetrySteps
from actorgrid.actors.ledger.exec_limits import check_exec
from actorgrid.actors.ledger.graph_records import StepRecord
from actorgrid.actors.ledger.messages import Query
from actorgrid.actors.ledger.query_answers import GraphSteps
from actorgrid.actors.ledger.record_types import AttemptRecord, JobRecord
from actorgrid.actors.ledger.tables.graphs import NEW_STEP
from actorgrid.actors.links.messages import SpreadBlobs
from actorgrid.dag.allocators import find_allocator
from actorgrid.dag.model import StepKind
from actorgrid.dag.requests import GraphRequest
from actorgrid.demand import Demand
from actorgrid.errors import (
    BadRequest,
    BodyTooLarge,
    CommandTooLarge,
    CyclicGraph,
    DiskFull,
    InvalidGraph,
    MissingProducer,
    NotFound,
    PythonMismatch,
    QueueFull,
    ResultGone,
    StepFailed,
    TargetNotAllowed,
    UnboundedLoop,
    UnknownJob,
    UnknownPolicy,
    UnknownTarget,
    UnsatisfiableCost,
    WrongState,
    error_from_dict,
)
from actorgrid.job_arrays import NOTE, JobArray, step_numbers
from actorgrid.working_dir import VARIABLE

ROUTES = RouteTable(Route)
COMMIT_TIMEOUT_S = 45.0
SPREAD_S = 60.0
ANSWER_S = 10.0
RECORDS_PAGE = 5_000
DEMANDS_MAX = 256
"""Different demands of a graph that are asked about before it is accepted; the others wait if nobody can serve them."""
_REFUSALS = (
    InvalidGraph,
    CyclicGraph,
    MissingProducer,
    UnboundedLoop,
    UnsatisfiableCost,
    UnknownPolicy,
    PythonMismatch,
    CommandTooLarge,
    QueueFull,
    DiskFull,
    UnknownTarget,
    TargetNotAllowed,
)


@ROUTES.add(
    "POST",
    "/api/graph-files",
    GraphFileAnswer,
    "graphs",
    Right.SUBMIT_JOBS,
    request=GraphFileRequest,
    errors=(DiskFull, BodyTooLarge),
)
async def post_graph_file(call: RequestContext) -> Any:
    """Keep a file with what a graph's steps run, for a graph that will name it. It is not looked into here."""
    request = call.body_as(GraphFileRequest)
    return {"digest": request.digest, "here": await has_or_keep(call, request.digest, request.content)}


@ROUTES.add(
    "POST",
    "/api/graphs",
    GraphAccepted,
    "graphs",
    Right.SUBMIT_JOBS,
    request=GraphRequest,
    errors=_REFUSALS,
    status=201,
)
async def post_graph(call: RequestContext) -> Any:
    """Accept a graph of steps: committed, as a whole, when this answers."""
    request = call.body_as(GraphRequest)
    request = request.model_copy(update={"user_id": user_for(call, request.user_id)})
    request = _with_host_ids(call, request)
    _check(request)
    find_allocator(request.strategy)
    request = request.model_copy(update=with_defaults(call.app, request.notify, request.notify_on))
    if request.notify:
        await call.app.in_pool(lambda: check_targets(call.app, request.notify))
    store, settings = call.app.blobs, call.app.settings
    given = (request.bundle, request.working_dir, request.environment)
    here = await here_of(call, list(filter(None, given)))

    def keep() -> str:
        request.to_graph()  # refuses what is wrong with it
        for step in request.steps:
            check_exec(step.command, step.env)
        for digest in filter(None, given):
            if digest not in here:
                raise BadRequest(
                    "a file of the graph is not here",
                    asked=digest,
                    hint="send it first, to /api/graph-files, /api/working-dirs or /api/environments; the client and"
                    " the command line do",
                )
        # Whom it tells is in its record: an address may be a secret, and who may read its files is another question.
        content = write_spec(request.model_copy(update={"notify": [], "notify_on": []}))
        store.check_room(len(content), settings.performance.min_free_bytes)
        return store.put_all([content])[0]

    spec_file = await call.app.in_pool(keep)
    files = list(dict.fromkeys(filter(None, (spec_file, *given))))
    if call.app.host.enrolment is not None:
        await call.ask("links", SpreadBlobs(tuple(files)), SPREAD_S)
    graph = {
        "job_id": request.graph_id,
        "name": request.name,
        "user_id": request.user_id,
        "python": request.python,
        "priority": request.priority,
        "env": request.env if request.working_dir is None else {**request.env, VARIABLE: request.working_dir},
        "max_isolation_s": request.max_isolation_s or settings.work.max_isolation_s,
        "preemptible": request.preemptible,
        "grace_s": settings.work.kill_grace_s,
        "submitted_at": time(),
        "graph": {
            "files": files,
            "steps": len(request.steps),
            "strategy": request.strategy,
            "on_failure": request.on_failure.value,
        },
        **({"annotations": request.annotations} if request.annotations else {}),
        **({"labels": request.labels} if request.labels else {}),
        **({"notify": request.notify} if request.notify else {}),
        **({"notify_on": request.notify_on} if request.notify_on else {}),
    }
    accept = AcceptGraph(
        graph, _demands(request), request.keeps_results, request.grows, request.asks_commands, request.spec_version
    )
    accepted: SubmittedJob = await call.ask("cluster_manager", accept, COMMIT_TIMEOUT_S)
    if accepted["duplicate"]:
        await check_taken(call, accepted["job_id"])
    return accepted


@ROUTES.add("GET", "/api/graphs/{graph_id}", GraphAnswer, "graphs", Right.LIST_JOBS, errors=(UnknownJob,))
async def get_graph(call: RequestContext) -> Any:
    """One graph."""
    found = await _graph(call)
    job, states = found["job"], found["states"]
    facts = job["graph"]
    return {
        "job": {**readable(call, job), **notices_shown(job, call.app.ledger.notices)},
        "strategy": facts["strategy"],
        "on_failure": facts["on_failure"],
        "total": facts["steps"],
        "states": step_states(job, states),
        "retries": facts["retries"],
        "stopping": facts["stopping"],
        "held_by": (found["here"] or {}).get("held_by") or None,
    }


@ROUTES.add(
    "GET",
    "/api/graphs/{graph_id}/steps",
    StepsAnswer,
    "graphs",
    Right.LIST_JOBS,
    query=StepsQuery,
    errors=(UnknownJob, ResultGone),
)
async def get_steps(call: RequestContext) -> Any:
    """Steps of a graph, by number."""
    query = call.query_as(StepsQuery)
    job = (await _graph(call))["job"]
    spec = await call.app.graph_files.spec(call, job["graph"])
    records = await _records(call, job, query.first, query.limit)
    total = len(spec.request.steps)
    last = min(total, query.first + query.limit)
    wanted = {part.strip() for part in query.state.split(",") if part.strip()}
    steps = [
        step_view(spec, number, records.get(number, NEW_STEP))
        for number in range(query.first, last)
        if spec.step(number).kind.runs
    ]
    if not reads_output(call, str(job["user_id"])):
        steps = [{**each, "error": error_without_output(each.get("error"))} for each in steps]
    return {
        "steps": [each for each in steps if not wanted or each["state"] in wanted],
        "total": total,
        "next": last if last < total else None,
    }


@ROUTES.add(
    "GET",
    "/api/graphs/{graph_id}/objectives",
    ObjectivesAnswer,
    "graphs",
    Right.LIST_JOBS,
    errors=(UnknownJob, ResultGone),
)
async def get_objectives(call: RequestContext) -> Any:
    """Throughput, traffic between hosts, fragmentation and cost of a graph: as measured, and as planned."""
    job = (await _graph(call))["job"]
    spec = await call.app.graph_files.spec(call, job["graph"])
    records: dict[int, StepRecord] = {}
    for first in range(0, len(spec.graph), RECORDS_PAGE):
        records |= await _records(call, job, first, RECORDS_PAGE)
    return await call.app.in_pool(
        functools.partial(objectives_of, spec, job["graph"]["strategy"], records, dict(call.app.ledger.hosts))
    )


@ROUTES.add(
    "GET",
    "/api/graphs/{graph_id}/steps/{step}/result",
    "application/octet-stream",
    "graphs",
    Right.READ_OUTPUT,
    errors=(UnknownJob, NotFound, WrongState, ResultGone, StepFailed),
)
async def get_step_result(call: RequestContext) -> Any:
    """What a step of a graph gave, as the worker wrote it; it is never unpickled here. Of a command: its outputs.

    The step is named by its number, or by its id.
    """
    job = (await _graph(call))["job"]
    spec = await call.app.graph_files.spec(call, job["graph"])
    number = _number(spec, call.part("step"))
    records = await _records(call, job, number, 1)
    record = records.get(number, NEW_STEP)
    id = spec.step(number).id
    if record["state"] != "succeeded" and not (record["state"] == "failed" and record["size"]):
        if record.get("error") is not None:
            raise error_from_dict(record["error"])
        raise WrongState(f"step {id} has no result yet", asked=id, found=f"it is {record['state']}")
    source = spec.step(record.get("same_as", number))
    if source.kind is not StepKind.FUNCTION and not source.outputs:
        raise WrongState(
            "a command without outputs gives no value", asked=id, hint=f"its output: actorgrid logs {record['job_id']}"
        )
    attempt = cast("AttemptRecord", {"host": record["host"], "attempt_id": record["attempt_id"]})
    files = files_of(call, attempt)
    piece = await files.result(record["offset"])
    if piece is None or piece.size < record["offset"] + record["size"]:
        raise ResultGone(
            f"what step {id} gave is not kept any more",
            found=f"host {record['host']}",
            hint="results of a graph are kept while it runs; work.keep_finished_jobs says how many after that",
        )
    if len(piece.data) >= record["size"]:
        return web.Response(body=piece.data[: record["size"]], content_type="application/octet-stream")
    size = {"Content-Length": str(record["size"])}
    return await send_bytes(call.http, _part(files, record["offset"], record["size"]), size)


@ROUTES.add(
    "POST",
    "/api/graphs/{graph_id}/steps/{step}/items",
    ItemsAnswer,
    "graphs",
    Right.READ_OUTPUT,
    request=ItemsRequest,
    errors=(UnknownJob, NotFound, ResultGone),
)
async def post_items(call: RequestContext) -> Any:
    """The items of a step that streams from a position on, while it runs and after that; and take note how many were
    taken."""
    job = (await _graph(call))["job"]
    number = _number(await call.app.graph_files.spec(call, job["graph"]), call.part("step"))
    record = (await _records(call, job, number, 1)).get(number, NEW_STEP)
    return await items_of(call, record, call.body_as(ItemsRequest))


@ROUTES.add(
    "POST",
    "/api/graphs/{graph_id}/retry",
    GraphRetried,
    "graphs",
    Right.STEER_JOBS,
    errors=(UnknownJob, WrongState, QueueFull),
)
async def post_retry(call: RequestContext) -> Any:
    """Begin a graph again that has failed or was cancelled; steps that have succeeded stay as they are."""
    await _graph(call)
    return await call.propose(RetryGraph(call.part("graph_id"), by=call.caller))


@ROUTES.add(
    "POST",
    "/api/graphs/{graph_id}/indexes/cancel",
    IndexesCancelled,
    "graphs",
    Right.STEER_JOBS,
    request=IndexesRequest,
    errors=(UnknownJob, WrongState, NotFound),
    unlimited=True,
)
async def cancel_indexes(call: RequestContext) -> Any:
    """Cancel some indexes of an array: they end as failed, and the others go on."""
    return await call.propose(CancelSteps(call.part("graph_id"), await _indexes(call), by=call.caller))


@ROUTES.add(
    "POST",
    "/api/graphs/{graph_id}/indexes/retry",
    GraphRetried,
    "graphs",
    Right.STEER_JOBS,
    request=IndexesRequest,
    errors=(UnknownJob, WrongState, NotFound, QueueFull),
)
async def retry_indexes(call: RequestContext) -> Any:
    """Begin some indexes of an array again that have failed; those of them that have not stay as they are."""
    return await call.propose(RetrySteps(call.part("graph_id"), await _indexes(call), by=call.caller))


async def _indexes(call: RequestContext) -> list[int]:
    """The numbers of the steps that run the indexes of the body. Raises BadRequest, NotFound, WrongState."""
    job = (await _graph(call))["job"]
    wanted = JobArray.parse(call.body_as(IndexesRequest).indexes)
    numbers = step_numbers(job)
    if not numbers:
        raise WrongState(
            f"{job['job_id']} is a graph and no array",
            asked=f"its indexes {wanted.text}",
            found="steps with names",
            hint="cancel or retry it as a whole",
        )
    missing = [index for index in wanted.indexes if index not in numbers]
    if missing:
        raise NotFound(
            f"{job['job_id']} has no index {missing[0]}",
            asked=wanted.text,
            found=f"{len(missing)} of {len(wanted.indexes)} are not there",
            hint=f"it has {(job.get('annotations') or {}).get(NOTE, '')[:80]}",
        )
    return [numbers[index] for index in wanted.indexes]


async def _graph(call: RequestContext) -> dict[str, Any]:
    found: dict[str, Any] = await call.ask("cluster_manager", AskGraph(call.part("graph_id"), call.seen), ANSWER_S)
    check_owner(call, str(found["job"]["user_id"]), unknown_job(found["job"]["job_id"]))
    return found


async def _records(call: RequestContext, job: JobRecord, first: int, limit: int) -> dict[int, StepRecord]:
    asked = {"graph_id": job["job_id"], "from": first, "limit": limit}
    try:
        found: GraphSteps = await call.ask("consensus", Query("graph_steps", asked), ANSWER_S)
    except UnknownJob as error:
        raise ResultGone(
            f"the steps of graph {job['job_id']} are known no more",
            asked=job["job_id"],
            hint="those of the last 100 graphs that have ended are; actorgrid ps --prefix shows the jobs that ran them",
        ) from error
    return dict(found["steps"])


def step_view(spec: GraphSpec, number: int, record: StepRecord) -> dict[str, Any]:
    """A step as people see it."""
    step = spec.step(number)
    state = "waiting" if record["state"] == "stumbled" else record["state"]
    seen = {**record, "state": state}
    if "same_as" in record:
        seen["same_as"] = spec.step(record["same_as"]).id
    if "cached_from" in record:
        graph_id, there = record["cached_from"]
        seen["cached_from"] = {"graph_id": graph_id, "step": there}
    return {
        "number": number,
        "id": step.id,
        "kind": step.kind.value,
        "inputs": [each.step for each in step.inputs],
        "after": list(step.after),
        "when": [each.step for each in step.when],
        "producers": list(spec.graph.producers[number]),
        "expected_s": step.runtime_s,
        "outputs": list(step.outputs),
        **seen,
    }


def _number(spec: GraphSpec, text: str) -> int:
    number = spec.graph.number.get(text)
    if number is None and text.isdecimal() and int(text) < len(spec.request.steps):
        number = int(text)
    if number is None:
        import difflib

        near = difflib.get_close_matches(text, spec.graph.number, n=1)
        raise NotFound(
            f"the graph has no step {text!r}", asked=text[:200], hint=f"did you mean {near[0]}?" if near else ""
        )
    return number


async def _part(files: AttemptFiles, offset: int, size: int) -> AsyncGenerator[bytes]:
    end = offset + size
    while offset < end:
        piece = await files.result(offset)
        if piece is None or not piece.data:
            return
        yield piece.data[: end - offset]
        offset += len(piece.data)


def _check(request: GraphRequest) -> None:
    check_env(request.env, "env")
    if request.environment is None and any(step.call is not None for step in request.steps):
        check_python(request.python)
    for step in request.steps:
        if step.env:
            check_env(step.env, f"step {step.id}: env")


def _with_host_ids(call: RequestContext, request: GraphRequest) -> GraphRequest:
    """*request* with hosts by their ids, where steps name them by their names. Raises UnsatisfiableCost."""
    if not any(step.node for step in request.steps):
        return request
    hosts = list(call.app.ledger.hosts.values())
    ids = {host["host_id"] for host in hosts}
    named: dict[str, list[str]] = {}
    for host in hosts:
        named.setdefault(host["hostname"], []).append(host["host_id"])
    steps = []
    for step in request.steps:
        if step.node and step.node not in ids:
            found = named.get(step.node, [])
            if len(found) != 1:
                raise UnsatisfiableCost(
                    f"step {step.id} is to run on a host that is not there" if not found else "two hosts have one name",
                    asked=step.node,
                    found=", ".join(sorted(found or named))[:300],
                    hint="actorgrid hosts lists them, with their ids",
                    step=step.id,
                )
            step = step.model_copy(update={"node": found[0]})
        steps.append(step)
    return request.model_copy(update={"steps": steps})


def _demands(request: GraphRequest) -> tuple[tuple[str, Any], ...]:
    found: dict[tuple[Demand, str], str] = {}
    for step in request.steps:
        if step.kind.is_work and len(found) < DEMANDS_MAX:
            found.setdefault((Demand.of_request(step), step.node), step.id)
    return tuple(
        (id, {**demand.to_record(), **({"hosts": [node]} if node else {})}) for (demand, node), id in found.items()
    )
