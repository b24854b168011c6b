"""Light processes of sets over hosts: found by their names in every shard."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from actorgrid.errors import CallTimeout, NameTaken
from actorgrid.supervisors.process import (
    NO_REPLY,
    GenServer,
    ProcessDown,
    ProcessSpec,
    ProcessSupervisor,
    SupervisorFlags,
)
from tests.system.hold import note


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


class Contender(GenServer):
    """Wants all names that it is given; notes, for as long as it has one, and whose end it is told, once for a link."""

    def init(self, names: list[str], folder: str) -> None:
        self.names, self.folder = names, folder
        self.held: set[str] = set()
        self.watched: dict[int, Any] = {}
        self.claim_global(f"contender_{self.shard.me.slot}")
        self.send(self.pid, "look")

    async def handle_info(self, message: Any) -> None:
        me = self.shard.me
        if isinstance(message, ProcessDown):
            slot = message.pid.shard >> 48
            note(self.folder, "downs", by=me.slot, of=slot, kind=message.reason.kind)
            self.watched.pop(slot, None)
        elif message == "look":
            self.watch()
            for name in self.names:
                if name not in self.held:
                    with suppress(NameTaken, CallTimeout):
                        await self.register_global(name, timeout_s=0.2)
                        self.held.add(name)
                if name in self.held:
                    note(self.folder, "holds", what=name, by=me.slot, token=list(me.token))
            self.send_after(0.05, self.pid, "look")

    def watch(self) -> None:
        """Monitor the others that are linked and are not monitored yet."""
        links = self.shard.links
        for slot in range(self.shard.me.count):
            pid = self.whereis(f"contender_{slot}")
            linked = pid is not None and links.address_of(slot) == pid.address
            if linked and slot not in self.watched:
                self.watched[slot] = self.monitor(pid)
                note(self.folder, "watches", by=self.shard.me.slot, of=slot)

    def handle_call(self, request: Any, caller: Any) -> Any:
        return sorted(self.held)


class Contenders(ProcessSupervisor):
    """The root of a shard that contends."""

    def init(self, names: list[str], folder: str) -> Any:
        return SupervisorFlags(), [ProcessSpec("contender", Contender, arguments=(names, folder))]
