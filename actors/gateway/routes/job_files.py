"""What attempts leave on the disks of the hosts that they ran on: output, also as it grows, and results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import web
from pydantic import Field

from actorgrid.access import Right
from actorgrid.actors.cluster.messages import GetJob
from actorgrid.actors.gateway.attempt_files import OUTPUT_BYTES, AttemptFiles, files_of
from actorgrid.actors.gateway.output_choice import chooses_start, read_matching, start_of
from actorgrid.actors.gateway.schemas.answers import LogsQuery
from actorgrid.actors.gateway.server.rights import check_owner, unknown_job
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.gateway.server.stream import gone, send_bytes
from actorgrid.actors.ledger.record_types import AttemptRecord, JobRecord
from actorgrid.actors.links.pieces import Piece
from actorgrid.actors.work.output_lines import matcher
from actorgrid.errors import (
    ActorError,
    BadRequest,
    CallTimeout,
    HostUnreachable,
    NotARegularFile,
    NotFound,
    Overloaded,
    PeerGone,
    ResultGone,
    TaskCancelled,
    TaskFailed,
    UnknownJob,
    WrongState,
    error_from_dict,
)
from actorgrid.job_outcome import decided_by
from actorgrid.models import AnswerBody, JobState, RequestBody
from actorgrid.output_paths import OUTPUT_PATH_BYTES_MAX

ROUTES = RouteTable(Route)

POLL_S = 0.07
RECHECK_S = 2.0
"""How often a follower asks for the job even when it was told of no change."""
MAX_FOLLOWERS = 256
NOT_THERE = (HostUnreachable, CallTimeout, PeerGone, ActorError)
"""What says that an attempt's host, or the way to it, is not there now."""


@dataclass(frozen=True, slots=True)
class OutputPart:
    """Some of an attempt's output. *end*: the offset in it behind *data*."""

    attempt: int
    end: int
    data: bytes


async def find_job(call: RequestContext) -> JobRecord:
    """The job that the path names. Raises UnknownJob."""
    record: JobRecord = await call.ask("cluster_manager", GetJob(call.part("job_id"), seen=call.seen), 10.0)
    check_owner(call, str(record["user_id"]), unknown_job(record["job_id"]))
    return record


def _pick(job: JobRecord, number: int | None, rank: int = 0) -> AttemptRecord | None:
    """The attempt asked for, or the one that decided, else the latest; of a gang that member of it. ``None`` when the
    job has none yet.

    Raises NotFound for a rank that there is not.
    """
    attempts: list[AttemptRecord] = job["attempts"]
    wanted = decided_by(job) if number is None else number
    found = next((each for each in reversed(attempts) if each["number"] == wanted), None)
    if found is None or (not rank and "members" not in found):
        return found
    members = found.get("members", ())
    if rank >= len(members):
        raise NotFound(
            f"job {job['job_id']} has no member of rank {rank}",
            asked=f"rank {rank}",
            found=f"ranks 0 to {len(members) - 1}" if members else "it is no gang",
            hint="leave rank out for the first",
        )
    return cast("AttemptRecord", {**found, **members[rank], "attempt_id": members[rank]["allocation_id"]})


@ROUTES.add(
    "GET",
    "/api/jobs/{job_id}/logs",
    "application/octet-stream",
    "jobs",
    Right.READ_OUTPUT,
    query=LogsQuery,
    errors=(UnknownJob, NotFound, ResultGone, NotARegularFile),
)
async def get_logs(call: RequestContext) -> Any:
    """Output of an attempt; follow=true goes on until the job is final.

    The header X-Offset says at which byte of it begins what since_s, tail and offset choose.
    """
    query = call.query_as(LogsQuery)
    if chooses_start(query) and query.offset:
        raise BadRequest(
            "offset says where to begin, and so do since_s and tail",
            asked=f"offset={query.offset}",
            hint="to go on with what they chose, give the X-Offset of the answer alone",
        )
    if query.grep:
        matcher(query.grep)
    job = await find_job(call)
    attempt = _pick(job, query.attempt, query.rank)
    if attempt is None and query.attempt is not None and not query.follow:
        raise NotFound(
            f"job {job['job_id']} has no attempt {query.attempt}",
            asked=str(query.attempt),
            found=f"{len(job['attempts'])} attempt(s), state {job['state']}",
            hint="leave attempt out for the latest",
        )
    headers = {"X-Job-State": str(job["state"])}
    if attempt is not None:
        headers["X-Attempt"] = str(attempt["number"])
        # A placed attempt may not have its folder yet; an ended one without it is past keeping.
        if attempt.get("ended_at") is not None and not await _exists(call, attempt, query):
            raise _not_kept(attempt)
    if query.follow:
        check_followers(call)
        if attempt is not None:
            # What is no file is a named error before the answer begins; a host that is away may come back.
            with suppress(*(() if chooses_start(query) else NOT_THERE)):
                await files_of(call, attempt).output(query.stream, 0, 0, follow=False)
                query = await _begun(call, query, attempt)
        headers["X-Offset"] = str(query.offset)
        pieces = _data_of(_follow(call, query, job))
    elif attempt is None:
        pieces = _nothing()
    else:
        files = files_of(call, attempt)
        query = await _begun(call, query, attempt)
        headers["X-Offset"] = str(query.offset)
        # Asked before the answer begins: a host that is away is a named error, not half an answer.
        first, _ = await files.output(query.stream, query.offset, 0 if query.grep else OUTPUT_BYTES, follow=False)
        if query.grep:
            pieces = read_matching(files, query, query.offset, first.size)
        else:
            pieces = _read(files, query.stream, query.offset, first)
    return await send_bytes(call.http, pieces, headers)


def check_followers(call: RequestContext) -> None:
    """Raises Overloaded where one more may not follow an output."""
    if call.app.followers >= MAX_FOLLOWERS:
        raise Overloaded("the host serves its maximum of followed outputs", found=f"{MAX_FOLLOWERS}", hint="close some")


async def followed(call: RequestContext, query: LogsQuery, first: int | None) -> AsyncGenerator[OutputPart]:
    """The output that *query* asks for as it grows, from attempt *first* on, until nothing more can come.

    Raises what ``get_logs`` does.
    """
    check_followers(call)
    job = await find_job(call)
    attempt = _pick(job, first, query.rank)
    if attempt is not None:
        if attempt.get("ended_at") is not None and not await _exists(call, attempt, query):
            raise _not_kept(attempt)
        with suppress(*NOT_THERE):
            await files_of(call, attempt).output(query.stream, 0, 0, follow=False)
    return _follow(call, query, job, first)


def _not_kept(attempt: AttemptRecord) -> ResultGone:
    return ResultGone(
        f"the output of {attempt['attempt_id']} is not kept any more",
        hint="work.keep_finished_jobs says how many are; write to files what must stay",
    )


async def _data_of(parts: AsyncGenerator[OutputPart]) -> AsyncGenerator[bytes]:
    async with aclosing(parts):
        async for part in parts:
            yield part.data


async def _begun(call: RequestContext, query: LogsQuery, attempt: AttemptRecord) -> LogsQuery:
    """The same query with the offset at which begins what it asks for."""
    if not chooses_start(query):
        return query
    start = await start_of(files_of(call, attempt), query)
    return query.model_copy(update={"offset": start, "since_s": None, "tail": None})


async def _nothing() -> AsyncGenerator[bytes]:
    empty: tuple[bytes, ...] = ()
    for piece in empty:
        yield piece


async def _exists(call: RequestContext, attempt: AttemptRecord, query: LogsQuery) -> bool:
    """Whether anything is kept of an ended attempt. One that was lost with its host does not keep a follower."""
    try:
        _, exists = await files_of(call, attempt).output(query.stream, 0, 0, follow=False)
    except NOT_THERE:
        if query.follow and query.attempt is None:
            return True
        raise
    return exists


async def _read(files: AttemptFiles, stream: str, offset: int, piece: Piece) -> AsyncGenerator[bytes]:
    """Read what is there now, from *piece* on: a growing output up to its size at the beginning."""
    end = piece.size
    while piece.data:
        yield piece.data
        offset += len(piece.data)
        if offset >= end:
            return
        piece, _ = await files.output(stream, offset, min(OUTPUT_BYTES, end - offset), follow=False)


async def _follow(
    call: RequestContext, query: LogsQuery, job: JobRecord, first: int | None = None
) -> AsyncGenerator[OutputPart]:
    """Follow the output of one attempt, or of each in turn from *first* on, until nothing more can come."""
    loop = asyncio.get_running_loop()
    number = first or query.attempt or max(1, len(job["attempts"]))
    offset = query.offset
    asked_s = loop.time()
    call.app.followers += 1
    try:
        with call.app.hub.watch("job", job["job_id"]) as watch:
            while not gone(call.http) and not call.app.stopping:
                attempt = _pick(job, number, query.rank)
                final = JobState(job["state"]).final
                data, end = (b"", offset) if attempt is None else await _more(call, attempt, query, offset, final)
                if end > offset:
                    offset = end
                    if data:
                        yield OutputPart(number, end, data)
                    continue
                # What was known to have ended before this empty read has given all it had.
                if attempt is None or attempt.get("ended_at") is not None or final:
                    if final and (query.attempt is not None or number >= len(job["attempts"])):
                        return
                    if attempt is not None and query.attempt is not None:
                        return
                    if number < len(job["attempts"]):
                        number, offset = number + 1, 0
                        continue
                told = await watch.wait(POLL_S)
                if told and watch.record is not None:
                    job = cast("JobRecord", watch.record)
                elif told or loop.time() - asked_s > RECHECK_S:
                    asked_s = loop.time()
                    job = await _refreshed(call, job)
    finally:
        call.app.followers -= 1


async def _more(
    call: RequestContext, attempt: AttemptRecord, query: LogsQuery, offset: int, final: bool
) -> tuple[bytes, int]:
    """What came since that was asked for, and up to where. A host that does not answer may come back, or be given up by
    the cluster with its work.

    Raises HostUnreachable and the like when the job is over, and what is left to tell lies there.
    """
    try:
        files = files_of(call, attempt)
        if query.grep:
            found = await files.matching(query.stream, offset, None, query.grep)
            return found.data, found.end
        piece, _ = await files.output(query.stream, offset, OUTPUT_BYTES, follow=True)
    except NOT_THERE:
        if final and attempt.get("state") != "lost":
            raise
        return b"", offset
    return piece.data, offset + len(piece.data)


async def _refreshed(call: RequestContext, job: JobRecord) -> JobRecord:
    """The job's present record; the former one while the servers that know are being restarted."""
    try:
        return await find_job(call)
    except ActorError:
        return job


class OutputsQuery(RequestBody):
    """Of which attempt, and from where on."""

    attempt: int | None = Field(default=None, ge=1, le=2**31, description="its number; without it, the latest")
    rank: int = Field(default=0, ge=0, le=255, description="of a gang: which member")
    behind: str = Field(default="", max_length=OUTPUT_PATH_BYTES_MAX, description="the path to go on behind")


class OutputQuery(OutputsQuery):
    """Which file."""

    path: str = Field(min_length=1, max_length=OUTPUT_PATH_BYTES_MAX, description="its path, as it is listed")
    offset: int = Field(default=0, ge=0, le=2**62, description="bytes to leave out at the start")


class OutputFile(AnswerBody):
    """A file that was kept."""

    path: str
    size_bytes: int
    modified_at: float
    executable: bool


class OutputsAnswer(AnswerBody):
    """A page of what was kept, by path. *missing*: what was named and not there; *problem*: why it is not whole."""

    job_id: str
    attempt: int | None
    files: list[OutputFile]
    missing: list[str]
    problem: str
    next: str | None


async def _outputs_of(call: RequestContext, query: OutputsQuery) -> tuple[JobRecord, AttemptRecord]:
    """The job and the attempt whose outputs are meant. Raises NotFound, WrongState."""
    job = await find_job(call)
    attempt = _pick(job, query.attempt, query.rank)
    if not job.get("outputs"):
        raise NotFound(
            f"job {job['job_id']} was not asked to keep outputs",
            asked=job["job_id"],
            hint="run --out DIR keeps one; its stdout and stderr are there with actorgrid logs",
        )
    if attempt is None or attempt.get("ended_at") is None:
        raise WrongState(
            f"job {job['job_id']} has no outputs yet",
            asked=f"attempt {query.attempt or 'the latest'}",
            found=f"it is {job['state']}",
            hint="they are kept when an attempt ends",
        )
    return job, attempt


@ROUTES.add(
    "GET",
    "/api/jobs/{job_id}/files",
    OutputsAnswer,
    "jobs",
    Right.READ_OUTPUT,
    query=OutputsQuery,
    errors=(UnknownJob, NotFound, WrongState, ResultGone),
)
async def get_outputs(call: RequestContext) -> Any:
    """The files that were kept when an attempt ended, by path, a page at a time."""
    query = call.query_as(OutputsQuery)
    job, attempt = await _outputs_of(call, query)
    page = await files_of(call, attempt).outputs(query.behind)
    if not page.kept:
        raise _outputs_gone(job)
    return {
        "job_id": job["job_id"],
        "attempt": attempt["number"],
        "files": [each._asdict() for each in page.entries],
        "missing": page.missing,
        "problem": page.problem,
        "next": page.behind or None,
    }


@ROUTES.add(
    "GET",
    "/api/jobs/{job_id}/file",
    "application/octet-stream",
    "jobs",
    Right.READ_OUTPUT,
    query=OutputQuery,
    errors=(UnknownJob, NotFound, WrongState, ResultGone),
)
async def get_output(call: RequestContext) -> Any:
    """One of these files."""
    query = call.query_as(OutputQuery)
    job, attempt = await _outputs_of(call, query)
    files = files_of(call, attempt)
    first = await files.output_file(query.path, query.offset)
    if first is None:
        page = await files.outputs("")
        if not page.kept:
            raise _outputs_gone(job)
        raise NotFound(
            "no such file was kept",
            asked=query.path,
            found=", ".join(each.path for each in page.entries[:10]) or "none were",
            hint=f"actorgrid get {job['job_id'][:8]} --list",
        )
    size = max(0, first.size - query.offset)
    pieces = _output_pieces(files, query, first)
    return await send_bytes(call.http, pieces, {"Content-Length": str(size)})


async def _output_pieces(files: AttemptFiles, query: OutputQuery, piece: Piece | None) -> AsyncGenerator[bytes]:
    offset, end = query.offset, piece.size if piece is not None else 0
    while piece is not None and piece.data:
        data = piece.data[: end - offset]
        yield data
        offset += len(data)
        if offset >= end:
            return
        piece = await files.output_file(query.path, offset)


def _outputs_gone(job: JobRecord) -> ResultGone:
    return ResultGone(
        f"the outputs of {job['job_id']} are not kept any more",
        asked=job["job_id"],
        hint="work.outputs_bytes_max and work.keep_finished_jobs say how much is; fetch soon: run --out, actorgrid get",
    )


@ROUTES.add(
    "GET",
    "/api/jobs/{job_id}/result",
    "application/octet-stream",
    "jobs",
    Right.READ_OUTPUT,
    errors=(UnknownJob, WrongState, ResultGone, NotARegularFile, TaskFailed, TaskCancelled),
)
async def get_result(call: RequestContext) -> Any:
    """The result file of a function job.

    As the worker wrote it; it is never unpickled here.
    """
    job = await find_job(call)
    state = JobState(job["state"])
    if not state.final:
        raise WrongState(
            f"job {job['job_id']} has no result yet",
            found=f"it is {state.value}",
            hint=f"wait for it: GET /api/jobs/{job['job_id']}?wait_s=60",
        )
    if job["kind"] != "function":
        raise WrongState(
            "a command has no result file",
            asked=job["job_id"],
            found=f"it {state.value}",
            hint="its exit code is in the job, its output in the logs",
        )
    attempt = _pick(job, None)
    if attempt is not None:
        files = files_of(call, attempt)
        piece = await files.result(0)
        if piece is None:
            raise _no_result(job, state)
        if len(piece.data) == piece.size:
            return web.Response(body=piece.data, content_type="application/octet-stream")
        return await send_bytes(call.http, _file(files, piece), {"Content-Length": str(piece.size)})
    raise _no_result(job, state)


async def _file(files: AttemptFiles, piece: Piece | None) -> AsyncGenerator[bytes]:
    offset = 0
    while piece is not None and piece.data:
        yield piece.data
        offset += len(piece.data)
        if offset >= piece.size:
            return
        piece = await files.result(offset)


def _no_result(job: JobRecord, state: JobState) -> Exception:
    if state is JobState.SUCCEEDED:
        return ResultGone(
            f"the result of {job['job_id']} is not kept any more",
            hint="work.keep_finished_jobs says how many are; fetch results soon, or write them to files",
        )
    attempts = job["attempts"]
    error = job.get("error") or (attempts[-1].get("error") if attempts else None)
    if error:
        return error_from_dict(error)
    if state is JobState.CANCELLED:
        return TaskCancelled(f"job {job['job_id']} was cancelled", hint="submit it again if you still want it")
    return TaskFailed(f"job {job['job_id']} {state.value} without a result", hint="its logs may say why")
