"""Links, monitors and exit signals of one actor: the decisions, without sockets or processes.

Semantics are Erlang's ("Processes", Erlang Reference Manual: Links, Monitors, Receiving Exit Signals). A monitor is
one-way and tells of a death once, with the reason. A link is two-way: when one end dies of anything but ``normal``,
the other dies of the same reason, unless it traps exits and gets a message instead. An exit signal of kind
``killed`` sent to somebody cannot be trapped; the links of who dies of it see an ordinary ``killed``.

Events go in; out come instructions, to be carried out in order. Deaths without last words (SIGKILL, a
segfault) come in through ``ended``, with the reason its supervisor gives.

Bounds: an actor holds 100,000 monitors and links of its own, and is watched by 100,000; over the first, ``monitor`` and
``link`` raise Overloaded; over the second, the watcher is told ``noproc`` with this reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from actorgrid.errors import Overloaded

from .exits import NOPROC, ExitReason
from .ref import Ref

WATCHED_MAX = 100_000
WATCHERS_MAX = 100_000

_CROWDED = ExitReason("noproc", f"it is watched {WATCHERS_MAX} times already")


# -- what travels between actors


@dataclass(frozen=True, slots=True)
class MonitorSignal:
    """Asks an actor to tell the sender when it ends."""

    id: int


@dataclass(frozen=True, slots=True)
class DemonitorSignal:
    """Takes a MonitorSignal back."""

    id: int


@dataclass(frozen=True, slots=True)
class DownSignal:
    """Says that the sender ends, which the receiver monitors as *id*."""

    id: int
    reason: ExitReason


@dataclass(frozen=True, slots=True)
class LinkSignal:
    """Says that sender and receiver are linked."""


@dataclass(frozen=True, slots=True)
class UnlinkSignal:
    """Says that sender and receiver are not linked any more."""


@dataclass(frozen=True, slots=True)
class ExitSignal:
    """Says that a linked sender ends (``linked``), or asks the receiver to end."""

    reason: ExitReason
    linked: bool


Signal = MonitorSignal | DemonitorSignal | DownSignal | LinkSignal | UnlinkSignal | ExitSignal


# -- what a server's handlers get


@dataclass(frozen=True, slots=True)
class MonitorRef:
    """One monitor, as its owner knows it."""

    id: int


@dataclass(frozen=True, slots=True)
class Down:
    """The actor monitored as ``monitor`` has ended. Comes once for each monitor, unless demonitored first."""

    monitor: MonitorRef
    ref: Ref
    reason: ExitReason


@dataclass(frozen=True, slots=True)
class Exited:
    """A linked actor has ended, or somebody asks us to; only for servers that trap exits."""

    ref: Ref
    reason: ExitReason


# -- instructions


@dataclass(frozen=True, slots=True)
class SendSignal:
    """Send *signal*. If *to* is gone, ``ended(to, NOPROC)`` says so."""

    to: Ref
    signal: Signal


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give this message to the server's handler."""

    message: Down | Exited


@dataclass(frozen=True, slots=True)
class Die:
    """End now, of this reason."""

    reason: ExitReason


Instruction = SendSignal | Deliver | Die


class Signals:
    """The links and monitors of one actor, and what follows from signals; see the module."""

    def __init__(self, trap_exit: bool = False) -> None:
        self.trap_exit = trap_exit
        self._next_id = 1
        self._monitors: dict[int, Ref] = {}  # mine, by id
        self._monitored: dict[str, dict[int, None]] = {}  # address -> my monitors of it, oldest first
        self._watchers: dict[str, dict[int, Ref]] = {}  # who monitors me, under which ids of theirs
        self._watcher_count = 0
        self._links: dict[str, Ref] = {}

    def watches(self, address: str) -> bool:
        """Whether this actor has to hear of the end of that process: it is linked, monitored or monitoring."""
        return address in self._monitored or address in self._links or address in self._watchers

    def counts(self) -> dict[str, int]:
        """How many monitors and links there are, by kind."""
        return {"monitors": len(self._monitors), "monitored_by": self._watcher_count, "links": len(self._links)}

    # -- asked by our own server

    def monitor(self, target: Ref) -> tuple[MonitorRef, list[Instruction]]:
        """Monitor *target*: hear of its end, once. Raises Overloaded."""
        self._check_room("monitor", target)
        monitor_id, self._next_id = self._next_id, self._next_id + 1
        self._monitors[monitor_id] = target
        self._monitored.setdefault(target.address, {})[monitor_id] = None
        return MonitorRef(monitor_id), [SendSignal(target, MonitorSignal(monitor_id))]

    def demonitor(self, monitor: MonitorRef) -> list[Instruction]:
        """End a monitor; harmless when its Down came, or it was ended already."""
        target = self._forget_monitor(monitor.id)
        return [] if target is None else [SendSignal(target, DemonitorSignal(monitor.id))]

    def link(self, target: Ref) -> list[Instruction]:
        """Link to *target*; harmless when linked already. Raises Overloaded."""
        if target.address in self._links:
            return []
        self._check_room("link to", target)
        self._links[target.address] = target
        return [SendSignal(target, LinkSignal())]

    def unlink(self, target: Ref) -> list[Instruction]:
        """Remove the link to *target*; harmless when there is none."""
        if self._links.pop(target.address, None) is None:
            return []
        return [SendSignal(target, UnlinkSignal())]

    def send_exit(self, target: Ref, reason: ExitReason) -> list[Instruction]:
        """Ask *target* to end (OTP's ``exit/2``)."""
        return [SendSignal(target, ExitSignal(reason, linked=False))]

    def _check_room(self, what: str, target: Ref) -> None:
        if len(self._monitors) + len(self._links) >= WATCHED_MAX:
            raise Overloaded(
                f"this actor has {WATCHED_MAX} monitors and links already",
                asked=f"{what} {target}",
                hint="demonitor what is no longer of interest",
            )

    def _forget_monitor(self, monitor_id: int) -> Ref | None:
        target = self._monitors.pop(monitor_id, None)
        if target is not None:
            ids = self._monitored[target.address]
            del ids[monitor_id]
            if not ids:
                del self._monitored[target.address]
        return target

    # -- told by other actors

    def received(self, source: Ref, signal: Signal) -> list[Instruction]:
        """Take *signal*, which came from *source*."""
        if isinstance(signal, MonitorSignal):
            if self._watcher_count >= WATCHERS_MAX:
                return [SendSignal(source, DownSignal(signal.id, _CROWDED))]
            self._watchers.setdefault(source.address, {})[signal.id] = source
            self._watcher_count += 1
        elif isinstance(signal, DemonitorSignal):
            ids = self._watchers.get(source.address, {})
            if ids.pop(signal.id, None) is not None:
                self._watcher_count -= 1
            if not ids:
                self._watchers.pop(source.address, None)
        elif isinstance(signal, DownSignal):
            target = self._monitors.get(signal.id)
            # Only of the one that is monitored: ids are small numbers, and anybody may send one.
            if target is not None and target.address == source.address:
                self._forget_monitor(signal.id)
                return [Deliver(Down(MonitorRef(signal.id), target, signal.reason))]
        elif isinstance(signal, LinkSignal):
            self._links.setdefault(source.address, source)
        elif isinstance(signal, UnlinkSignal):
            self._links.pop(source.address, None)
        elif signal.linked:
            if self._links.pop(source.address, None) is not None:  # else: unlinked while it was under way
                return self._exit(source, signal.reason)
        # Asked for, this cannot be trapped, as OTP's exit(Pid, kill); over a link, above, it can.
        elif signal.reason.kind == "killed":
            return [Die(signal.reason)]
        else:
            return self._exit(source, signal.reason)
        return []

    def ended(self, target: Ref, reason: ExitReason) -> list[Instruction]:
        """Deal with the end of *target*, which said nothing itself; *reason* is its supervisor's or the kernel's."""
        instructions: list[Instruction] = []
        for monitor_id in list(self._monitored.get(target.address, ())):
            known = self._forget_monitor(monitor_id) or target
            instructions.append(Deliver(Down(MonitorRef(monitor_id), known, reason)))
        if self._links.pop(target.address, None) is not None:
            instructions += self._exit(target, reason)
        self._watcher_count -= len(self._watchers.pop(target.address, ()))
        return instructions

    def _exit(self, source: Ref, reason: ExitReason) -> list[Instruction]:
        if self.trap_exit:
            return [Deliver(Exited(source, reason))]
        return [] if reason.kind == "normal" else [Die(reason)]

    def ending(self, reason: ExitReason) -> list[Instruction]:
        """The signals to send because this actor ends of *reason*."""
        instructions: list[Instruction] = [
            SendSignal(watcher, DownSignal(monitor_id, reason))
            for watchers in self._watchers.values()
            for monitor_id, watcher in watchers.items()
        ]
        instructions += [SendSignal(other, ExitSignal(reason, linked=True)) for other in self._links.values()]
        self._watchers.clear()
        self._watcher_count = 0
        self._links.clear()
        return instructions


def gone(target: Ref) -> ExitReason:
    """The exit reason of an actor that was dead before anyone asked: ``noproc``."""
    return ExitReason(NOPROC.kind, f"{target} was gone already")
