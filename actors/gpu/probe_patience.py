"""How long a probe child may take to answer: what it waits for a processor is not its library's doing."""

from __future__ import annotations

from typing import NamedTuple

EXTRA_MAX = 5.0
"""How many times its time a child may wait for a processor beside: then it counts as hung, whatever keeps it."""
LOOK_AGAIN = 0.1
"""Part of its time after which one is looked at again that is ready to run and has no processor."""
_TOO_LITTLE_S = 0.02


class ProcessorTimes(NamedTuple):
    """What a process's first thread had of processors since it began, in s; all 0 where the kernel does not tell."""

    used_s: float = 0.0
    waited_s: float = 0.0
    """How long it was ready to run and had none; the wait that goes on now is counted when it ends."""
    is_ready: bool = False
    """Whether it runs or waits for a processor now: it does not sleep."""


class ProbePatience:
    """The time that is left for one answer. No clock: it is asked whenever the time that it gave is over.

    A call that hangs sleeps, or computes; a child that is slow because others have all processors waits, and that time
    is given to it once more.
    """

    def __init__(self, timeout_s: float, begin: ProcessorTimes) -> None:
        self.given_s = 0.0
        """What was given beyond the time itself."""
        self._timeout_s, self._begin = timeout_s, begin

    def more(self, now: ProcessorTimes) -> float:
        """How much longer to wait; 0: it had its time."""
        most_s = EXTRA_MAX * self._timeout_s
        owed_s = min(now.waited_s - self._begin.waited_s, most_s) - self.given_s
        if owed_s < _TOO_LITTLE_S:
            if not now.is_ready or now.used_s - self._begin.used_s >= self._timeout_s:
                return 0.0
            owed_s = min(LOOK_AGAIN * self._timeout_s, most_s - self.given_s)
        if owed_s <= 0:
            return 0.0
        self.given_s += owed_s
        return owed_s


def processor_times(pid: int) -> ProcessorTimes:
    """Those of a process."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            used, waited, _slices = file.read().split()
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
        return ProcessorTimes(int(used) / 1e9, int(waited) / 1e9, state == b"R")
    except (OSError, ValueError, IndexError):
        return ProcessorTimes()
