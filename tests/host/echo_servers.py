"""Small servers for hosts in tests: they do what they are told, in real processes."""

from __future__ import annotations

import ctypes
import os
import pickle
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from actorgrid.errors import ActorGridError, LogCorrupted, WrongState
from actorgrid.supervisors.server import Server, handles


@dataclass(frozen=True)
class Ask:
    what: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Numbered:
    n: int
    data: bytes = b""


@dataclass
class Seen:
    numbers: list[int] = field(default_factory=list)
    size: int = 0


class Echo(Server):
    """Answers ``Ask``; writes what happens to it into the data directory."""

    name: ClassVar[str] = "echo"

    def start(self) -> Any:
        self.seen = Seen()
        self.restarted: list[str] = []
        self.fired: list[float] = []
        self._note("start")

    def stop(self, reason: str) -> None:
        self._note(f"stop {reason}")

    def _note(self, what: str) -> None:
        with open(Path(self.host.paths.data_dir) / "notes", "a", encoding="utf-8") as file:
            file.write(f"{self.name} {what}\n")

    def peer_restarted(self, name: str) -> None:
        self.restarted.append(name)

    def status(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "url": "http://127.0.0.1:1"}

    @handles(Numbered)
    def _numbered(self, message: Numbered) -> int:
        self.seen.numbers.append(message.n)
        self.seen.size += len(message.data)
        return len(message.data)

    @handles(Ask)
    async def _ask(self, ask: Ask) -> Any:
        return await getattr(self, f"do_{ask.what}")(*ask.args)

    async def do_pid(self) -> int:
        return os.getpid()

    async def do_forward(self, to: str, message: Any, timeout_s: float = 60.0) -> Any:
        return await self.call(to, message, timeout_s)

    async def do_restarted(self) -> list[str]:
        return self.restarted

    async def do_seen(self) -> Seen:
        return self.seen

    async def do_clear(self) -> None:
        self.seen = Seen()

    async def do_flood(self, to: str, count: int) -> int:
        return sum(self.cast(to, Numbered(n)) for n in range(count))

    async def do_big(self, to: str, size: int) -> int:
        return await self.call(to, Numbered(0, b"x" * size), 30.0)

    async def do_refuse(self) -> None:
        raise WrongState("no", hint="ask for something else")

    async def do_crash(self) -> None:
        raise AssertionError("an invariant broke")

    async def do_segfault(self) -> None:
        ctypes.string_at(0)

    async def do_exit(self, status: int) -> None:
        os._exit(status)

    async def do_never(self) -> None:
        await self.sleep(3600)

    async def do_timer(self, delay_s: float) -> float:
        begun = time.monotonic()
        await self.sleep(delay_s)
        return time.monotonic() - begun - delay_s

    async def do_watch(self) -> list[str]:
        """Write readiness, then read readiness, then none."""
        left, right = socket.socketpair()
        log: list[str] = []
        try:
            left.setblocking(False)
            self.runtime.watch(left.fileno(), lambda: log.append("readable"), lambda: log.append("writable"))
            while not log:
                await self.sleep(0.001)
            self.runtime.watch(left.fileno(), lambda: log.append(left.recv(10).decode()))
            right.send(b"hello")
            while log[-1] == "writable":
                await self.sleep(0.001)
            self.runtime.unwatch(left.fileno())
            right.send(b"unseen")
            await self.sleep(0.02)
        finally:
            left.close()
            right.close()
        return log

    async def do_latencies(self, to: str, count: int) -> list[float]:
        taken = []
        for n in range(count):
            begun = time.perf_counter()
            await self.call(to, Numbered(n))
            taken.append(time.perf_counter() - begun)
        return taken

    async def do_pipeline(self, to: str, count: int, size: int, window: int = 40) -> float:
        begun = time.perf_counter()
        waiting = []
        for n in range(count):
            waiting.append(self.call(to, Numbered(n, b"x" * size), 60.0))
            if len(waiting) >= window:
                await waiting.pop(0)
        for waiter in waiting:
            await waiter
        return count / (time.perf_counter() - begun)


class Second(Echo):
    name: ClassVar[str] = "second"


class Third(Echo):
    name: ClassVar[str] = "third"


class Gateway(Echo):
    name: ClassVar[str] = "gateway"


class SlowStart(Echo):
    """Its start asks another server and takes a while."""

    name: ClassVar[str] = "slow"

    async def start(self) -> None:
        Echo.start(self)
        self.first_pid = await self.call("echo", Ask("pid"))
        await self.sleep(0.2)

    async def do_first_pid(self) -> int:
        return self.first_pid


class BadStart(Echo):
    name: ClassVar[str] = "bad"

    async def start(self) -> None:
        await self.sleep(0.01)
        raise LogCorrupted("record 7 fails its checksum", asked="ledger/1.log", hint="restore it")


class BrokenStart(Echo):
    name: ClassVar[str] = "broken"

    def start(self) -> None:
        raise ValueError("a bug")


class Stubborn(Echo):
    name: ClassVar[str] = "stubborn"

    def stop(self, reason: str) -> None:
        time.sleep(3600)


class DiesAtOnce(Echo):
    """Comes up and dies, always but the first time it is told so."""

    name: ClassVar[str] = "dies"

    def start(self) -> None:
        Echo.start(self)
        if (Path(self.host.paths.data_dir) / "die").exists():
            self.runtime.after(0.0, lambda: os._exit(3))


class Door(Echo):
    """Lets a test outside the actor system call any server: one pickled (to, message, timeout) per connection."""

    name: ClassVar[str] = "gateway"

    def start(self) -> Any:
        path = Path(self.host.paths.data_dir) / "door"
        path.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(path))
        self.listener.listen(16)
        self.runtime.watch(self.listener.fileno(), self._accept)
        return Echo.start(self)

    def stop(self, reason: str) -> None:
        self.listener.close()
        Echo.stop(self, reason)

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        self.spawn(self._serve(connection))

    async def _serve(self, connection: socket.socket) -> None:
        with connection:
            to, message, timeout_s = pickle.load(connection.makefile("rb"))
            try:
                answer = await self.call(to, message, timeout_s)
            except ActorGridError as error:
                answer = error
            try:
                connection.sendall(pickle.dumps(answer))
            except OSError:
                self.log.warning("the test went away")
