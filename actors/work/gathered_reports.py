"""Reports that wait for a moment to be told together.

While calls end one after the other on places that pass from one to the next, nothing waits for their reports but the
ledger: those of GATHER_S become entries of one write to its log, and one message to each server that follows it.
"""

from __future__ import annotations

from actorgrid.supervisors.runtime import Runtime, Waiter

GATHER_S = 0.02


class GatheredReports:
    """Of one host. As many wait as attempts have ended within GATHER_S."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiting: list[Waiter] = []

    async def together(self) -> None:
        """Return when those that came within GATHER_S are to be told."""
        waiter = Waiter()
        self._waiting.append(waiter)
        if len(self._waiting) == 1:
            self._runtime.after(GATHER_S, self._tell)
        await waiter

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.set(None)
