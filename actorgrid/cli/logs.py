"""``logs``: what a job wrote."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

import click

from .call import Call, host_options, pass_call

MAX_JSON_BYTES = 8 * 2**20


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--stderr", "only_stderr", is_flag=True, help="Only stderr.")
@click.option("--stdout", "only_stdout", is_flag=True, help="Only stdout.")
@click.option("--attempt", type=click.IntRange(min=1), help="Of this attempt; else of the latest.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of each stream.")
@host_options
@pass_call
def command(
    call: Call,
    job_id: str,
    follow: bool,
    only_stderr: bool,
    only_stdout: bool,
    attempt: int | None,
    tail: int | None,
) -> None:
    """Print a job's output.

    stdout goes to stdout, stderr to stderr. With --json: one document with both as text (invalid UTF-8 replaced), each
    cut to its last 8 MiB.
    """
    from .lookup import find_job

    if call.json and follow:
        raise click.UsageError("--json gives one document; --follow has no end to put into one")
    if follow and tail is not None:
        raise click.UsageError("--tail and --follow cannot be used together")
    if only_stderr and only_stdout:
        raise click.UsageError("--stderr and --stdout exclude each other; without either, both are printed")
    streams = ["stderr"] if only_stderr else ["stdout"] if only_stdout else ["stdout", "stderr"]
    job = find_job(call.http, job_id)
    if call.json:
        texts = {stream: _text(call, job["job_id"], stream, attempt, tail) for stream in streams}
        call.document({"job_id": job["job_id"], "state": job["state"], "attempt": attempt or _latest(job), **texts})
    elif follow:
        _follow(call, job, streams, attempt)
    else:
        for stream in streams:
            _copy(call, job["job_id"], stream, attempt, tail)
        if not job["attempts"]:
            click.echo(f"{job['job_id']} has not started; actorgrid why {job['job_id']}", err=True)


def binary(stream: str) -> BinaryIO:
    """Our own stdout or stderr, for bytes."""
    return sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer


def _latest(job: dict[str, Any]) -> int | None:
    return job["attempts"][-1]["number"] if job["attempts"] else None


def _copy(call: Call, job_id: str, stream: str, attempt: int | None, tail: int | None) -> None:
    target = binary(stream)
    for piece in _chosen(call, job_id, stream, attempt, tail):
        target.write(piece)
    target.flush()


def _chosen(call: Call, job_id: str, stream: str, attempt: int | None, tail: int | None) -> Iterator[bytes]:
    if tail is None:
        yield from _pieces(call, job_id, stream, attempt)
    else:
        yield _last(call, job_id, stream, attempt, tail)


def _pieces(call: Call, job_id: str, stream: str, attempt: int | None) -> Iterator[bytes]:
    from actorgrid.client.http import segment

    with call.http.stream(f"/api/jobs/{segment(job_id)}/logs", stream=stream, attempt=attempt) as response:
        while piece := response.read1(64 * 1024):
            yield piece


def _last(call: Call, job_id: str, stream: str, attempt: int | None, lines: int) -> bytes:
    """The last *lines* lines; of lines longer than 8 MiB in all, their last 8 MiB."""
    kept = b""
    for piece in _pieces(call, job_id, stream, attempt):
        kept += piece
        if len(kept) > 2 * MAX_JSON_BYTES:
            kept = kept[-MAX_JSON_BYTES:]
    return b"".join(kept.splitlines(keepends=True)[-lines:]) if lines else b""


def _text(call: Call, job_id: str, stream: str, attempt: int | None, tail: int | None) -> str:
    kept = b""
    for piece in _chosen(call, job_id, stream, attempt, tail):
        kept = (kept + piece)[-MAX_JSON_BYTES:]
    return kept.decode("utf-8", "replace")


def _follow(call: Call, job: dict[str, Any], streams: list[str], attempt: int | None) -> None:
    from .follow import JobFollower

    follower = JobFollower(
        job["job_id"],
        call.new_http,
        {stream: binary(stream) for stream in streams},
        lambda text: click.echo(f"actorgrid: {text}", err=True),
        attempt=attempt or _latest(job),
        only=attempt is not None,
    )
    follower.start()
    try:
        while not follower.finished.wait(0.5):
            pass
        follower.result()
    finally:
        follower.close()
