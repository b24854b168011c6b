"""Deadlines of thousands of requests on one clock: looked at once in a tick, moved by writing a number. No I/O.

A timer of the event loop for each phase of each request would cost more than the phase. Here each has one place on the
wheel, however often its deadline is put off; where it comes up early, it is put where the deadline is by then.
"""

from __future__ import annotations

from typing import Protocol

TICK_S = 0.1
SLOTS = 600
"""A minute: what is due later comes round again."""


class Deadline(Protocol):
    """What is on the wheel."""

    due_at: float | None
    """When; ``None``: never (any more). It is taken off the wheel when it next comes up."""
    wheel_at: float | None
    """When it comes up; the wheel's own."""

    def ran_out(self, now: float) -> None:
        """The deadline has passed. It may have another from then on."""


class DeadlineWheel:
    """The wheel; whoever owns it turns it."""

    def __init__(self, now: float) -> None:
        self._slots: list[list[Deadline]] = [[] for _ in range(SLOTS)]
        self._tick = int(now / TICK_S)

    def put(self, item: Deadline, due_at: float) -> None:
        """Have *item* told when *due_at* has passed, up to a tick later."""
        item.due_at = due_at
        wheel_at = item.wheel_at
        if wheel_at is None or (due_at < wheel_at and int(due_at / TICK_S) + 1 < int(wheel_at / TICK_S)):
            self._place(item, due_at)

    def turn(self, now: float) -> None:
        """Tell those whose time is over by *now*."""
        last = int(now / TICK_S)
        for tick in range(max(self._tick + 1, last - SLOTS + 1), last + 1):
            self._tick = tick
            slot = self._slots[tick % SLOTS]
            if not slot:
                continue
            self._slots[tick % SLOTS] = []
            for item in slot:
                if item.wheel_at is None or int(item.wheel_at / TICK_S) % SLOTS != tick % SLOTS:
                    continue  # it was put elsewhere since
                item.wheel_at = None
                if item.due_at is None:
                    continue
                if item.due_at <= now:
                    item.due_at = None
                    item.ran_out(now)
                else:
                    self._place(item, item.due_at)
        self._tick = last

    def _place(self, item: Deadline, due_at: float) -> None:
        # Rounded up: it is not told before its time.
        tick = max(self._tick + 1, int(due_at / TICK_S) + 1)
        tick = min(tick, self._tick + SLOTS - 1)
        item.wheel_at = tick * TICK_S + TICK_S / 2
        self._slots[tick % SLOTS].append(item)
