"""Work that would hold a server up for a second, in a thread of its own: its value is awaited in the server's."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar, cast

from .runtime import Runtime, Waiter

T = TypeVar("T")


class Background:
    """One thread, from the first work on; what is given to it waits in line."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self._name = name
        self._runtime = runtime
        self._asked: SimpleQueue[tuple[Callable[[], object], Waiter]] = SimpleQueue()
        self._done: deque[tuple[Waiter, object, BaseException | None]] = deque()
        self._wake = -1

    async def run(self, work: Callable[[], T]) -> T:
        """The value of *work*. Raises what it raised."""
        if self._runtime.in_place:
            return work()
        if self._wake < 0:
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._runtime.watch(self._wake, self._tell)
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        waiter = Waiter()
        self._asked.put((work, waiter))
        return cast("T", await waiter)

    def _work(self) -> None:
        while True:
            work, waiter = self._asked.get()
            try:
                self._done.append((waiter, work(), None))
            except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
                self._done.append((waiter, None, error))
            os.eventfd_write(self._wake, 1)

    def _tell(self) -> None:
        os.eventfd_read(self._wake)
        while self._done:
            waiter, value, error = self._done.popleft()
            if error is None:
                waiter.set(value)
            else:
                waiter.fail(error)
