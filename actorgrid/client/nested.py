"""Work that submits work and waits for it: it holds its room meanwhile, so what it waits for may never get any.

Its CPUs are lent to the tasks of a session that it waits for (lending.py), its GPUs and its memory are not.

A task of a session that gets no worker within ``nested_wait_s`` fails with NoRoomForNestedTask. A job may rightly wait
in the queue for hours, so its waiting fails only when nothing but this very job or task holds what it waits for.
"""

from __future__ import annotations

import os

from actorgrid.errors import ActorGridError, NoRoomForNestedTask
from actorgrid.task_context import CREDENTIAL_FILE, JOB_ID, LEASE_ID

from .http import AdminHttp, segment

NESTED_WAIT_S = 60.0
LOOK_S = 15.0
"""How often somebody who waits for a job inside of work looks whether it can ever start."""
_HINT = (
    "ask for less in the task that submits (cpus=0.1 for one that only waits; GPUs and memory of what waits are not"
    " lent, nor its CPUs to a job), or submit from outside of work"
)


def inside_work() -> bool:
    """Whether this process belongs to a job or task of a cluster."""
    return bool(os.environ.get(CREDENTIAL_FILE))


def starved(asked: str, waited_s: float, found: str) -> NoRoomForNestedTask:
    """The error of a session task that got no worker in time."""
    return NoRoomForNestedTask(
        f"a task submitted from within work got no worker in {waited_s:.0f} s",
        asked=asked,
        found=found,
        hint=f"{_HINT}; nested_wait_s says how long to wait (connect(nested_wait_s=None): whenever)",
    )


def never_starts(http: AdminHttp, job_id: str) -> NoRoomForNestedTask | None:
    """The error when a job waits for room that only this process's own job or task holds; else ``None``."""
    if not inside_work():
        return None
    own = {os.environ.get(JOB_ID), os.environ.get(LEASE_ID)} - {None, ""}
    try:
        why = http.get(f"/api/jobs/{segment(job_id)}/why")
    except ActorGridError:
        return None  # whoever waits will see what is wrong
    holders = [one.get("job_id") or one.get("lease_id") for one in why.get("held_by", ())]
    if why["state"] != "queued" or not holders or not set(holders) <= own:
        return None
    return NoRoomForNestedTask(
        f"job {job_id} waits for room that the job or task which waits for it holds itself",
        asked=str(why.get("headline", ""))[:300],
        found=f"held by {', '.join(sorted(str(one) for one in set(holders)))} alone",
        hint=_HINT,
    )
