"""Readings of this host's memory, pressure and clock from the kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import time

import psutil

from .checks import STEP_S, PressureReading

PRESSURE = Path("/proc/pressure")


def read_pressure(folder: Path = PRESSURE) -> PressureReading:
    """Memory and pressure now (https://docs.kernel.org/accounting/psi.html)."""
    return PressureReading(
        int(psutil.virtual_memory().available),
        _stalled(folder / "cpu", "some"),
        _stalled(folder / "memory", "full"),
        _stalled(folder / "io", "full"),
    )


def _stalled(path: Path, line: str) -> float | None:
    """``avg10`` of that line; ``None``: this kernel does not say."""
    try:
        for text in path.read_text(encoding="ascii").splitlines():
            word, *fields = text.split()
            if word == line:
                return float(dict(each.split("=", 1) for each in fields)["avg10"])
    except (OSError, ValueError, KeyError):
        return None
    return None


class ClockWatch:
    """Notices when the wall clock is set: it jumps against CLOCK_BOOTTIME, which nobody sets."""

    def __init__(self, boottime: Callable[[], float]) -> None:
        self._boottime = boottime
        self._apart: float | None = None
        self.stepped_s = 0.0
        self._stepped_at: float | None = None

    def look(self) -> None:
        """Compare the clocks. A clock that is slewed drifts by 0.05 % at most, which is no step."""
        before = self._boottime()
        apart = time() - (before + self._boottime()) / 2
        if self._apart is not None and abs(apart - self._apart) >= STEP_S:
            self.stepped_s, self._stepped_at = apart - self._apart, before
        self._apart = apart

    @property
    def stepped_ago_s(self) -> float | None:
        """Seconds since it was set; ``None``: it was not."""
        return None if self._stepped_at is None else self._boottime() - self._stepped_at
