"""A whole supervision tree in its own processes, seen from the process that started it.

    with Tree() as tree:
        tree.up(Shop)          # a Supervisor; its children are up when this returns
        tree.call("till", Price("tea"))

``Tree`` starts an actor system with one root supervisor and turns what it says into events. Nothing of it outlives
this process, and this process learns from the kernel (``lifeline``) when nothing of it lives any more. As the root has
no supervisor of its own, this process judges its heartbeat: a root that hangs is killed, and with it the tree.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import signal
import tempfile
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from actorgrid.errors import ActorDown, ActorGridError, CallTimeout, NoSuchActor, PeerGone, StartFailed
from actorgrid.transports.unix.system import ReadyDescriptors, UnixSystem
from actorgrid.transports.unix.thespian import Parcel, PeerLost

from .actor import SupervisorActor
from .child import kind_of
from .crash_report import log_crash
from .envelope import CALL, CAST, ERROR, Envelope
from .heartbeat import Heartbeat
from .missing import no_such_server
from .ref import Ref
from .registry import Registry
from .watchdog import Watchdog
from .wire import HostServer, LastWords, ServerStarted, ServerStartFailed, StopServer, TreeSettings, pack, unpack

MAIN = "main"
DEFAULTS = TreeSettings()
_ROOT = "root"
_STOP_S = 10.0

log = logging.getLogger("actorgrid.supervisor")


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
    """One actor system with a root supervisor. Make and use it in the main thread: its processes die with the thread.

    *folder* is made for the sockets, and removed by ``close``; without one a temporary directory is. *watch* holds
    descriptors that wake ``next_event``.
    """

    def __init__(
        self, folder: Path | None = None, watch: tuple[int, ...] = (), settings: TreeSettings = DEFAULTS
    ) -> None:
        self._made = None if folder is not None else Path(tempfile.mkdtemp(prefix="actorgrid-"))
        folder = folder or Path(self._made or "") / "boot"
        self._heartbeat = Heartbeat()  # before the first fork: it is inherited through the admin
        try:
            self._system = UnixSystem(folder)
        except BaseException:
            self._heartbeat.close()
            raise
        self._settings = settings
        self._watchdog = Watchdog(settings.beat_interval_s, settings.hang_margin_s)
        self._judge_at = monotonic()
        self._system.watch([self._system.lifeline, *watch])
        self.registry = Registry(folder)
        self.me = Ref(self._system.name, MAIN)
        self.registry.register(MAIN, self.me)
        self._root = ""
        self._events: deque[TreeEvent] = deque()
        self._calls = itertools.count(1)
        self._answers: dict[tuple[int, int], Envelope] = {}
        self._waiting: dict[tuple[int, int], Ref] = {}
        self.gone = False
        self._closed = False

    @property
    def admin_pid(self) -> int:
        """The first process of the tree."""
        return self._system.admin_pid

    def start(self, name: str, kind: str | type, host: Any, *arguments: Any) -> None:
        """Start the root; TreeStarted or TreeFailed follows. Raises PeerGone when the tree died or is closed."""
        self._check_open()
        self._root = self._system.create(SupervisorActor)
        self.registry.register(name, Ref(self._root, name))
        self._watchdog.watch(_ROOT, None)
        where = kind if isinstance(kind, str) else kind_of(kind)
        order = HostServer(name, where, host, arguments, self._settings, self._heartbeat.number)
        self._system.tell(self._root, order)

    def up(
        self, kind: str | type, host: Any = None, *arguments: Any, name: str = "root", timeout_s: float = 60.0
    ) -> int:
        """Start the root and wait until all is up; gives the root's pid.

        Raises what the first failing start raised, or StartFailed after *timeout_s*.
        """
        self.start(name, kind, host, *arguments)
        deadline = monotonic() + timeout_s
        while True:
            event = self.next_event(max(0.0, deadline - monotonic()))
            if isinstance(event, TreeStarted):
                return event.pid
            if isinstance(event, TreeFailed):
                raise event.error
            if isinstance(event, TreeGone):
                raise StartFailed(f"the tree of {kind} died while it started", found=self._begun_last())
            if event is None:
                raise StartFailed(
                    f"{kind} did not start in {timeout_s:g} s",
                    found=self._begun_last(),
                    hint="look at what its start waits for, or give up() a longer timeout_s",
                )

    def _begun_last(self) -> str:
        """The server that does not come up: the youngest process is its, since children start one after another."""
        names = {ref.address: name for name, ref in self.registry.names().items() if name != MAIN}
        youngest = max(names, key=lambda address: [int(part) for part in address.split(".")[1:]], default="")
        return f"begun last: {names[youngest]}" if names else "nothing was begun"

    # -- from outside the tree

    def cast(self, to: str | Ref, message: Any) -> bool:
        """Send without an answer; ``False`` when there is no such server now or its queue is full."""
        try:
            self._post(to, Envelope(CAST, MAIN, None, message))
        except ActorGridError:
            return False
        return True

    def call(self, to: str | Ref, request: Any, timeout_s: float = 10.0) -> Any:
        """Ask a server and wait for its answer. What else happens meanwhile is kept for ``next_event``.

        Raises what the server raised, NoSuchActor, MailboxFull, CallTimeout, or PeerGone when the whole tree is gone.
        """
        ref = (os.getpid(), next(self._calls))
        deadline = monotonic() + timeout_s
        try:
            self._waiting[ref] = self._post(to, Envelope(CALL, MAIN, ref, request))
            while ref not in self._answers:
                if self.gone:
                    raise PeerGone(f"the whole tree died before {to!s} answered")
                if not self._wait(deadline):
                    raise CallTimeout(
                        f"{to!s} did not answer {type(request).__name__} in {timeout_s:g} s",
                        hint="it may be restarting; whether it acted is unknown",
                    )
        finally:
            self._waiting.pop(ref, None)
            answer = self._answers.pop(ref, None)
        if answer is None:
            raise AssertionError("waited for an answer that is not there")
        if answer.kind == ERROR:
            raise answer.body
        return answer.body

    def _check_open(self) -> None:
        if self._closed:
            raise PeerGone("this tree was closed", hint="make another Tree")

    def _post(self, to: str | Ref, envelope: Envelope) -> Ref:
        self._check_open()
        target = to if isinstance(to, Ref) else self.registry.whereis(to)
        if target is None:
            raise no_such_server(to, (name for name in self.registry.names() if name != MAIN))
        try:
            self._system.tell(target.address, Parcel(pack(envelope)))
        except PeerGone as error:
            raise NoSuchActor(f"{to!s} is down", found=error.message, hint="it is being restarted") from None
        return target

    # -- what happens

    def next_event(self, timeout_s: float | None) -> TreeEvent | None:
        """The next event, or ``None`` when there was none in time."""
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while not self._events:
            if self.gone:
                return TreeGone()
            if not self._wait(deadline):
                return None
        return self._events.popleft()

    def _wait(self, deadline: float | None) -> bool:
        """Take the next message; ``False`` when *deadline* has passed without one."""
        self._judge()
        left = self._judge_at - monotonic()
        if deadline is not None:
            left = min(left, deadline - monotonic())
        try:
            received = self._system.receive(max(0.0, left))
        except PeerGone:
            self._wait_gone()
            return True
        if received is not None:
            self._take(*received)
            return True
        return deadline is None or monotonic() < deadline

    def _judge(self) -> None:
        now = monotonic()
        if now < self._judge_at:
            return
        self._judge_at = now + self._settings.beat_interval_s
        for hung in self._watchdog.judge({_ROOT: self._heartbeat.read()}, now):
            log.critical("the root of the tree hangs and is killed: %s", hung.message)
            if self._heartbeat.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(self._heartbeat.pid, signal.SIGKILL)

    def _wait_gone(self) -> None:
        # The admin is dead; the kernel is killing the rest, from parent to child.
        self._system.wait_gone()
        self._note_gone()

    def _note_gone(self) -> None:
        self.gone = True
        self._events.append(TreeGone())

    def _take(self, sender: str, message: Any) -> None:
        if isinstance(message, ReadyDescriptors):
            for fd in message.fds:
                if fd == self._system.lifeline:
                    self._note_gone()
                else:
                    self._events.append(DescriptorReady(fd))
        elif isinstance(message, ServerStarted):
            self._heartbeat.pid = message.pid
            self._events.append(TreeStarted(message.pid))
        elif isinstance(message, ServerStartFailed):
            self._events.append(TreeFailed(message.error))
        elif isinstance(message, LastWords):
            if not message.reason.is_normal:
                if message.reason.moments is not None:  # it crashed, and has no supervisor who tells it
                    log_crash(log, "the root of the tree", self._heartbeat.pid, message.reason)
                self._events.append(TreeFailed(message.reason.to_error("the root of the tree")))
        elif isinstance(message, PeerLost):
            for ref, callee in self._waiting.items():
                if callee.address == message.peer:
                    down = ActorDown(f"{callee} died before it answered")
                    self._answers.setdefault(ref, Envelope(ERROR, callee.name, ref, down))
        elif isinstance(message, Parcel):
            envelope = unpack(message.data, sender)
            if envelope.ref in self._waiting:
                self._answers[envelope.ref] = envelope
            elif envelope.kind == CAST:
                self._events.append(TreeSaid(envelope.sender, envelope.body))

    def stop(self, reason: str) -> None:
        """Ask the root to stop everything in order, even when it has not started yet; TreeGone follows."""
        self._check_open()
        self._system.tell(self._root, StopServer(reason))

    def close(self) -> None:
        """Kill what is left, wait until all of it is gone, and remove its sockets. Again: harmless."""
        if self._closed:
            return
        self._closed = self.gone = True
        self._system.close()
        self._heartbeat.close()
        if self._made is not None:
            shutil.rmtree(self._made)
            self._made = None

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop the tree in order, for at most 10 s, then kill what is left; nothing when it was closed already."""
        try:
            if self._root and not self.gone:
                self.stop("done")
                deadline = monotonic() + _STOP_S
                while not isinstance(self.next_event(max(0.0, deadline - monotonic())), TreeGone | None):
                    pass
        except PeerGone:
            log.info("the tree was gone before it was stopped")
        finally:
            self.close()
