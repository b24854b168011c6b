"""What the host's processes take: memory and CPU, read from the operating system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """What one process takes. ``pss_bytes`` splits shared pages among their holders; None where it may not be read."""

    pid: int
    rss_bytes: int
    pss_bytes: int | None
    cpu_s: float


def read_process(pid: int) -> ProcessReading | None:
    """Read one process, or None when it is gone. Takes about a millisecond."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            cpu = process.cpu_times()
            rss = process.memory_info().rss
    except psutil.Error:
        return None
    return ProcessReading(pid, rss, _read_pss(pid), cpu.user + cpu.system)


def _read_pss(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return None
    return None


def read_processes(pids: Mapping[str, int]) -> dict[str, ProcessReading]:
    """Read processes by name, without those that are gone. Blocks: call it from a thread pool."""
    found = {name: read_process(pid) for name, pid in pids.items()}
    return {name: reading for name, reading in found.items() if reading is not None}
