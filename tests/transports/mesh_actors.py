"""Thespian actors for the transport's tests: importable, because actor processes import them by name."""

from __future__ import annotations

import os
import resource
import signal
import socket
import tempfile
from datetime import timedelta
from time import monotonic
from typing import Any

from thespian.actors import Actor, ActorExitRequest, ChildActorExited, ThespianWatch, WakeupMessage, WatchMessage

from actorgrid.errors import MailboxFull, PeerGone
from actorgrid.transports.unix.thespian import (
    DescriptorsReady,
    DescriptorWatch,
    Parcel,
    PeerLost,
    address_of,
    name_of,
)


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


class Sentry(Actor):
    """Watches peers it never writes to, and tells whom it lost; takes parcels too."""

    def __init__(self) -> None:
        super().__init__()
        self.asker: Any = None
        self.heard: list[str] = []

    def receiveMessage(self, message: Any, sender: Any) -> None:
        if isinstance(message, tuple):
            self.asker = sender
            try:
                self._myRef.transport.watch_peer(message[1])
            except PeerGone:
                self.send(sender, "gone already")
            else:
                self.send(sender, "watching")
        elif isinstance(message, Parcel):
            self.heard.append(bytes(message.data).decode())
        elif isinstance(message, PeerLost):
            self.send(self.asker, (message.peer, monotonic(), self.heard))


class LastWords(Actor):
    """Writes much to whom it is told, and dies at once."""

    def receiveMessage(self, message: Any, sender: Any) -> None:
        if isinstance(message, tuple):
            for number in range(message[1]):
                self.send(address_of(message[0]), Parcel(str(number).encode()))
            self._myRef.transport.flush(10)
            os._exit(0)
        elif message == "pid":
            self.send(sender, os.getpid())


class Flooder(Actor):
    """Sends *count* numbered parcels to its partner, waiting for room, and takes as many from it."""

    def receiveMessage(self, message: Any, sender: Any) -> None:
        if isinstance(message, tuple):
            self.partner, self.count, size, self.asker = message
            self.padding = bytes(size)
            self.sent = self.got = self.waits = 0
            self.in_order = True
            self.go_on()
        elif isinstance(message, Parcel):
            self.in_order &= int.from_bytes(message.data[:4], "big") == self.got
            self.got += 1
            self.finish()

    def go_on(self) -> None:
        while self.sent < self.count:
            try:
                self.send(self.partner, Parcel(self.sent.to_bytes(4, "big") + self.padding))
            except MailboxFull:
                self.waits += 1
                self._myRef.transport.when_capacity(name_of(self.partner), self.go_on)
                return
            self.sent += 1
        self.finish()

    def finish(self) -> None:
        if self.got == self.sent == self.count:
            self.send(self.asker, ("done", self.in_order, self.waits))


class Family(Mirror):
    """Its end counts when its children's has come."""

    has_subtree = True

    def receiveMessage(self, message: Any, sender: Any) -> Any:
        if message != "a process of its own":
            return super().receiveMessage(message, sender)
        pid = os.fork()
        if pid == 0:  # it dies with nobody
            for fd in (0, 1, 2):
                os.close(fd)
            while True:
                signal.pause()
        self.send(sender, pid)
        return None


class Parent(Mirror):
    """Makes a Family or a Mirror; tells what it heard of their end."""

    def receiveMessage(self, message: Any, sender: Any) -> Any:
        if message == "family":
            self.send(self.createActor(Family), ("tell pid to", sender))
            return None
        if message == "crowd":
            self.crowd = [self.createActor(Mirror) for _ in range(20)]
            self.send(sender, [self._myRef.child_pid(each) for each in self.crowd])
            return None
        return super().receiveMessage(message, sender)


class Writer(Actor):
    """Watches for writing: a full pipe, until somebody reads it; and descriptors that cannot be watched."""

    def receiveMessage(self, message: Any, sender: Any) -> Any:
        if message == "watch":
            self.asker = sender
            self.reader, self.writer = os.pipe()
            os.set_blocking(self.writer, False)
            self.filled = 0
            try:
                while True:
                    self.filled += os.write(self.writer, bytes(65536))
            except BlockingIOError:
                pass
            closed = os.dup(self.writer)
            os.close(closed)
            self.file = tempfile.TemporaryFile()  # noqa: SIM115 - watched for as long as the actor lives
            self.bad = [closed, self.file.fileno()]
            self.send(sender, "full")
        elif message == "drain":
            os.read(self.reader, self.filled)
        elif isinstance(message, DescriptorsReady) and self.writer in message.writable:
            self.send(self.asker, ("writable", message.ready == []))
            return None
        return DescriptorWatch(self.bad, [self.writer])


class Hungry(Mirror):
    """Opens all that it may, and says how the transport takes it."""

    def receiveMessage(self, message: Any, sender: Any) -> Any:
        if message == "eat":
            _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # what it was forked with stays open
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(64, highest + 24), hard))
            self.eaten: list[int] = []
            try:
                while True:
                    self.eaten.append(os.dup(0))
            except OSError as error:
                self.send(sender, error.errno)
        elif message == "spit":
            for fd in self.eaten:
                os.close(fd)
            self.send(sender, "spat")
        elif isinstance(message, tuple) and message[0] == "parcel to":
            try:
                self.send(message[1], Parcel(b"from a hungry one"))
            except MailboxFull as error:
                self.send(sender, error.message)
            else:
                self.send(sender, "sent")
        elif isinstance(message, tuple) and message[0] == "plain to":
            self.send(message[1], "pid")
            self.send(sender, "tried")
        elif message == "make":
            try:
                self.send(sender, self._myRef.child_pid(self.createActor(Mirror)))
            except OSError as error:
                self.send(sender, error.strerror)
        elif isinstance(message, ChildActorExited):
            return None
        else:
            return super().receiveMessage(message, sender)
        return None
