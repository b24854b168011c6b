"""Threads that copy files in a server's stead: what takes seconds may not hold up its other work."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from actorgrid.errors import ActorGridError
from actorgrid.supervisors.runtime import Runtime, Waiter

THREADS = 2
"""What waits for one of them is bounded by the attempts that a host runs (``work.max_attempts``)."""
R = TypeVar("R")


class FileThreads:
    """Of one server. The threads are there from the first piece of work on."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._asked: SimpleQueue[tuple[Callable[[], Any], Waiter]] = SimpleQueue()
        self._done: deque[tuple[Waiter, Any, Exception | None]] = deque()
        self._wake = -1

    async def run(self, work: Callable[[], R]) -> R:
        """What *work* gives, which runs beside the server. Raises what it raises: OSError, ActorGridError."""
        if self._runtime.in_place:
            return work()
        if self._wake < 0:
            self._begin()
        waiter = Waiter()
        self._asked.put((work, waiter))
        answer: R = await waiter
        return answer

    def _begin(self) -> None:
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._runtime.watch(self._wake, self._tell)
        for _ in range(THREADS):
            threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            work, waiter = self._asked.get()
            try:
                self._done.append((waiter, work(), None))
            except (OSError, ActorGridError) as error:
                self._done.append((waiter, None, error))
            os.eventfd_write(self._wake, 1)

    def _tell(self) -> None:
        os.eventfd_read(self._wake)
        while self._done:
            waiter, answer, error = self._done.popleft()
            if error is None:
                waiter.set(answer)
            else:
                waiter.fail(error)
