"""``python peer_pykka.py WORK`` in Pykka's environment: its actors are threads of one process; prints one line of JSON.

WORK is ``actor_work.Work`` as JSON. Nothing is copied between actors here, so large messages say nothing and
are left out.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from importlib.metadata import version
from typing import Any

import pykka


class Echo(pykka.ThreadingActor):  # type: ignore[misc]
    """Answers numbers, acknowledges every 20th cast."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    def on_receive(self, message: Any) -> Any:
        what, value = message
        if what == "cast":
            self.taken += 1
            if self.taken % 20 == 0:
                value.tell(("ack", 20))
            return None
        return value


class Caller(pykka.ThreadingActor):  # type: ignore[misc]
    """Calls from its own thread, as an actor does."""

    def __init__(self, echo: Any, finished: threading.Event) -> None:
        super().__init__()
        self.echo = echo
        self.sent = self.answered = self.total = 0
        self.finished = finished

    def on_receive(self, message: Any) -> Any:
        what, value = message
        if what == "ack":
            self.answered += value
            self._fill()
            return None
        if what == "trips":
            return [self._trip(n) for n in range(value)]
        if what == "calls":
            return self._pipelined(value)
        self.sent, self.answered, self.total = 0, 0, value
        self._fill()
        return None

    def _trip(self, n: int) -> float:
        started = time.perf_counter()
        self.echo.ask(("echo", n))
        return time.perf_counter() - started

    def _pipelined(self, total: int) -> float:
        started = time.perf_counter()
        pending = deque(self.echo.ask(("echo", n), block=False) for n in range(64))
        for n in range(total - 64):
            pending.popleft().get()
            pending.append(self.echo.ask(("echo", n), block=False))
        for future in pending:
            future.get()
        return total / (time.perf_counter() - started)

    def _fill(self) -> None:
        while self.sent < self.total and self.sent - self.answered < 40:
            self.sent += 1
            self.echo.tell(("cast", self.actor_ref))
        if self.answered >= self.total:
            self.finished.set()


def main(work: dict[str, Any]) -> dict[str, Any]:
    finished = threading.Event()
    try:
        echo = Echo.start()
        caller = Caller.start(echo, finished)
        caller.ask(("trips", 100))
        result: dict[str, Any] = {"version": version("pykka")}
        result["trips"] = caller.ask(("trips", work["calls"]))
        result["calls"] = caller.ask(("calls", work["pipelined"]))
        started = time.perf_counter()
        caller.tell(("casts", work["casts"]))
        if not finished.wait(60):
            raise RuntimeError("the casts were not all acknowledged in 60 s")
        result["casts"] = work["casts"] / (time.perf_counter() - started)
        started = time.perf_counter()
        many = [Echo.start() for _ in range(work["actors"])]
        for n, actor in enumerate(many):
            actor.ask(("echo", n))
        result["start_s"] = time.perf_counter() - started
        return result
    finally:
        pykka.ActorRegistry.stop_all()


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
