"""Servers for OTP's promises: each does what it is told, for good or ill, in a process of its own."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from actorgrid.errors import ActorGridError, WrongState
from actorgrid.supervisors.child import ChildSpec, SupervisorFlags
from actorgrid.supervisors.exits import NORMAL, ExitReason
from actorgrid.supervisors.ref import Ref
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import Server, handles
from actorgrid.supervisors.signals import Down, Exited, MonitorRef
from actorgrid.supervisors.supervisor import Supervisor


@dataclass(frozen=True)
class Do:
    """Run ``do_WHAT(*args)`` and answer with what it gives."""

    what: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Told:
    """Cast to the test: *by* has seen *news*."""

    by: str
    news: Any


class Broken(Exception):
    """A bug."""


def block_for_ever() -> None:
    """A dead lock in native code that never gives the interpreter back. No signal ends it."""
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def allocate(mib: int) -> int:
    return len(bytearray(mib * 2**20))


class Hand(Server):
    """Does what ``Do`` says, and notes its starts and stops in the file that is its first argument."""

    name: ClassVar[str] = "hand"

    def start(self) -> Any:
        self.seen: list[Any] = []
        self.waiting = Waiter()
        self.monitors: dict[str, MonitorRef] = {}
        self.note("start")

    def stop(self, reason: str) -> Any:
        self.note(f"stop {reason}")

    def note(self, what: str) -> None:
        with open(self.arguments[0], "a", encoding="utf-8") as notes:
            notes.write(f"{self.me.name} {what}\n")

    def peer_restarted(self, name: str) -> None:
        self.seen.append(f"{name} restarted")

    @handles(Do)
    def do(self, order: Do, sender: Ref) -> Any:
        self.asked_by = sender
        return getattr(self, f"do_{order.what}")(*order.args)

    @handles(Down)
    @handles(Exited)
    def hear(self, news: Down | Exited) -> None:
        self.cast("main", Told(self.me.name, news))

    # -- being there

    def do_pid(self) -> int:
        return os.getpid()

    def do_me(self) -> Ref:
        return self.me

    def do_sender(self) -> Ref:
        return self.asked_by

    def do_arguments(self) -> tuple[Any, ...]:
        return self.arguments[1:]

    def do_add(self, item: Any, _ballast: bytes = b"") -> None:
        self.seen.append(item)

    def do_seen(self) -> list[Any]:
        return self.seen

    def do_count(self) -> int:
        return len(self.seen)

    # -- ends

    def do_segfault(self) -> None:
        ctypes.string_at(0)

    def do_exit(self, status: int) -> None:
        os._exit(status)

    def do_sys_exit(self, status: Any) -> None:
        sys.exit(status)

    def do_break(self) -> None:
        self.note("handler")
        self.seen.append("half of it")
        raise Broken("an invariant")

    def do_refuse(self) -> None:
        raise WrongState("not now")

    def do_break_in_background(self) -> None:
        async def work() -> None:
            await self.sleep(0.0)
            raise Broken("in background work")

        self.spawn(work())

    def do_break_in_a_timer(self) -> None:
        def fire() -> None:
            raise Broken("in a timer")

        self.runtime.after(0.0, fire)

    def do_break_in_a_descriptor_callback(self) -> None:
        def ready() -> None:
            raise Broken("in a callback")

        self.reading, writing = os.pipe()
        self.runtime.watch(self.reading, ready)
        os.write(writing, b"x")

    def do_allocate(self, mib: int) -> int:
        return allocate(mib)

    def do_kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def do_leave(self, reason: ExitReason = NORMAL) -> None:
        self.leave(reason)

    # -- hangs and long work

    def do_loop(self) -> None:
        while True:
            pass

    def do_block(self) -> None:
        block_for_ever()

    def do_read(self, fifo: str) -> str:
        """One long handler: it gives back no control until something is written."""
        self.note("reads")
        with open(fifo, encoding="utf-8") as file:
            text = file.read()
        self.cast("main", Told(self.me.name, text))
        return text

    async def do_wait(self) -> Any:
        """One handler that awaits until ``let_go``."""
        self.note("waits")
        value = await self.waiting
        self.cast("main", Told(self.me.name, value))
        return value

    def do_let_go(self, value: Any) -> None:
        self.waiting.set(value)

    # -- others

    async def do_ask(self, to: str | Ref, what: str, *args: Any, timeout_s: float = 60.0) -> Any:
        return await self.call(to, Do(what, args), timeout_s)

    async def do_request_and_tell(self, to: str | Ref, what: str, *args: Any) -> None:
        """Ask, and tell the test the answer or the name of the error."""
        try:
            answer = await self.call(to, Do(what, args), 60.0)
        except ActorGridError as error:
            answer = error.code
        self.cast("main", Told(self.me.name, answer))

    async def do_ask_within(self, timeout_s: float, to: str | Ref, what: str, *args: Any) -> Any:
        return await self.call(to, Do(what, args), timeout_s)

    async def do_request(self, to: str | Ref, request: Any) -> Any:
        return await self.call(to, request, 20.0)

    def do_cast(self, to: str | Ref, message: Any) -> bool:
        return self.cast(to, message)

    def do_cast_many(self, to: str | Ref, items: int, then: str, *args: Any) -> bool:
        """Enough to fill what the kernel takes for one that does not read, and then do something else."""
        sent = all([self.cast(to, Do("add", (item, b"x" * 10_000))) for item in range(items)])
        getattr(self, f"do_{then}")(*args)
        return sent

    def do_cast_after(self, delay_s: float, to: str | Ref, message: Any, cancel: bool) -> None:
        timer = self.cast_after(delay_s, to, message)
        if cancel:
            timer.cancel()

    def do_monitor(self, *targets: str | Ref) -> list[MonitorRef]:
        return [self.monitor(target) for target in targets]

    def do_demonitor(self, monitor: MonitorRef) -> None:
        self.demonitor(monitor)

    def do_link(self, to: str | Ref) -> None:
        self.link(to)

    def do_link_and_leave(self, to: str | Ref) -> None:
        self.link(to)
        self.leave(NORMAL)

    def do_unlink(self, to: str | Ref) -> None:
        self.unlink(to)

    def do_send_exit(self, to: str | Ref, reason: ExitReason) -> None:
        self.send_exit(to, reason)

    def do_counts(self) -> dict[str, int]:
        return self.signal_counts()

    # -- names

    def do_register(self, key: str) -> None:
        self.register(key)

    def do_whereis(self, key: str) -> Ref | None:
        return self.whereis(key)

    def do_join(self, key: str) -> None:
        self.join(key)

    def do_members(self, key: str) -> list[Ref]:
        return self.members(key)


class Trapper(Hand):
    """Is told of the ends of those it is linked to."""

    name = "trapper"
    trap_exit = True


class Quick(Hand):
    """Its handlers are short, it says."""

    name = "quick"
    max_handler_s = 0.3


# -- starts that go wrong


class DiesStarting(Hand):
    """Dies in its start for as long as its second argument, a file, exists."""

    name = "dies_starting"

    def start(self) -> Any:
        super().start()
        if os.path.exists(self.arguments[1]):
            os._exit(9)


class BreaksStarting(Hand):
    name = "breaks_starting"

    def start(self) -> Any:
        raise Broken("in start")


class NeverStarts(Hand):
    name = "never_starts"

    async def start(self) -> None:
        super().start()
        await Waiter()


class BlocksStarting(Hand):
    name = "blocks_starting"

    def start(self) -> None:
        super().start()
        block_for_ever()


# -- stops that go wrong


class BreaksStopping(Hand):
    name = "breaks_stopping"

    def stop(self, reason: str) -> None:
        super().stop(reason)
        raise Broken("in stop")


class BreaksStoppingLater(Hand):
    name = "breaks_stopping_later"

    async def stop(self, reason: str) -> None:
        super().stop(reason)
        await self.sleep(0.0)
        raise Broken("in stop")


class RefusesToStop(Hand):
    name = "refuses_to_stop"

    async def stop(self, reason: str) -> None:
        super().stop(reason)
        await self.sleep(0.0)
        raise WrongState("there is more to do")


class BlocksStopping(Hand):
    name = "blocks_stopping"

    def stop(self, reason: str) -> None:
        super().stop(reason)
        block_for_ever()


class StopsLater(Hand):
    """Its stop lasts until ``let_go``."""

    name = "stops_later"

    async def stop(self, reason: str) -> None:
        self.note(f"stops {reason}")
        await self.waiting
        self.note("stopped")


# -- supervisors


class Team(Supervisor):
    """Takes its flags and its children as arguments."""

    name = "team"

    def init(self, *arguments: Any) -> tuple[SupervisorFlags, Sequence[ChildSpec]]:
        flags, children = arguments
        return flags, children
