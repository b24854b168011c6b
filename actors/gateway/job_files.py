"""What attempts leave on this host's disk: output, also as it grows, and results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from actorgrid.errors import (
    ActorError,
    NotFound,
    Overloaded,
    ResultGone,
    TaskCancelled,
    TaskFailed,
    UnknownJob,
    WrongState,
    error_from_dict,
)
from actorgrid.models import JobState

from ..cluster.messages import GetJob
from ..work.attempt_dir import AttemptDir
from .answers import LogsQuery
from .route import Call, Route
from .stream import gone, send_bytes

PIECE_BYTES = 256 * 2**10
POLL_S = 0.07
RECHECK_S = 2.0
"""How often a follower asks for the job even when it was told of no change."""
MAX_FOLLOWERS = 256
WHOLE_BYTES = 2**20
"""Results up to this size are sent in one piece."""


async def _job(call: Call) -> dict[str, Any]:
    record: dict[str, Any] = await call.ask("cluster_manager", GetJob(call.part("job_id"), seen=call.seen), 10.0)
    return record


def _folder(call: Call, attempt: dict[str, Any]) -> AttemptDir:
    if attempt["host"] != call.door.host.host_id:
        raise NotFound(
            f"attempt {attempt['attempt_id']} ran on another host",
            found=str(attempt["host"]),
            hint="ask that host for its output and results",
        )
    return AttemptDir(call.door.host.paths.attempts_dir, attempt["attempt_id"])


def _pick(job: dict[str, Any], number: int | None) -> dict[str, Any] | None:
    """The attempt asked for, or the latest; None when the job has none yet."""
    attempts: list[dict[str, Any]] = job["attempts"]
    if number is None:
        return attempts[-1] if attempts else None
    for attempt in attempts:
        if attempt["number"] == number:
            return attempt
    return None


async def get_logs(call: Call) -> Any:
    """Output of an attempt."""
    query = call.query_as(LogsQuery)
    job = await _job(call)
    attempt = _pick(job, query.attempt)
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
        folder = _folder(call, attempt)
        # A placed attempt may not have its folder yet; an ended one without it is past keeping.
        if attempt.get("ended_at") is not None and not await call.door.in_pool(folder.path.exists):
            raise ResultGone(
                f"the output of {attempt['attempt_id']} is not kept any more",
                hint="work.keep_finished_jobs says how many are; write to files what must stay",
            )
    if query.follow:
        if call.door.followers >= MAX_FOLLOWERS:
            raise Overloaded(
                "the host serves its maximum of followed outputs", found=f"{MAX_FOLLOWERS}", hint="close some"
            )
        pieces = _follow(call, query, job)
    elif attempt is None:
        pieces = _nothing()
    else:
        pieces = _read(call, _folder(call, attempt), query.stream, query.offset)
    return await send_bytes(call.http, pieces, headers)


async def _nothing() -> AsyncGenerator[bytes]:
    empty: tuple[bytes, ...] = ()
    for piece in empty:
        yield piece


async def _read(call: Call, folder: AttemptDir, stream: str, offset: int) -> AsyncGenerator[bytes]:
    """What is there now: a growing output is read up to its size at the beginning."""
    left = folder.output_size(stream) - offset
    while left > 0:
        piece = await call.door.in_pool(partial(folder.read_output, stream, offset, min(PIECE_BYTES, left)))
        if not piece:
            return
        offset += len(piece)
        left -= len(piece)
        yield piece


async def _follow(call: Call, query: LogsQuery, job: dict[str, Any]) -> AsyncGenerator[bytes]:
    """Output as it comes, of one attempt or of each in turn, until nothing more can come."""
    loop = asyncio.get_running_loop()
    number = query.attempt or max(1, len(job["attempts"]))
    offset = query.offset
    asked_s = loop.time()
    call.door.followers += 1
    try:
        with call.door.hub.watch_job(job["job_id"]) as watch:
            while not gone(call.http) and not call.door.stopping:
                attempt = _pick(job, number)
                final = JobState(job["state"]).final
                piece = b""
                if attempt is not None:
                    read = partial(_folder(call, attempt).read_output, query.stream, offset, PIECE_BYTES)
                    piece = await call.door.in_pool(read)
                if piece:
                    offset += len(piece)
                    yield piece
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
                    job = watch.record
                elif told or loop.time() - asked_s > RECHECK_S:
                    asked_s = loop.time()
                    job = await _refreshed(call, job)
    finally:
        call.door.followers -= 1


async def _refreshed(call: Call, job: dict[str, Any]) -> dict[str, Any]:
    """The job as it is now; as it was while those who know are being restarted."""
    try:
        return await _job(call)
    except ActorError:
        return job


async def get_result(call: Call) -> Any:
    """The result file of a function job, as the worker wrote it; never unpickled here."""
    job = await _job(call)
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
        path = _folder(call, attempt).result
        try:
            size = (await call.door.in_pool(path.stat)).st_size
            if size <= WHOLE_BYTES:
                content = await call.door.in_pool(path.read_bytes)
                return web.Response(body=content, content_type="application/octet-stream")
        except FileNotFoundError:
            raise _no_result(job, state) from None
        return await send_bytes(call.http, _file(call, path), {"Content-Length": str(size)})
    raise _no_result(job, state)


async def _file(call: Call, path: Path) -> AsyncGenerator[bytes]:
    with open(path, "rb") as file:
        while piece := await call.door.in_pool(partial(file.read, WHOLE_BYTES)):
            yield piece


def _no_result(job: dict[str, Any], state: JobState) -> Exception:
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


ROUTES = (
    Route(
        "GET",
        "/api/jobs/{job_id}/logs",
        "Output of an attempt; follow=true goes on until the job is final",
        get_logs,
        "application/octet-stream",
        "jobs",
        query=LogsQuery,
        errors=(UnknownJob, NotFound, ResultGone),
    ),
    Route(
        "GET",
        "/api/jobs/{job_id}/result",
        "The result file of a function job",
        get_result,
        "application/octet-stream",
        "jobs",
        errors=(UnknownJob, WrongState, ResultGone, TaskFailed, TaskCancelled),
    ),
)
