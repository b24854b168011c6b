"""What this host has of CPU and memory for work: what the system, and its control group, let us use."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

_UNLIMITED_BYTES = 2**60


def host_cpu_milli(root: str = "/") -> int:
    """Thousandths of CPUs: those we may run on, or less where a control group's quota says so."""
    cpus = len(os.sched_getaffinity(0)) * 1000
    quota = _quota_milli(Path(root, "sys/fs/cgroup"))
    return cpus if quota is None else max(1, min(cpus, quota))


def host_memory_mib(root: str = "/") -> int:
    """MiB of memory: the machine's, or less where a control group's limit says so."""
    total = int(psutil.virtual_memory().total)
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = _number(Path(root, "sys/fs/cgroup", name))
        if limit is not None and limit < _UNLIMITED_BYTES:
            total = min(total, limit)
    return total // 2**20


def _quota_milli(cgroup: Path) -> int | None:
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) * 1000 // int(period)
    except (OSError, ValueError):
        pass
    quota_us, period_us = _number(cgroup / "cpu/cpu.cfs_quota_us"), _number(cgroup / "cpu/cpu.cfs_period_us")
    return quota_us * 1000 // period_us if quota_us and period_us and quota_us > 0 else None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
