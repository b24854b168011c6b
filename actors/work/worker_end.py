"""How a session's worker ended, for the client whose task died with it. Read from the folder that its shim left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypedDict

import msgpack

from actorgrid.actors.files.untrusted_files import open_to_write, read_whole
from actorgrid.endings import STDERR_READ_BYTES, end_of
from actorgrid.errors import NotARegularFile

from .attempt_dir import AttemptDir, is_id
from .work_records import WorkerLease, lease_of

STDERR_TAIL_BYTES = 8192
LEASE_BYTES_MAX = 2**20


class WorkerEnding(TypedDict):
    """How a worker ended: ``ended`` is false while it runs, and when nothing is known of it any more."""

    ended: bool
    reason: str
    """Of the shim's status: exited, memory, isolated, ...; ``shim`` when the shim was killed, too; else empty."""
    exit_code: int | None
    signal: int | None
    oom_kills: int
    """Of one that SIGKILL ended: how many processes of its host the kernel killed for want of memory meanwhile."""
    stderr: str
    """The last of what it wrote to descriptor 2 under that lease, at most 8,192 characters.

    Of a crash of Python, what it says of the thread that crashed.
    """


UNKNOWN: WorkerEnding = {"ended": False, "reason": "", "exit_code": None, "signal": None, "oom_kills": 0, "stderr": ""}


def ending_of(workers_dir: Path, worker_id: str, lease_id: str) -> WorkerEnding:
    """The ending of a worker that served *lease_id* last; empty for any other.

    Its standard error is that of all the sessions it has served: what was there before the lease is left out.
    """
    if not is_id(worker_id):
        return UNKNOWN
    directory = AttemptDir(workers_dir, worker_id)
    lease = read_lease(directory.path)
    if lease is None or lease.get("lease_id") != lease_id:
        return UNKNOWN
    status = directory.read_status()
    if status is None and directory.shim_pid() is not None:
        return UNKNOWN
    status = status or {"reason": "shim"}
    size = directory.output_size("stderr")
    start = max(lease.get("stderr_from", 0), size - STDERR_READ_BYTES)
    try:
        said = directory.read_output("stderr", start, STDERR_READ_BYTES)
    except NotARegularFile:
        said = b""
    return {
        "ended": True,
        "reason": str(status.get("reason", "")),
        "exit_code": status.get("exit_code"),
        "signal": status.get("signal"),
        "oom_kills": int(status.get("oom_kills") or 0),
        "stderr": end_of(said.decode("utf-8", "replace"), STDERR_TAIL_BYTES),
    }


def write_lease(folder: Path, lease: WorkerLease) -> bool:
    """Write down whom a worker serves, for the agent's restart (not for the machine's: no fsync).

    ``False`` on a full disk, or when the worker is gone.
    """
    try:
        with os.fdopen(open_to_write(folder, "lease.tmp", os.O_TRUNC), "wb") as file:
            file.write(msgpack.packb(lease))
        (folder / "lease.tmp").rename(folder / "lease.msgpack")
    except (OSError, NotARegularFile):
        return False
    return True


def has_lease(folder: Path) -> bool:
    """Whether a worker serves, or has served, a lease: whether or not that can be read."""
    return os.path.lexists(folder / "lease.msgpack")


def read_lease(folder: Path) -> WorkerLease | None:
    """The lease that a worker serves, or served last."""
    try:
        data = read_whole(folder, "lease.msgpack", LEASE_BYTES_MAX)
        return None if data is None else lease_of(msgpack.unpackb(data))
    except (OSError, ValueError, msgpack.UnpackException, NotARegularFile):
        return None
