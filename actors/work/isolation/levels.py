"""Who enforces what on this host at each level at which it can keep work apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from actorgrid.actors.ledger.isolation_records import KeptApartRecord, Level, Setting
from actorgrid.isolation_words import ASPECTS, COOPERATIVE, KERNEL, NONE

STATED = tuple(name for name in ASPECTS if name != "gpu_memory")
"""What a level says of: memory of GPUs is said by the device (``gpu/enforcement.py``)."""

DISK_WATCH = "disk_watch"
"""Beside what was tried: whether the host's settings have it end work for what it holds of the disk."""
CPU_AT_BASIC = "cpu_at_basic"
"""The same: whether they hold work at ``basic`` to its processors, too."""


def enforced_at(level: Level, means: Mapping[str, bool]) -> dict[str, str]:
    """Who enforces each of STATED for work at *level*, on a host that has *means* (probes.MEANS, as they were tried,
    DISK_WATCH and CPU_AT_BASIC).

    Never more than is true of the weakest work at that level, nor of work that asks for none of it.
    """
    # Of root's work by another uid, of others' by Landlock.
    apart = level == "full" and (means.get("uid", False) or means.get("signals", False))
    hidden = level != "off" and means.get("mounts", False)
    shut = level == "full" and means.get("landlock", False) and not means.get("uid", False)
    counted = apart or not means.get("uid", False)  # root's own processes are not
    # A container's client is in the group, and what it starts may be elsewhere.
    holds_cpu = level == "full" or (level == "basic" and means.get(CPU_AT_BASIC, False))
    return {
        "files": KERNEL if apart and (hidden or shut) else COOPERATIVE if hidden else NONE,
        "processes": KERNEL if apart else NONE,
        "memory": KERNEL if means.get("cgroup_memory", False) else COOPERATIVE,
        "disk": COOPERATIVE if means.get(DISK_WATCH, False) else NONE,
        "cpu": KERNEL if means.get("cgroup_cpu", False) and holds_cpu else NONE,
        "pids": KERNEL if means.get("cgroup_pids", False) or (counted and means.get("pid_limit", False)) else NONE,
        "devices": KERNEL if means.get("cgroup_devices", False) else COOPERATIVE,
        "network": NONE,
    }


def kept_apart(
    setting: Setting, best: Level, means: Mapping[str, bool], containers: Iterable[str] = ()
) -> KeptApartRecord:
    """What the host says of itself: the levels that *setting* lets work have, of those up to *best*.

    *containers*: the runtimes by which it has containers at full.
    """
    allowed: tuple[Level, ...] = ("off",) if setting == "off" else ("off", "basic")
    if setting in ("auto", "full") and best == "full":
        allowed = (*allowed, "full")
    said: KeptApartRecord = {"setting": setting, "levels": {level: enforced_at(level, means) for level in allowed}}
    if "full" in allowed and (runtimes := list(containers)):
        said["containers"] = runtimes
    return said
