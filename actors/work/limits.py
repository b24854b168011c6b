"""Limits on what an attempt may take of its host."""

from __future__ import annotations

import os
import resource
from functools import cache
from pathlib import Path

PIDS_MAX, PIDS_LEAST = 32_768, 4096
OOM_SCORE_MORE = 500
"""How much sooner than its agent, in thousandths of the machine's memory, work is killed where memory runs out."""


def limit_process() -> None:
    """Limits set in the child before any of the user's code: no core files in the user's folders, and where the
    machine's memory runs out the kernel ends work, whatever its size, before the agent and the shims that look after
    all of it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit_pids(pids_max())
    try:
        with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
            score = min(1000, int(file.read()) + OOM_SCORE_MORE)
            file.seek(0)
            file.write(str(score))
    except OSError:
        return  # it may always be raised; where there is no such file, it counts as before


@cache
def pids_max() -> int:
    """How many processes and threads an attempt may have, by its cgroup; else its uid on this host, where the kernel
    counts them: PIDS_MAX, and no more than a quarter of what the machine has numbers for."""
    try:
        with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
            return max(PIDS_LEAST, min(PIDS_MAX, int(file.read()) // 4))
    except (OSError, ValueError):
        return PIDS_LEAST


def own_shared_memory_bytes(pid: int) -> int:
    """What lies in the ``/dev/shm`` of a process, where that is another one than ours; else 0. It is memory that no
    process needs to have mapped."""
    place = f"/proc/{pid}/root/dev/shm"
    try:
        if os.stat(place).st_dev == os.stat("/dev/shm").st_dev:  # nosec B108 - where it is on Linux
            return 0
        found = os.statvfs(place)
    except OSError:  # it is gone
        return 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def limit_pids(most: int) -> None:
    """Let this process fork only while its uid has fewer processes and threads. Root is not counted, nor held to it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def writable_cgroup(proc: Path = Path("/proc/self"), controller: str = "memory") -> Path | None:
    """The cgroup v2 folder under which we may make groups with a limit by that controller, or None.

    That is the parent of our own group (or our own, when it is the root), if it hands the controller
    down and we may write there: what a service manager's delegation or root gives.
    """
    mine = own_group("cgroup2", proc=proc)
    if mine is None:
        return None
    folder = mine if mine in map(Path, mount_points("cgroup2", proc=proc)) else mine.parent
    try:
        controllers = (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return None
    return folder if controller in controllers and os.access(folder, os.W_OK) else None


def mount_points(kind: str, option: str = "", proc: Path = Path("/proc/self")) -> list[str]:
    """The mount points of file systems of that kind, with that option."""
    try:
        lines = [line.split() for line in (proc / "mounts").read_text().splitlines()]
    except OSError:
        return []
    return [
        fields[1]
        for fields in lines
        if len(fields) > 3 and fields[2] == kind and (not option or option in fields[3].split(","))
    ]


def own_group(kind: str, controller: str = "", proc: Path = Path("/proc/self")) -> Path | None:
    """The folder of our own cgroup: of v2 (``cgroup2``), or of a controller of v1 (``cgroup``); None without."""
    points = mount_points(kind, controller, proc)
    try:
        lines = [line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines()]
    except OSError:
        return None
    own = [fields[2] for fields in lines if len(fields) == 3 and controller in fields[1].split(",")]
    return Path(points[0] + own[0].rstrip("/")) if points and own else None
