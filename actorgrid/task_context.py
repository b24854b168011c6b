"""What the process that asks was granted: by which attempt of which job, or lease of which session, it runs."""

from __future__ import annotations

import os
import time
from collections.abc import Container
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from actorgrid.errors import OutsideTask, TaskCancelled
from actorgrid.fencing import FencingToken, is_fencing_token

TOKEN = "ACTORGRID_TOKEN"
ATTEMPT_NUMBER = "ACTORGRID_ATTEMPT_NUMBER"
JOB_ID = "ACTORGRID_JOB_ID"
LEASE_ID = "ACTORGRID_LEASE_ID"
ATTEMPT_ID = "ACTORGRID_ATTEMPT"
CREDENTIAL_FILE = "ACTORGRID_CREDENTIAL_FILE"
CPU_MILLI = "ACTORGRID_CPU_MILLI"
LENT_CPU_MILLI = "ACTORGRID_LENT_CPU_MILLI"
CHECKPOINT_DIR = "ACTORGRID_CHECKPOINT_DIR"
"""The directory whose content follows the job."""
CHECKPOINT_FROM = "ACTORGRID_CHECKPOINT_FROM"
"""The number of the attempt that made the checkpoint which this one begins with; not set where there is none."""
SESSION_RETRIES = 3
"""How many workers a task of a session may lose, unless said."""


class RunningCall:
    """What a worker knows of the call that it runs: kept as it is there, and put into words when somebody asks."""

    __slots__ = ("function_name", "name", "parent", "retries_left", "started", "stopping", "sweep", "task", "timeout_s")

    def __init__(self, task: tuple[str, int], timeout_s: float | None, stopping: Container[int] = ()) -> None:
        self.task = task  # the session's id and the task's number in it; of a job, its id and 0
        self.timeout_s = timeout_s
        self.stopping = stopping  # the numbers of tasks whose values are not wanted any more
        self.started = time.time()
        self.function_name = ""
        self.name = ""
        self.retries_left: int | None = SESSION_RETRIES
        self.parent = ""
        self.sweep: dict[str, Any] | None = None  # the sweep that it is a trial of, as its graph has it

    @property
    def id(self) -> str:
        """The id of the task."""
        owner, number = self.task
        return f"{owner}.{number}" if number else owner


running: RunningCall | None = None
"""The call that this process runs now, if it is a worker: it runs one after another."""


def begins(call: RunningCall | None) -> None:
    """Note which call this process runs from now on."""
    global running
    running = call


def own_id() -> str:
    """The id of the task that this process runs, if it is a worker; else an empty text."""
    return "" if running is None else running.id


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
    id: str = ""
    """The same for all attempts: that of the job; for a task of a session, the session's with a number."""
    name: str = ""
    """The option ``name``, or what its function is called; empty in a command and in child processes."""
    retries_left: int | None = None
    """How many more workers a task of a session may lose; None for a job and in child processes."""
    deadline: datetime | None = None
    """When its ``timeout`` ends this attempt; None without one, in a command and in child processes."""
    checkpoint_dir: str | None = None
    """The directory whose content follows the job, where it asked for one (``--checkpoint``)."""
    restored_from: int | None = None
    """The number of the attempt that made the checkpoint which this one begins with; None: there is none."""
    parent: str | None = None
    """The id of the task that submitted it, for a task of a session that was submitted inside of work."""
    _call: RunningCall | None = field(default=None, repr=False, compare=False)

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked it to stop, with ``future.cancel(cooperative=True)``. Never for a job: it is ended."""
        call = self._call
        return call is not None and call.task[1] in call.stopping

    def raise_if_cancelled(self) -> None:
        """Raise TaskCancelled if somebody asked it to stop: what ``future.result()`` then raises as well."""
        if self.cancelled:
            raise TaskCancelled("the task was asked to stop, and did", asked=f"{self.id} {self.name}".strip())


def current_task() -> CurrentTask:
    """The grant of the job or session task that this process runs, from its environment; a child process has the same.

    What only the worker knows, a child process does not. Raises OutsideTask in any other process, and in one that was
    started without its parent's environment.
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
    job_id, call = os.environ.get(JOB_ID) or None, running
    restored = os.environ.get(CHECKPOINT_FROM, "")
    deadline = None
    if call is not None and call.timeout_s is not None:
        deadline = datetime.fromtimestamp(call.started + call.timeout_s, UTC)
    return CurrentTask(
        token=FencingToken.parse(text),
        attempt_number=int(number),
        attempt_id=os.environ.get(ATTEMPT_ID, ""),
        job_id=job_id,
        lease_id=os.environ.get(LEASE_ID) or None,
        id=call.id if call is not None else job_id or "",
        name=(call.name or call.function_name) if call is not None else "",
        retries_left=None if call is None else call.retries_left,
        deadline=deadline,
        checkpoint_dir=os.environ.get(CHECKPOINT_DIR) or None,
        restored_from=int(restored) if restored.isascii() and restored.isdigit() else None,
        parent=(call.parent or None) if call is not None else None,
        _call=call,
    )
