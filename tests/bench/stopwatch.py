"""What programs that are measured as a whole take: seconds by the clock and by the CPU, and memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class Stopwatch:
    """By the clock and by the CPU."""

    def __init__(self) -> None:
        self.began, self.cpu = time.perf_counter(), time.process_time()

    def note(self, found: dict[str, Any], name: str, figure: Callable[[float], float]) -> None:
        """Note what *figure* makes of the seconds since the start."""
        cpu, took = time.process_time() - self.cpu, time.perf_counter() - self.began
        found[name] = figure(took)
        found.setdefault("cpu", {})[name] = figure(cpu)


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * 4096
