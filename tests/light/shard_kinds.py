"""Light processes that shards in other processes of the operating system run: found there by their names."""

from __future__ import annotations

import time
from typing import Any

from actorgrid.errors import NotFound
from actorgrid.supervisors.process import NO_REPLY, GenServer, Process, ProcessSpec, ProcessSupervisor, SupervisorFlags


class Agent(GenServer):
    """Does what it is asked, keeps what it is told."""

    def init(self, trapping: bool = False) -> None:
        self.log: list[Any] = []
        self.trap_exit = trapping

    def handle_call(self, request: Any, caller: Any) -> Any:
        what, *arguments = request
        return getattr(self, what)(*arguments)

    def handle_info(self, message: Any) -> None:
        self.log.append(message)

    def told(self) -> list[Any]:
        return self.log

    def echo(self, value: Any) -> Any:
        return value

    async def ask(self, to: Any, request: Any, timeout_s: float = 5.0) -> Any:
        return await self.call(to, request, timeout_s)

    def silent(self) -> Any:
        return NO_REPLY

    def crash(self) -> None:
        raise ValueError("boom")

    def missing(self) -> None:
        raise NotFound("not here")

    def unsendable(self) -> Any:
        return lambda: None

    def send_all(self, to: Any, messages: list[Any]) -> list[bool]:
        return [self.send(to, message) for message in messages]

    def send_unsendable(self, to: Any) -> None:
        self.send(to, 1)
        self.send(to, lambda: None)
        self.send(to, 2)


class Sink(GenServer):
    """Counts what comes, and whether it comes in order."""

    mailbox_limit = 2_000_000

    def init(self) -> None:
        self.count = 0
        self.in_order = True
        self.began = 0.0
        self.caller: Any = None

    def handle_info(self, message: Any) -> None:
        if not self.count:
            self.began = time.monotonic()
        self.in_order &= message == self.count
        self.count += 1
        if self.caller is not None and self.count == self.caller.request:
            self.caller.reply((self.in_order, self.count / (time.monotonic() - self.began)))

    def handle_call(self, request: Any, caller: Any) -> Any:
        self.caller = caller
        return NO_REPLY


async def flood(me: Process, to: Any, count: int) -> None:
    """Sends numbers as fast as they are taken, a burst a turn."""
    sent = 0
    while sent < count:
        if me.send(to, sent):
            sent += 1
        else:
            await me.sleep(0.001)
        if sent % 1000 == 0:
            await me.sleep(0)


class Root(ProcessSupervisor):
    """What a shard starts with."""

    def init(self, *args: Any) -> Any:
        return SupervisorFlags(intensity=2), [ProcessSpec("agent", Agent)]
