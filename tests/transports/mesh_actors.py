"""Thespian actors for the transport's tests: importable, because actor processes import them by name."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from time import monotonic
from typing import Any

from thespian.actors import Actor, ActorExitRequest, ChildActorExited, ThespianWatch, WakeupMessage, WatchMessage

from actorgrid.transports.thespian_unix import Parcel


class Mirror(Actor):
    """Sends back what it gets, with its pid; makes children; counts what it got."""

    def __init__(self) -> None:
        super().__init__()
        self.exits: list[tuple[int, int]] = []
        self.asker: Any = None

    def receiveMessage(self, message: Any, sender: Any) -> Any:
        if isinstance(message, Parcel):
            self.send(sender, message)
        elif message == "pid":
            self.send(sender, os.getpid())
        elif message == "child":
            self.asker = sender
            self.send(self.createActor(Mirror), ("tell pid to", sender))
        elif isinstance(message, tuple):
            self.send(message[1], os.getpid())
        elif isinstance(message, ChildActorExited):
            self.exits.append((message.pid, message.exit_status))
        elif message == "exits":
            self.send(sender, self.exits)
        elif message == "leave":
            self.send(self.myAddress, ActorExitRequest())
        elif isinstance(message, bytes):
            self.send(sender, len(message))
        return None


class Watcher(Actor):
    """Watches one end of a socket pair and keeps a timer; tells what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = socket.socketpair()
        self.seen: list[str] = []
        self.asker: Any = None

    def receiveMessage(self, message: Any, sender: Any) -> Any:
        if message == "watch":
            self.asker = sender
            self.right.send(b"ping")
        elif isinstance(message, WatchMessage) and self.left.fileno() in message.ready:
            self.send(self.asker, self.left.recv(10))
        elif isinstance(message, float):
            self.asker, self.due = sender, monotonic() + message
            self.wakeupAfter(timedelta(seconds=message))
        elif isinstance(message, WakeupMessage):
            self.send(self.asker, monotonic() - self.due)
        return ThespianWatch([self.left.fileno()])
