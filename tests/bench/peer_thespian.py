"""``python peer_thespian.py WORK``: plain Thespian actors over its own TCP base; prints one line of JSON.

WORK is ``actor_work.Work`` as JSON. The admin takes a free port, and is shut down with everything it made.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections import deque
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

from thespian.actors import Actor, ActorExitRequest, ActorSystem, ChildActorExited, WakeupMessage
from thespian.system.transport.IPBase import IPActorAddress

ASK_S = 120


def only_loopback(self: Any) -> tuple[Any, ...]:
    """Where to listen. Thespian's own answer is every address, to strangers whose pickles it then loads."""
    return (("127.0.0.1", self.bindname[1]),)


class Echo(Actor):  # type: ignore[misc]
    """Answers numbers, counts casts and acknowledges them, tells the length of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    def receiveMessage(self, message: Any, sender: Any) -> None:
        if not isinstance(message, tuple):
            return
        what, value = message
        if what == "echo":
            self.send(sender, ("echo", value if value else os.getpid()))
        elif what == "size":
            self.send(sender, ("size", len(value)))
        elif what == "cast":
            self.taken += 1
            if self.taken % 20 == 0:
                self.send(sender, ("ack", 20))


class Caller(Actor):  # type: ignore[misc]
    """One measurement at a time: asked from outside, answered to the asker."""

    def __init__(self) -> None:
        super().__init__()
        self.asker: Any = None
        self.peer: Any = None
        self.kind = ""
        self.left = self.sent = self.answered = self.total = 0
        self.started = self.sent_at = 0.0
        self.samples: list[float] = []
        self.payload = b""

    def receiveMessage(self, message: Any, sender: Any) -> None:
        if isinstance(message, WakeupMessage):
            self._timer_came()
        elif isinstance(message, tuple) and message[0] == "measure":
            _, self.kind, self.peer, self.total, size = message
            self.asker, self.samples, self.sent, self.answered = sender, [], 0, 0
            self.payload = bytes(size)
            self.started = time.perf_counter()
            self._begin()
        elif isinstance(message, tuple):
            self._answered(message[1])

    def _begin(self) -> None:
        if self.kind in ("trips", "sizes"):
            self._one_trip()
        elif self.kind == "calls":
            for _ in range(64):
                self._send(("echo", 1))
        elif self.kind == "casts":
            self._fill()
        elif self.kind == "timers":
            self._set_timer()

    def _send(self, message: Any) -> None:
        self.sent += 1
        self.send(self.peer, message)

    def _one_trip(self) -> None:
        self.sent_at = time.perf_counter()
        self._send(("size", self.payload) if self.kind == "sizes" else ("echo", self.sent + 1))

    def _fill(self) -> None:
        while self.sent < self.total and self.sent - self.answered < 40:
            self._send(("cast", self.payload))

    def _answered(self, value: Any) -> None:
        if self.kind == "casts":
            self.answered += value
            self._fill()
        else:
            self.answered += 1
            if self.kind == "calls":
                if self.sent < self.total:
                    self._send(("echo", 1))
            else:
                self.samples.append(time.perf_counter() - self.sent_at)
                if self.answered < self.total:
                    self._one_trip()
        if self.answered >= self.total:
            self._done()

    def _set_timer(self) -> None:
        self.sent_at = time.perf_counter()
        self.wakeupAfter(timedelta(seconds=0.01))

    def _timer_came(self) -> None:
        self.samples.append(time.perf_counter() - self.sent_at - 0.01)
        if len(self.samples) < self.total:
            self._set_timer()
        else:
            self._done()

    def _done(self) -> None:
        self.send(self.asker, (self.samples, self.total / (time.perf_counter() - self.started)))


class Parent(Actor):  # type: ignore[misc]
    """Starts many; kills one again and again, hears of it, and makes the next."""

    def __init__(self) -> None:
        super().__init__()
        self.asker: Any = None
        self.total = 0
        self.started = self.killed_at = 0.0
        self.pids: list[int] = []
        self.children: list[Any] = []
        self.many = False
        self.downs: list[float] = []
        self.restarts: list[float] = []
        self.dead: deque[str] = deque(maxlen=1000)

    def receiveMessage(self, message: Any, sender: Any) -> None:
        if isinstance(message, ChildActorExited):
            self._exited(str(message.childAddress))
        elif isinstance(message, tuple) and message[0] in ("many", "deaths"):
            self.asker, self.total, self.many = sender, message[1], message[0] == "many"
            self.started = time.perf_counter()
            for _ in range(self.total if self.many else 1):
                self._make()
        elif isinstance(message, tuple) and message[0] == "echo":
            self._up(message[1], sender)

    def _make(self) -> None:
        child = self.createActor(Echo)
        self.children.append(child)
        self.send(child, ("echo", 0))

    def _up(self, pid: int, child: Any) -> None:
        if self.many:
            self.pids.append(pid)
            if len(self.pids) == self.total:
                self.send(self.asker, (time.perf_counter() - self.started, self.pids))
            return
        if self.killed_at:
            self.restarts.append(time.perf_counter() - self.killed_at)
        if len(self.downs) < self.total:
            self.killed_at = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
        else:
            self.send(self.asker, (self.downs, self.restarts))

    def _exited(self, child: str) -> None:
        if not self.many and child not in self.dead:  # Thespian may tell it twice
            self.dead.append(child)
            self.downs.append(time.perf_counter() - self.killed_at)
            self._make()


def pss_mb(pids: list[int]) -> float:
    """The mean of their proportional set sizes."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total / len(pids) / 1e6


def main(work: dict[str, Any]) -> dict[str, Any]:
    os.environ["THESPIAN_BASE_IPADDR"] = "127.0.0.1"
    IPActorAddress.bindArgs = property(only_loopback)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    system = ActorSystem("multiprocTCPBase", {"Admin Port": port}, logDefs={"version": 1})

    def measure(kind: str, total: int, size: int = 0) -> Any:
        found = system.ask(caller, ("measure", kind, echo, total, size), ASK_S)
        if found is None:
            raise RuntimeError(f"Thespian gave no answer to {kind} within {ASK_S} s")
        return found

    try:
        echo, caller, parent = (system.createActor(kind) for kind in (Echo, Caller, Parent))
        measure("trips", 100)
        result: dict[str, Any] = {"version": version("thespian")}
        result["trips"] = measure("trips", work["calls"])[0]
        result["calls"] = measure("calls", work["pipelined"] // work["slow"])[1]
        result["casts"] = measure("casts", work["casts"] // work["slow"])[1]
        result["mb1"] = measure("casts", work["mb1"], 1_000_000)[1]
        result["mb64"] = measure("sizes", work["mb64"], 64_000_000)[1]
        result["timers"] = measure("timers", work["timers"])[0]
        result["noticed"], result["restart"] = system.ask(parent, ("deaths", work["deaths"]), ASK_S)
        system.tell(parent, ActorExitRequest())
        parent = system.createActor(Parent)
        result["start_s"], pids = system.ask(parent, ("many", work["actors"]), ASK_S)
        result["pss_mb"] = pss_mb(pids)
        return result
    finally:
        system.shutdown()


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
