"""The CPUs of a task that waits for what it submitted: one of the calls that it waits for runs on them meanwhile.

Decisions only: the dispatcher asks, with its lock held, and carries out. Without this, tasks that wait for tasks of
their own fill a host and wait for ever. One call at a time runs so, and only one that a thread is blocked on, so that
whoever waited goes on when the CPUs are free again. GPUs and memory are not lent: what waits keeps data in them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Container
from typing import TYPE_CHECKING, Any, NamedTuple

from actorgrid.task_context import CPU_MILLI, LENT_CPU_MILLI

from .dependencies import unstarted_input
from .lanes import Lane, LeasedWorker, TaskCall

if TYPE_CHECKING:
    from .futures import TaskFuture

LEND_AFTER_S = 0.1
"""How long a call waits for a worker of its own first, so that where there is room nothing is lent."""


class SendCall(NamedTuple):
    """Says to take the call out of its queue and send it."""

    link: LeasedWorker
    call: TaskCall


class AskForWorker(NamedTuple):
    """Says to ask for a worker on the CPUs that are lent."""

    lane: Lane


class Return(NamedTuple):
    """Says to give back the worker on the lent CPUs: it serves nothing that is waited for."""

    link: LeasedWorker


def own_cpus() -> float:
    """The CPUs granted to this process, from its environment; 0 outside of work, and where an earlier version runs."""
    texts = (os.environ.get(CPU_MILLI, ""), os.environ.get(LENT_CPU_MILLI, ""))
    return sum(int(text) for text in texts if text.isascii() and text.isdigit() and len(text) < 10) / 1000


class Lending:
    """Lends one process's CPUs: to at most one worker and one call at a time."""

    def __init__(self, cpus: float) -> None:
        self.cpus = cpus
        self.link: LeasedWorker | None = None
        self.asked = False
        self.quiet_until = 0.0  # nothing is asked for before
        self._since: float | None = None  # when a call was first seen that is waited for and has no worker
        # A lock of its own: waits of the standard library tell us with the locks of their futures held.
        self._lock = threading.Lock()
        self._awaited: dict[TaskFuture[Any], int] = {}

    def begins(self, future: TaskFuture[Any]) -> None:
        """Note that a thread begins to wait for *future*, maybe among others."""
        with self._lock:
            self._awaited[future] = self._awaited.get(future, 0) + 1

    def ends(self, future: TaskFuture[Any]) -> None:
        """Note that a thread has stopped waiting for *future*."""
        with self._lock:
            count = self._awaited.pop(future, 1) - 1
            if count > 0:
                self._awaited[future] = count

    def decide(self, now: float, judged: Container[TaskCall]) -> SendCall | AskForWorker | Return | None:
        """The next thing to do, if any. *judged*: calls that are not known yet to run again."""
        call = self._next(judged)
        if call is None:
            self._since = None
            return None
        if self._since is None:
            self._since = now
        link = self.link
        if link is not None:
            if link.calls:
                return None
            serves = link.lane is call.lane and link.may_take(call)
            return SendCall(link, call) if serves else Return(link)
        if self.asked or now < self.quiet_until or now - self._since < LEND_AFTER_S:
            return None
        return AskForWorker(call.lane)

    def _next(self, judged: Container[TaskCall]) -> TaskCall | None:
        with self._lock:
            futures = list(self._awaited)
            for future in futures:
                call: TaskCall = future.call
                if call.done or call.cancelled:
                    self._awaited.pop(future, None)
                elif call.link is None and future.is_awaited():
                    first = unstarted_input(call)
                    if first.link is None and not (first.missing or first.done or first.cancelled or first in judged):
                        return first
        return None
