"""What the soak's work does: it holds its devices in a way the kernel accounts for, and writes down that it ran.

Every device is four slot files. Work locks as many as its share, with flock(2): the kernel frees a lock when the
last process of the tree that holds it is gone, and not before. Who finds too few free slots has met more work on its
device than fits, whatever the ledger says. A job's own lock shows two of its attempts alive at once the same way.

Standard library only: it runs as ``python -I -S hold.py FOLDER PLAN`` too.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

SLOT_MILLI = 250
SLOTS = 1000 // SLOT_MILLI
PASSES = 20  # a pass can lose a race for a slot; twenty in a row cannot


def note(folder: str, name: str, **fields: Any) -> None:
    """Append one line; the writes of several processes do not mix."""
    fd = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(fd, (json.dumps({"at": time.time(), **fields}) + "\n").encode())
    os.close(fd)


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    """What was noted so far."""
    path = folder / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _lock(path: str, who: str) -> int | None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    os.ftruncate(fd, 0)
    os.pwrite(fd, who.encode(), 0)
    return fd


def _holders(folder: str, device: str) -> list[str]:
    return [Path(folder, f"slot-{device}-{slot}").read_text() for slot in range(SLOTS)]


def take_devices(folder: str, devices: list[str], milli: int, who: str) -> list[int]:
    """Hold *milli* of each device for as long as this process and its children live."""
    held: list[int] = []
    for device in devices:
        mine: dict[int, int] = {}
        wanted = milli // SLOT_MILLI
        for _ in range(PASSES):
            for slot in range(SLOTS):
                if slot not in mine and len(mine) < wanted:
                    fd = _lock(os.path.join(folder, f"slot-{device}-{slot}"), who)
                    if fd is not None:
                        mine[slot] = fd
        if len(mine) < wanted:
            note(
                folder, "violations", what="overcommit", who=who, device=device, milli=milli,
                got=len(mine), holders=_holders(folder, device), mine=sorted(mine),
            )  # fmt: skip
        held += mine.values()
    return held


def granted() -> list[str]:
    """The devices this process was given."""
    return [name for name in os.environ.get("ACTORGRID_DEVICES", "").split(",") if name]


def work(folder: str, plan: dict[str, Any]) -> int:
    """One attempt of a job; gives its exit status."""
    job, attempt = os.environ["ACTORGRID_JOB_ID"], os.environ["ACTORGRID_ATTEMPT"]
    devices = granted()
    alive = _lock(os.path.join(folder, f"job-{job}"), attempt)
    if alive is None:
        other = Path(folder, f"job-{job}").read_text()
        note(folder, "violations", what="two attempts at once", who=attempt, other=other)
    held = take_devices(folder, devices, plan["milli"], attempt)
    if len(devices) != plan["gpu_count"]:
        note(folder, "violations", what="other devices than asked", who=attempt, devices=devices)
    note(folder, "journal", what="start", job=job, attempt=attempt, pid=os.getpid(), devices=devices)
    if plan.get("escapes") and os.fork() == 0:
        os.setsid()  # holds all its parent's locks
        time.sleep(60)
        os._exit(0)
    time.sleep(plan["lasts_s"])
    earlier = sum(1 for line in lines(Path(folder), "journal") if line["what"] == "failed" and line["job"] == job)
    if earlier < plan["fails"]:
        note(folder, "journal", what="failed", job=job, attempt=attempt)
        return 3
    note(folder, "journal", what="done", job=job, attempt=attempt)
    for fd in held:
        os.fstat(fd)
    return 0


_worker: dict[str, Any] = {}


def task(folder: str, gpu_count: int, milli: int, lasts_s: float, value: int) -> int:
    """One session task. A worker holds its devices from its first task to its own end."""
    devices = granted()
    who = f"{os.environ.get('ACTORGRID_ATTEMPT')} pid {os.getpid()}"
    if not _worker:
        _worker.update(devices=devices, held=take_devices(folder, devices, milli, who))
        note(folder, "journal", what="worker", who=who, devices=devices)
    if devices != _worker["devices"] or len(devices) != gpu_count:
        note(
            folder, "violations", what="a worker's devices changed", who=who, devices=devices, first=_worker["devices"]
        )
    time.sleep(lasts_s)
    return value


if __name__ == "__main__":
    sys.exit(work(sys.argv[1], json.loads(sys.argv[2])))
