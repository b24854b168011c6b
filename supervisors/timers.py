"""Callbacks by due time, over an alarm that can only be set, never cleared."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from time import monotonic

_COMPACT_FROM = 256


class ActorTimer:
    """A pending callback."""

    __slots__ = ("callback", "timers")

    def __init__(self, timers: Timers, callback: Callable[[], None]) -> None:
        self.timers = timers
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Cancel the callback: it is never called."""
        if self.callback is not None:
            self.callback = None
            self.timers.cancelled += 1


class Timers:
    """The callbacks that wait for their time.

    Cancelled ones (each answered call leaves one) go once they are the greater part.
    """

    def __init__(self, set_alarm: Callable[[float], None]) -> None:
        self._set_alarm = set_alarm
        self._heap: list[tuple[float, int, ActorTimer]] = []
        self._alarms: list[float] = []  # what set_alarm was asked for and has not come yet
        self._count = itertools.count()
        self.cancelled = 0

    def after(self, delay_s: float, callback: Callable[[], None]) -> ActorTimer:
        """Call back once, no earlier than *delay_s* from now."""
        timer = ActorTimer(self, callback)
        heapq.heappush(self._heap, (monotonic() + max(0.0, delay_s), next(self._count), timer))
        if self.cancelled > _COMPACT_FROM and self.cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self.cancelled = 0
        self._arm()
        return timer

    def run_due(self, go_on: Callable[[], bool]) -> None:
        """Call what is due, as long as *go_on*, asked before each, says so.

        For the owner of the alarm, when it comes.
        """
        # Read once: what a callback sets for at once is due at the next alarm, or this might never end.
        now = monotonic()
        while self._alarms and self._alarms[0] <= now:
            heapq.heappop(self._alarms)
        while self._heap and go_on():
            due, _, timer = self._heap[0]
            if timer.callback is None:
                heapq.heappop(self._heap)
                self.cancelled -= 1
                continue
            if due > now:
                break
            heapq.heappop(self._heap)
            # Taken before it is called: a cancel from within would count it among those that lie here cancelled.
            callback, timer.callback = timer.callback, None
            callback()
        self._arm()

    def _arm(self) -> None:
        if self._heap and (not self._alarms or self._heap[0][0] < self._alarms[0]):
            due = self._heap[0][0]
            heapq.heappush(self._alarms, due)
            self._set_alarm(max(0.0, due - monotonic()))
