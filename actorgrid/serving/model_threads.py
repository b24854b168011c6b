"""The threads on which a served class computes. Models rarely bear two calls at once, so it is one unless said."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ThreadDeath:
    """What is given instead of a result where the call ended its thread (SystemExit and the like)."""

    why: str


@dataclass(frozen=True, slots=True)
class CallRaised:
    """What is given instead of a result where the call raised."""

    error: Exception


Ended = Callable[[Any], None]
"""Called in the loop with what a call gave, or one of the two above."""


class ModelThreads:
    """*count* threads that call functions for a loop, one at a time each. A thread that dies is replaced.

    Whoever hands out more than ``free`` calls queues them behind others; :meth:`when_free` says when there is room.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int = 1) -> None:
        self._loop = loop
        self._calls: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...], Ended] | None] = queue.SimpleQueue()
        self._wanted: dict[Callable[[], None], None] = {}
        self._began: dict[int, float] = {}
        self._running = 0
        self.count = count
        self.died = 0
        """Threads that ended within a call."""
        for _ in range(count):
            self._start()

    @property
    def free(self) -> int:
        """How many calls could begin at once."""
        return self.count - self._running

    @property
    def longest_s(self) -> float:
        """How long the call that began first has been running; 0 where none runs."""
        return self._loop.time() - min(self._began.values()) if self._began else 0.0

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], ended: Ended) -> None:
        """Have *function* called in a thread, and *ended* with what came of it in the loop."""
        self._running += 1
        number = id(ended)
        self._began[number] = self._loop.time()

        def told(result: Any) -> None:
            self._running -= 1
            del self._began[number]
            if isinstance(result, ThreadDeath):
                self.died += 1
                self._start()
            ended(result)
            waiting, self._wanted = list(self._wanted), {}
            for each in waiting:
                each()

        self._calls.put((function, arguments, told))

    def when_free(self, wanted: Callable[[], None]) -> None:
        """Call *wanted* in the loop when a call has ended. Who asks first is called first."""
        self._wanted[wanted] = None

    def close(self) -> None:
        """Let the threads end when they are done with what they have. Does not wait for them."""
        for _ in range(self.count):
            self._calls.put(None)

    def _start(self) -> None:
        threading.Thread(target=self._serve, name="actorgrid-model", daemon=True).start()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            function, arguments, ended = call
            try:
                result = function(*arguments)
            except Exception as error:  # noqa: BLE001  (user code: whatever it raises is its caller's to hear)
                result = CallRaised(error)
            except BaseException as error:  # noqa: BLE001  (what ends a thread ends only the call, never the replica)
                self._tell(ended, ThreadDeath(f"{type(error).__name__}: {error}"))
                return
            self._tell(ended, result)
            del call, function, arguments, ended, result  # nothing of a call is held while the next is waited for

    def _tell(self, ended: Ended, result: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(ended, result)
