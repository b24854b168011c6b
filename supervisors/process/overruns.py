"""Handlers that run too long: reported with their stack, and interrupted where that is wished.

 Nobody can take the CPU from a handler, so one that does not end holds up its whole shard. A thread looks at the shard
every so often. A handler that was at it for *report_after_s* is logged with its stack, counted, and told to
``on_overrun``. One that was at it for *interrupt_after_s* (``None``: never) gets ``HandlerInterrupted`` raised where it
is, which ends its process, and no other, with the reason ``hung``. Code in C that does not return (a lock, a sleep)
cannot be interrupted; of that ``on_stuck`` is told when it has not ended after as long again: who has the shard in a
process of the operating system kills that, as nobody else in it has a turn any more.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from actorgrid.hotpath.light import Pid

if TYPE_CHECKING:
    from .shard import Shard

LOOKS_PER_LIMIT = 4
STACK_CHARACTERS_MAX = 8_000

log = logging.getLogger("actorgrid.process")


class HandlerInterrupted(BaseException):
    """Raised in a handler that ran longer than it may."""

    def __str__(self) -> str:
        return "it ran longer than it may, and was interrupted"


@dataclass(frozen=True, slots=True)
class Overrun:
    """A handler that runs too long: whose, since when, and where it is."""

    pid: Pid
    kind: str
    """The name of its class."""
    seconds: float
    stack: str
    interrupted: bool


class OverrunWatch:
    """Watches the turns of one shard from a thread of its own, which exists once the shard has run for a while."""

    def __init__(self, shard: Shard, report_after_s: float, interrupt_after_s: float | None) -> None:
        self.shard = shard
        self.report_after_s = report_after_s
        self.interrupt_after_s = interrupt_after_s
        self.on_overrun: Callable[[Overrun], None] | None = None
        self.on_stuck: Callable[[Overrun], None] | None = None
        """Called once, in the thread that looks, for a handler that was interrupted in vain."""
        self.count = 0
        self.last: Overrun | None = None
        self._thread: threading.Thread | None = None
        self._thread_id = 0
        self._at = (0, 0)
        self._since = 0.0
        self._reported = self._interrupted = False
        self._looks_since = 0  # counted: nobody is stuck while the whole process was stopped
        self._running = False
        self._closed = threading.Event()

    def watch(self) -> None:
        """The shard gives turns in this thread from now on."""
        self._thread_id = threading.get_ident()
        self._running = True
        if self._thread is None:
            self._thread = threading.Thread(target=_look, args=(weakref.ref(self),), name="overruns", daemon=True)
            self._thread.start()

    def rest(self) -> None:
        """It gives none now."""
        self._running = False

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    @property
    def pause_s(self) -> float:
        """How long to wait between two looks."""
        return min(self.report_after_s, self.interrupt_after_s or self.report_after_s) / LOOKS_PER_LIMIT

    def wait_closed(self, seconds: float) -> bool:
        """Wait so long; ``True`` when the shard is closed."""
        return self._closed.wait(seconds)

    def look(self, now: float) -> None:
        """Look whether the handler that runs is the one that ran before, and for how long."""
        core = self.shard.core
        process = core.current if self._running else None
        found = (core.turn_number, process.reductions) if process is not None else (0, 0)
        if process is None or found != self._at:
            self._at, self._since, self._reported, self._interrupted = found, now, False, False
            self._looks_since = 0
            return
        took = now - self._since
        if took >= self.report_after_s and not self._reported:
            self._reported = True
            self._report(process.pid, type(process).__name__, took, False)
        if self.interrupt_after_s is not None and took >= self.interrupt_after_s and not self._interrupted:
            stack = self._stack()
            if core.interrupt(found[0], self._thread_id, HandlerInterrupted):
                self._interrupted = True
                self._report(process.pid, type(process).__name__, took, True, stack)
        elif self._interrupted and self.interrupt_after_s is not None:
            self._looks_since += 1
            if self._looks_since == math.ceil(self.interrupt_after_s / self.pause_s) and self.on_stuck is not None:
                self.on_stuck(Overrun(process.pid, type(process).__name__, took, self._stack(), True))

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread_id)
        return "".join(traceback.format_stack(frame))[-STACK_CHARACTERS_MAX:] if frame is not None else ""

    def _report(self, pid: Pid, kind: str, took: float, interrupted: bool, stack: str = "") -> None:
        stack = stack or self._stack()
        self.last = Overrun(pid, kind, took, stack, interrupted)
        self.count += 1
        what = "is interrupted" if interrupted else "goes on"
        log.warning("a handler of %s %s has run for %.2f s and %s:\n%s", kind, pid, took, what, stack)
        if self.on_overrun is not None:
            self.on_overrun(self.last)


def _look(watched: weakref.ref[OverrunWatch]) -> None:
    while (watch := watched()) is not None:
        pause_s = watch.pause_s
        if watch.wait_closed(pause_s):
            return
        watch.look(monotonic())
