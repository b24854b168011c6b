"""Plain Thespian actors that any system base must run alike, for the conformance suite."""

from __future__ import annotations

import os
import select
import signal
import socket
from datetime import timedelta
from time import monotonic
from typing import Any

from thespian.actors import (
    Actor,
    ActorExitRequest,
    ChildActorExited,
    PoisonMessage,
    ThespianWatch,
    WakeupMessage,
    WatchMessage,
)


class Everyman(Actor):  # type: ignore[misc]
    """Does as (verb, argument) says and answers whoever asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asker: Any = None
        self.seen: list[Any] = []
        self.exits: list[Any] = []
        self.handled = 0
        self.wanted = 0
        self.sockets: Any = None

    def receiveMessage(self, message: Any, sender: Any) -> Any:
        if isinstance(message, tuple):
            return getattr(self, f"do_{message[0]}")(message[1], sender)
        if isinstance(message, ChildActorExited):
            self.exits.append(getattr(message, "exit_status", "not told"))
        elif isinstance(message, WakeupMessage):
            self.seen.append(message.payload)
            if len(self.seen) == self.wanted:
                self.send(self.asker, self.seen)
        elif isinstance(message, WatchMessage):
            self.send(self.asker, self.sockets[0].recv(100))
        elif isinstance(message, PoisonMessage):
            self.send(self.asker, ("poison", message.poisonMessage))
        return None

    def do_echo(self, value: Any, sender: Any) -> None:
        self.send(sender, value)

    def do_pid(self, _value: Any, sender: Any) -> None:
        self.send(sender, os.getpid())

    def do_size(self, value: bytes, sender: Any) -> None:
        self.send(sender, (len(value), value[:1], value[-1:]))

    def do_child(self, _value: Any, sender: Any) -> None:
        child = self.createActor(Everyman)
        self.send(child, ("report_to", sender))

    def do_report_to(self, asker: Any, _sender: Any) -> None:
        self.send(asker, (self.myAddress, os.getpid()))

    def do_exits(self, _value: Any, sender: Any) -> None:
        self.send(sender, self.exits)

    def do_leave(self, _value: Any, _sender: Any) -> None:
        self.send(self.myAddress, ActorExitRequest())

    def do_die(self, _value: Any, _sender: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def do_send_numbers(self, value: tuple[Any, int], sender: Any) -> None:
        target, count = value
        for number in range(count):
            self.send(target, ("collect", (number, count, sender)))

    def do_collect(self, value: tuple[int, int, Any], _sender: Any) -> None:
        number, count, asker = value
        self.seen.append(number)
        if len(self.seen) == count:
            self.send(asker, self.seen)

    def do_wakeups(self, value: tuple[tuple[float, ...], float], sender: Any) -> None:
        delays, busy_s = value
        self.asker, self.seen, self.wanted = sender, [], len(delays)
        end = monotonic() + busy_s
        for delay_s in delays:
            self.wakeupAfter(timedelta(seconds=delay_s), delay_s)
        while monotonic() < end:  # as long as that, no message and no wakeup comes
            select.select([], [], [], max(0.0, end - monotonic()))

    def do_watch(self, value: bytes, sender: Any) -> Any:
        self.asker, self.sockets = sender, socket.socketpair()
        self.sockets[1].send(value)
        return ThespianWatch([self.sockets[0].fileno()])

    def do_fail(self, _value: Any, _sender: Any) -> None:
        self.handled += 1
        raise ValueError("on purpose")

    def do_handled(self, _value: Any, sender: Any) -> None:
        self.send(sender, self.handled)

    def do_make_fail(self, target: Any, sender: Any) -> None:
        self.asker = sender
        self.send(target, ("fail", None))
