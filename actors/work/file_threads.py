"""Threads that wait for files in a server's stead: what takes seconds may not hold up its other work."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from actorgrid.supervisors.runtime import Runtime, Waiter

A = TypeVar("A")
G = TypeVar("G")
T = TypeVar("T")


class FileThreads(Generic[A, G]):
    """*threads* of one server, there from the first piece of work on. What is asked is done by *act*: for up to
    *together* pieces at once it gives, for each, what came of it, or the exception for whoever asked.

    What waits for them is bounded by the attempts that a host runs (``work.max_attempts``).
    """

    def __init__(
        self, runtime: Runtime, act: Callable[[Sequence[A]], Sequence[G | Exception]], threads: int, together: int = 1
    ) -> None:
        self._runtime = runtime
        self._act = act
        self._threads = threads
        self._together = together
        self._asked: SimpleQueue[tuple[A, Waiter]] = SimpleQueue()
        self._done: deque[tuple[Waiter, G | Exception]] = deque()
        self._wake = -1

    async def run(self, work: A) -> G:
        """What *act* gives for *work*, beside the server. Raises the exception that it gave, or raised."""
        if self._runtime.in_place:
            (given,) = self._act([work])
            if isinstance(given, Exception):
                raise given
            return given
        if self._wake < 0:
            self._begin()
        waiter = Waiter()
        self._asked.put((work, waiter))
        answer: G = await waiter
        return answer

    def _begin(self) -> None:
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._runtime.watch(self._wake, self._tell)
        for _ in range(self._threads):
            threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            asked = [self._asked.get()]
            with suppress(Empty):
                while len(asked) < self._together:
                    asked.append(self._asked.get_nowait())
            given: Sequence[G | Exception]
            try:
                given = self._act([work for work, _ in asked])
            except Exception as error:  # noqa: BLE001 - the outermost loop of a thread: who asked is to hear of it
                given = [error] * len(asked)
            self._done.extend((waiter, each) for (_, waiter), each in zip(asked, given, strict=True))
            os.eventfd_write(self._wake, 1)

    def _tell(self) -> None:
        os.eventfd_read(self._wake)
        while self._done:
            waiter, given = self._done.popleft()
            if isinstance(given, Exception):
                waiter.fail(given)
            else:
                waiter.set(given)


def one_by_one(work: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """An *act* that calls what is asked, one at a time."""
    return [each() for each in work]
