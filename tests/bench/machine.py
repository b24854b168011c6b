"""The machine a figure comes from."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil


def describe() -> dict[str, Any]:
    """Processor, cores, memory, kernel, Python, load, and the commit."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "load": os.getloadavg()[0],
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def agent_processes(pid: int) -> Iterator[tuple[str, psutil.Process]]:
    """The processes of an agent by the names of their servers, without workers and what starts them."""
    front = psutil.Process(pid)
    for process in [front, *front.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            name = " ".join(process.cmdline()).removeprefix("actorgrid: ").strip()
            if name == "worker_manager" or not any(word in name for word in ("worker", "shim", "zygote", "guard")):
                yield name, process


def pss_mb(pid: int) -> tuple[float, dict[str, float]]:
    """Proportional set size of a process and all below it, workers and shims left out; in all and by title."""
    parts: dict[str, float] = {}
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        try:
            title = " ".join(process.cmdline())[:60]
            if any(word in title for word in ("worker", "shim", "zygote")) and "worker_manager" not in title:
                continue
            parts[f"{title} ({process.pid})"] = process.memory_full_info().pss / 1e6
        except psutil.NoSuchProcess:
            continue
    return sum(parts.values()), parts
