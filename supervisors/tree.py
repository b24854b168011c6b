"""A whole supervision tree in its own processes, seen from the process that started it.

``Tree`` starts an actor system with one root supervisor and turns what it says into events. Nothing of it outlives
this process, and this process learns from the kernel (``lifeline``) when nothing of it lives any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from actorgrid.errors import ActorGridError, PeerGone
from actorgrid.transports.thespian_unix import Parcel
from actorgrid.transports.unix_system import Ready, UnixSystem

from .actor import SupervisorActor
from .child import ChildSpec
from .server import CAST
from .wire import HostServer, ServerCrashed, ServerStarted, ServerStartFailed, StopServer, unpack


@dataclass(frozen=True, slots=True)
class TreeStarted:
    """The root and all its children are up."""

    pid: int


@dataclass(frozen=True, slots=True)
class TreeFailed:
    """The root did not start, crashed or gave up; TreeGone follows."""

    error: ActorGridError


@dataclass(frozen=True, slots=True)
class TreeGone:
    """No process of the tree is left."""


@dataclass(frozen=True, slots=True)
class TreeSaid:
    """A cast from a server to ``main``."""

    sender: str
    message: Any


@dataclass(frozen=True, slots=True)
class DescriptorReady:
    """One of the descriptors given to ``Tree`` can be read."""

    fd: int


TreeEvent = TreeStarted | TreeFailed | TreeGone | TreeSaid | DescriptorReady


class Tree:
    """One actor system with a root supervisor. Make and use it in the main thread."""

    def __init__(self, folder: Path, watch: tuple[int, ...] = ()) -> None:
        self._system = UnixSystem(folder)
        self._system.watch([self._system.lifeline, *watch])
        self._root = ""
        self._events: list[TreeEvent] = []
        self.gone = False

    @property
    def admin_pid(self) -> int:
        """The first process of the tree."""
        return self._system.admin_pid

    def start(self, name: str, kind: str, host: Any, children: tuple[ChildSpec, ...]) -> None:
        """Start the root; TreeStarted or TreeFailed follows. Raises PeerGone when the tree died at once."""
        self._root = self._system.create(SupervisorActor)
        self._system.tell(self._root, HostServer(name, kind, host, 1, {}, children))

    def next_event(self, timeout_s: float | None) -> TreeEvent | None:
        """The next event, or ``None`` when there was none in time."""
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while not self._events:
            if self.gone:
                return TreeGone()
            left = None if deadline is None else max(0.0, deadline - monotonic())
            try:
                received = self._system.receive(left)
            except PeerGone:
                self._wait_gone()
                continue
            if received is None:
                return None
            self._take(*received)
        return self._events.pop(0)

    def _wait_gone(self) -> None:
        # The admin is dead; the kernel is killing the rest, from parent to child.
        self._system.wait_gone()
        self._note_gone()

    def _note_gone(self) -> None:
        self.gone = True
        self._events.append(TreeGone())

    def _take(self, _sender: str, message: Any) -> None:
        if isinstance(message, Ready):
            for fd in message.fds:
                if fd == self._system.lifeline:
                    self._note_gone()
                else:
                    self._events.append(DescriptorReady(fd))
        elif isinstance(message, ServerStarted):
            self._events.append(TreeStarted(message.pid))
        elif isinstance(message, (ServerStartFailed, ServerCrashed)):
            self._events.append(TreeFailed(message.error))
        elif isinstance(message, Parcel):
            envelope, _generation = unpack(message.data)
            if envelope.kind == CAST:
                self._events.append(TreeSaid(envelope.sender, envelope.body))

    def stop(self, reason: str) -> None:
        """Ask the root to stop everything in order, even when it has not started yet; TreeGone follows."""
        self._system.tell(self._root, StopServer(reason))

    def close(self) -> None:
        """Kill what is left, wait until all of it is gone, and remove its sockets."""
        self._system.close()
