"""Virtual time: what happens next, in one order that depends on nothing but the calls made."""

from __future__ import annotations

import heapq
from collections.abc import Callable

MS = 1_000
SECOND = 1_000_000


class SimulatedTimer:
    """An action that is going to happen, unless it is cancelled."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Cancel the action; harmless once it happened."""
        self.action = None


class Clock:
    """Virtual time in microseconds since the run's start.

    Actions due at one moment run in the order they were asked for.
    """

    def __init__(self) -> None:
        self.now_us = 0
        self._queue: list[tuple[int, int, SimulatedTimer]] = []
        self._asked = 0

    def after(self, delay_us: int, action: Callable[[], None]) -> SimulatedTimer:
        """Have *action* called *delay_us* from now."""
        assert delay_us >= 0, f"{delay_us} us is in the past"
        self._asked += 1
        timer = SimulatedTimer(action)
        heapq.heappush(self._queue, (self.now_us + delay_us, self._asked, timer))
        return timer

    def step(self) -> bool:
        """Move to the next action and run it; ``False`` when there is none."""
        while self._queue:
            when_us, _, timer = heapq.heappop(self._queue)
            if timer.action is None:
                continue
            self.now_us = when_us
            action, timer.action = timer.action, None
            action()
            return True
        return False
