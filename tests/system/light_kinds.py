"""Light processes of sets over hosts: found by their names in every shard."""

from __future__ import annotations

import os
from typing import Any

from actorgrid.supervisors.process import (
    NO_REPLY,
    GenServer,
    ProcessDown,
    ProcessSpec,
    ProcessSupervisor,
    SupervisorFlags,
)


class Counter(GenServer):
    """A number with a name."""

    def init(self, name: str = "") -> None:
        self.total = 0
        self.told: list[Any] = []
        if name:
            self.claim_global(name)

    async def handle_call(self, request: Any, caller: Any) -> Any:
        what, *more = request
        match what:
            case "add":
                self.total += more[0]
                return self.total
            case "ask":
                return await self.call(more[0], more[1])
            case "watch":
                return self.monitor(more[0])
            case "join":
                return self.join(more[0])
            case "told":
                return self.told
            case "home":
                return self.pid.host, os.getpid()
            case "silent":
                return NO_REPLY
        raise ValueError(what)

    def handle_info(self, message: Any) -> None:
        self.told.append(message.reason.kind if isinstance(message, ProcessDown) else message)

    def save_state(self) -> int:
        return self.total

    def load_state(self, state: int) -> None:
        self.total = state


class Counters(ProcessSupervisor):
    """The root of a shard: the counters whose names are this slot's."""

    def init(self, count: int, slots: int) -> Any:
        slot = self.pid.shard >> 48
        names = [f"counter_{n}" for n in range(count) if n % slots == slot]
        flags = SupervisorFlags(intensity=10, period_s=10.0)
        return flags, [ProcessSpec(name, Counter, arguments=(name,)) for name in names]


class Bench(GenServer):
    """Measures calls to another process."""

    async def handle_call(self, request: Any, caller: Any) -> Any:
        import time

        to, count, ahead = request
        if ahead == 1:
            took = []
            for _ in range(count):
                began = time.perf_counter()
                await self.call(to, ("add", 1))
                took.append(time.perf_counter() - began)
            return took
        began, done, sent = time.perf_counter(), 0, 0
        while done < count:
            while sent < count and sent - done < ahead:
                self.send_request(to, ("add", 1), sent)
                sent += 1
            await self.receive()
            done += 1
        return count / (time.perf_counter() - began)
