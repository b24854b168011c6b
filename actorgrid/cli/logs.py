"""``logs``: what a job wrote."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import click

from actorgrid.errors import BadRequest

from . import candidates
from .call import CommandContext, host_command
from .ranks import RANKS_MAX, Labelled, Ranks, members_of
from .show import say_folded
from .times import seconds

MAX_JSON_BYTES = 8 * 2**20


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=candidates.jobs)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--stderr", "only_stderr", is_flag=True, help="Only stderr.")
@click.option("--stdout", "only_stdout", is_flag=True, help="Only stdout.")
@click.option("--attempt", type=click.IntRange(min=1), help="Of this attempt; else of the latest.")
@click.option("--rank", type=click.IntRange(0, 255), help="Of a gang: of this member; else of rank 0.")
@click.option("--all-ranks", is_flag=True, help="Of a gang: of every member, each line with its rank in front.")
@click.option("--tail", type=click.IntRange(0, 1_000_000), metavar="N", help="Only the last N lines of each stream.")
@click.option("--since", callback=seconds, metavar="TIME", help="Only what came in the last 30, 10m, 2h.")
@click.option("--grep", default="", metavar="PATTERN", help="Only lines with this regular expression in them.")
@host_command
def command(
    call: CommandContext,
    job_id: str,
    follow: bool,
    only_stderr: bool,
    only_stdout: bool,
    attempt: int | None,
    rank: int | None,
    all_ranks: bool,
    tail: int | None,
    since: float | None,
    grep: str,
) -> None:
    """Print a job's output.

    Of a service, that of each of its replicas. stdout goes to stdout, stderr to stderr. What --since, --grep and
    --tail leave out stays on the job's host; with all three, it is the last N lines of that time that match. With
    -f they choose where it begins, and --grep what follows. Patterns are RE2's, so that none takes long: no
    backreferences, no looking ahead. With --json: one document with both as text (invalid UTF-8 replaced), each cut
    to its last 8 MiB.
    """
    from .service_lookup import find_work_or_service, replica_logs
    from .session_leases import lease_output

    if call.json and follow:
        raise click.UsageError("--json gives one document; --follow has no end to put into one")
    if only_stderr and only_stdout:
        raise click.UsageError("--stderr and --stdout exclude each other; without either, both are printed")
    if all_ranks and (rank is not None or call.json):
        raise click.UsageError(f"--all-ranks cannot be used together with {'--json' if call.json else '--rank'}")
    streams = ["stderr"] if only_stderr else ["stdout"] if only_stdout else ["stdout", "stderr"]
    job, leases, service = find_work_or_service(call.http, job_id)
    choice = {
        name: value for name, value in (("since_s", since), ("tail", tail), ("grep", grep)) if value not in (None, "")
    }
    if service is not None:
        if follow or attempt is not None or rank is not None or all_ranks:
            raise click.UsageError(f"of one replica alone: actorgrid services {service['name']} names their jobs")

        def text_of(replica: str, stream: str) -> str:
            return _text(_Of(call, replica, None, 0, choice), stream)

        replica_logs(call, service, streams, text_of)
        return
    if job is None:
        if choice:
            raise click.UsageError("--since, --grep and --tail are about jobs, and this is a lease of a session")
        written = {
            stream: b"".join(lease_output(call.http, each["lease_id"], stream) for each in leases) for stream in streams
        }
        if call.json:
            texts = {stream: data[-MAX_JSON_BYTES:].decode("utf-8", "replace") for stream, data in written.items()}
            call.document({"leases": [each["lease_id"] for each in leases], **texts})
        else:
            for stream, data in written.items():
                binary(stream).write(data)
                binary(stream).flush()
        return
    if job.get("kind") == "graph":
        raise BadRequest(
            "a graph has no output of its own: the jobs that ran its steps have",
            asked=job["job_id"],
            hint=f"actorgrid dag show {job['job_id']} names them",
        )
    of = _Of(call, job["job_id"], attempt, rank or 0, choice)
    gang = members_of(job)
    if call.json:
        texts = {stream: _text(of, stream) for stream in streams}
        member = {"rank": of.rank} if gang > 1 else {}
        call.document(
            {"job_id": job["job_id"], "state": job["state"], "attempt": attempt or _latest(job), **member, **texts}
        )
    elif follow:
        _follow(of, job, streams, all_ranks and gang > 1)
    else:
        if all_ranks and gang > 1 and job["attempts"]:
            _copy_ranks(of, streams, gang)
        else:
            for stream in streams:
                _copy(of, stream, binary(stream))
        if not job["attempts"]:
            say_folded(f"{job['job_id']} has not started; actorgrid why {job['job_id']}", err=True)


@dataclass(frozen=True, slots=True)
class _Of:
    """The output asked for: of the latest attempt unless one is named, the part of it that *choice* says."""

    call: CommandContext
    job_id: str
    attempt: int | None
    rank: int
    choice: dict[str, Any]


def binary(stream: str) -> BinaryIO:
    """Our own stdout or stderr, for bytes."""
    return sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer


def _latest(job: dict[str, Any]) -> int | None:
    return job["attempts"][-1]["number"] if job["attempts"] else None


def _copy(of: _Of, stream: str, target: BinaryIO | Labelled) -> None:
    for piece in _pieces(of, stream):
        target.write(piece)
    target.flush()


def _copy_ranks(of: _Of, streams: list[str], gang: int) -> None:
    for stream in streams:
        for rank in range(gang):
            labelled = Labelled(binary(stream), rank, threading.Lock())
            _copy(replace(of, rank=rank), stream, labelled)
            labelled.end()


def _pieces(of: _Of, stream: str) -> Iterator[bytes]:
    from actorgrid.client.http import segment

    query: dict[str, Any] = {"stream": stream, "attempt": of.attempt, "rank": of.rank or None, **of.choice}
    with of.call.http.stream(f"/api/jobs/{segment(of.job_id)}/logs", **query) as response:
        while piece := response.read1(64 * 1024):
            yield piece


def _text(of: _Of, stream: str) -> str:
    kept = b""
    for piece in _pieces(of, stream):
        kept = (kept + piece)[-MAX_JSON_BYTES:]
    return kept.decode("utf-8", "replace")


def _follow(of: _Of, job: dict[str, Any], streams: list[str], all_ranks: bool) -> None:
    from .follow import JobFollower

    outputs = {stream: binary(stream) for stream in streams}
    gang = members_of(job)
    if all_ranks and gang > RANKS_MAX:
        raise click.UsageError(f"--follow takes the output of at most {RANKS_MAX} ranks together; name one with --rank")

    follower = JobFollower(
        job["job_id"],
        of.call.new_http,
        outputs,
        lambda text: say_folded(f"actorgrid: {text}", err=True),
        attempt=of.attempt or _latest(job),
        only=of.attempt is not None,
        rank=of.rank,
        ranks=Ranks(gang, outputs) if all_ranks else None,
        choice=of.choice,
    )
    follower.start()
    try:
        while not follower.finished.wait(0.5):
            pass
        follower.result()
    finally:
        follower.close()
