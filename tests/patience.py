"""How long tests wait for what must come, and how often they look.

A wait has a limit so that what never comes is told. It is no measure of speed: on a machine that others use as well a
host may stand without a processor for most of a minute, and what comes then is not late. So the limit counts time in
which this machine had a processor to give, as the kernel tells (pressure stall information, Documentation/accounting/
psi.rst), and never less than a quarter of the time that goes by.
"""

from __future__ import annotations

import select
import time
from pathlib import Path

SHORT_PAUSE_S = 0.005
LONG_PAUSE_S = 0.1
PAUSE_SHARE = 0.05
"""Of the time waited so far: to look again that soon finds a thing that comes late hardly later, and leaves the
processors to what is waited for."""
LEAST_SHARE = 0.25
_PRESSURE = Path("/proc/pressure/cpu")


def stalled_s() -> float:
    """For how many seconds since the machine began some task has waited for a processor; 0 where no kernel tells."""
    try:
        first = _PRESSURE.read_text(encoding="ascii").partition("\n")[0]
    except OSError:
        return 0.0
    return int(first.rpartition("total=")[2]) / 1e6


class Patience:
    """One wait of at most *within_s* seconds in which the machine was there for us."""

    def __init__(self, within_s: float) -> None:
        self.within_s = within_s
        self._began = self._looked = time.monotonic()
        self._stalled_s = stalled_s()
        self._poll = select.poll()

    @property
    def is_over(self) -> bool:
        """Whether it has been waited long enough."""
        elapsed_s = time.monotonic() - self._began
        if elapsed_s <= self.within_s:
            return False
        return max(elapsed_s - (stalled_s() - self._stalled_s), elapsed_s * LEAST_SHARE) > self.within_s

    @property
    def pause_s(self) -> float:
        """How long to leave it alone before the next look: the longer, the longer it has taken already.

        At least as long as the last look took, so that looking takes half of the time at most.
        """
        now = time.monotonic()
        looked_s, self._looked = now - self._looked, now
        return max(SHORT_PAUSE_S, min(LONG_PAUSE_S, max(PAUSE_SHARE * (now - self._began), looked_s)))

    def pause(self) -> None:
        """Leave it alone for that long."""
        self._poll.poll(self.pause_s * 1e3)
        self._looked = time.monotonic()
