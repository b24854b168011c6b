"""An attempt on this host, as it is followed; when the ledger wants it ended, and how people come to it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from actorgrid.actors.ledger.record_types import AttemptRecord, JobRecord
from actorgrid.errors import JobNotRunning, NotSupported

from .attempt_dir import AttemptDir
from .function_workers import ServedCall
from .job_channels import channel_path, channel_secret
from .outcomes import GANG, PREEMPTED, SUPERSEDED
from .shim_link import ShimLink

NO_JOBS: Mapping[str, JobRecord] = {}


class LiveAttempt:
    """One attempt that has not been reported to the ledger yet."""

    def __init__(self, directory: AttemptDir, token: list[int], isolation_s: float) -> None:
        self.directory = directory
        self.isolation_s = isolation_s
        self.token = token
        self.link: ShimLink | ServedCall | None = None
        self.shim_pid: int | None = None
        self.state = "starting"
        self.stop_reason = ""
        self.stop_grace_s = 0.0
        self.start_reported = False
        self.started_at = 0.0  # by the clock, of what a worker serves: told a moment later
        self.alive_here = False  # our own life has seen its shim
        self.start_by = math.inf  # on CLOCK_BOOTTIME: given back when it has no shim by then
        self.waits_for = ""
        self.had_place = True  # else it stood behind another, and is not to begin
        self.over = False  # nothing of it is left here

    def stop(self, reason: str, grace_s: float) -> None:
        """End the attempt; one without a shim is told so as soon as it has one. The first reason stays."""
        self.stop_reason = self.stop_reason or reason
        self.stop_grace_s = grace_s
        if self.link is not None:
            self.link.send(["stop", self.stop_reason, grace_s])


def channel_of(attempt: LiveAttempt | None, attempt_id: str) -> dict[str, Any]:
    """See ``messages.FindChannel``: the socket's path, what is said there, and whether the job has a terminal.

    *attempt*: what is known of it here. Raises JobNotRunning, NotSupported.
    """
    spec = attempt.directory.read_spec() if attempt is not None and attempt.state != "reporting" else None
    path = channel_path(spec["control_path"]) if spec is not None else ""
    is_open = spec is not None and os.path.exists(path)
    # A shim takes its sockets away last, when the status is written: its end may not have come to us yet.
    has_ended = spec is None or (not is_open and attempt is not None and attempt.directory.status_file.exists())
    has_begun = attempt is not None and attempt.state == "running"
    if has_ended or spec is None or not (has_begun or is_open):
        raise JobNotRunning(
            "the job does not run on this host just now",
            asked=attempt_id[:100],
            found="its attempt has ended" if has_ended else "its attempt is being started",
            hint="ask again; actorgrid why JOB tells more",
        )
    if not is_open:
        raise NotSupported(
            "the job was started by an earlier version of this program, to whose jobs nobody can come",
            asked=attempt_id[:100],
            hint="it can be done with jobs that are started from now on",
        )
    return {"path": path, "secret": channel_secret(spec["token"]), "terminal": bool(spec.get("pty"))}


def ids_of(attempt: AttemptRecord) -> list[str]:
    """The ids under which an attempt's parts run, each on its host: one, or those of a gang's members."""
    return [str(part["allocation_id"]) for part in attempt.get("members", (attempt,))]


def is_over(job: JobRecord, member_id: str) -> bool:
    """Whether the id is a gang's member that has ended while the gang goes on."""
    members = [member for attempt in job.get("attempts", ())[-1:] for member in attempt.get("members", ())]
    return any(member["allocation_id"] == member_id and member["ended_at"] is not None for member in members)


def reason_to_end(job: JobRecord) -> str:
    """Why the job's present attempt is to end, apart from its owner's wish; empty when it is not."""
    for attempt in job.get("attempts", ())[-1:]:
        if attempt["ended_at"] is None and attempt.get("superseded") is not None:
            return SUPERSEDED
        if attempt["ended_at"] is None and attempt.get("preemption") is not None:
            return PREEMPTED
        if attempt["ended_at"] is None and attempt.get("ending") is not None:
            return GANG
    return ""
