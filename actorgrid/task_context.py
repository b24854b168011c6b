"""What the process that asks was granted: by which attempt of which job, or lease of which session, it runs."""

from __future__ import annotations

import os
from dataclasses import dataclass

from actorgrid.errors import OutsideTask
from actorgrid.fencing import FencingToken, is_fencing_token

TOKEN = "ACTORGRID_TOKEN"
ATTEMPT_NUMBER = "ACTORGRID_ATTEMPT_NUMBER"
JOB_ID = "ACTORGRID_JOB_ID"
LEASE_ID = "ACTORGRID_LEASE_ID"
ATTEMPT_ID = "ACTORGRID_ATTEMPT"
CREDENTIAL_FILE = "ACTORGRID_CREDENTIAL_FILE"
CPU_MILLI = "ACTORGRID_CPU_MILLI"
LENT_CPU_MILLI = "ACTORGRID_LENT_CPU_MILLI"


@dataclass(frozen=True, slots=True)
class CurrentTask:
    """The grant under which this process runs. Exactly one of *job_id* and *lease_id* is not None."""

    token: FencingToken
    """Of two attempts of a job, or of a task of a session, that of the later one is greater."""
    attempt_number: int
    """From 1. For a task of a session one more for each worker that may have begun it before."""
    attempt_id: str
    """Of the attempt; for a task of a session, of the worker that runs it."""
    job_id: str | None
    """None for a task of a session, which is no job."""
    lease_id: str | None
    """For a task of a session, the lease of its worker; None for a job."""


def current_task() -> CurrentTask:
    """The grant of the job or session task that this process runs, from its environment; a child process has the same.

    Raises OutsideTask in any other process, and in one that was started without its parent's environment.
    """
    text = os.environ.get(TOKEN, "")
    number = os.environ.get(ATTEMPT_NUMBER, "")
    if not is_fencing_token(text) or not (number.isascii() and number.isdigit()):
        raise OutsideTask(
            "this process runs no task of a cluster",
            found=f"no fencing token in {TOKEN}" if not is_fencing_token(text) else f"no number in {ATTEMPT_NUMBER}",
            hint="call it inside a job or a task, whose children need its environment to know; a lock gives a token"
            " to any process: with client.lock(name) as lock: lock.token",
        )
    return CurrentTask(
        token=FencingToken.parse(text),
        attempt_number=int(number),
        attempt_id=os.environ.get(ATTEMPT_ID, ""),
        job_id=os.environ.get(JOB_ID) or None,
        lease_id=os.environ.get(LEASE_ID) or None,
    )
