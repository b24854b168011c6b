"""What follows from ends: links, monitors and exit signals of the processes of one shard, and over shards.

Within a shard both ends of a tie change at once, and an end is told to all at once. Ends that follow from an end wait
in a line, so that a chain of a million links is no deeper than one. To another shard goes a *signal*: a tuple whose
first word says what it is; ``take_signal`` lists them.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from actorgrid.errors import ActorGridError, BadRequest, MailboxFull, NoSuchActor
from actorgrid.hotpath.light import LightProcess, Pid, ProcessCall, ProcessCore, ShardAddress

from ..exits import NOPROC, NORMAL, ExitReason
from .base import Process
from .carrier import Carrier, NoCarrier
from .crash_log import CrashLog, log
from .events import CallReply, ProcessDown, ProcessExit, error_of, reason_of
from .names import ProcessNames
from .overruns import HandlerInterrupted
from .ties import ProcessTies, RemoteIndex, check_room, ties_of

CALLS_LOOKED_THROUGH = 1024


class ProcessEnds:
    """The ties between processes, and what happens at their ends. *core* and *carrier* are set by the shard."""

    core: ProcessCore

    def __init__(self) -> None:
        self.names = ProcessNames()
        self.crash_log = CrashLog()
        self.carrier: Carrier = NoCarrier()
        self.supervisors: dict[Pid, Any] = {}
        self.changes: dict[type, Any] = {}
        self.changing: set[Any] = set()
        """Those changes that still have processes to change."""
        self._monitor_ids = itertools.count(1)
        self._call_ids = itertools.count(1)
        self._remote = RemoteIndex()
        self._to_end: deque[tuple[LightProcess, ExitReason]] = deque()
        self._ending = False

    def now_ns(self) -> int:
        """The shard's clock."""
        raise NotImplementedError

    # -- whom is meant

    def whereis(self, name: Any) -> Pid | None:
        """Who has the name. Raises BadRequest for what can be no name."""
        raise NotImplementedError

    def pid_of(self, to: Any) -> Pid | None:
        """The Pid, or that of the name; ``None`` when nobody has it."""
        return to if isinstance(to, Pid) else self.whereis(to)

    # -- monitors

    def monitor(self, process: LightProcess, to: Pid | str) -> int:
        """Have *process* told of the end of *to*, once."""
        ties = ties_of(process)
        check_room(ties.monitors, "monitors", process)
        monitor, target = next(self._monitor_ids), self.pid_of(to)
        if target is None:
            self.core.tell(process, ProcessDown(monitor, None, NOPROC))
            return monitor
        found = self.core.find(target)
        if found is not None:
            watched = ties_of(found)
            check_room(watched.watchers, "watchers", found)
            if watched.watchers is None:
                watched.watchers = {}
            watched.watchers[process.pid, monitor] = None
        elif target.address == self.core.address:
            self.core.tell(process, ProcessDown(monitor, target, NOPROC))
            return monitor
        elif self.carrier.signal(target.address, ("monitor", process.pid, monitor, target)):
            self._remote[target.address].monitors[monitor] = (process.pid, target)
        else:
            self.core.tell(process, ProcessDown(monitor, target, self.carrier.why_not(target.address)))
            return monitor
        if ties.monitors is None:
            ties.monitors = {}
        ties.monitors[monitor] = target
        return monitor

    def demonitor(self, process: LightProcess, monitor: int) -> None:
        """End a monitor, and take its ProcessDown out of the mailbox if it is there."""
        ties = process.attachments
        target = ties.monitors.pop(monitor, None) if ties is not None and ties.monitors is not None else None
        if target is not None:
            self._forget_monitor(process.pid, monitor, target)
        else:
            self.core.discard(process, lambda message: type(message) is ProcessDown and message.monitor == monitor)

    def _forget_monitor(self, watcher: Pid, monitor: int, target: Pid) -> None:
        found = self.core.find(target)
        if found is not None:
            watchers = ties_of(found).watchers
            if watchers is not None:
                watchers.pop((watcher, monitor), None)
        elif target.address != self.core.address:
            remote = self._remote.get(target.address)
            if remote is not None and remote.monitors.pop(monitor, None) is not None:
                self.carrier.signal(target.address, ("demonitor", watcher, monitor, target))

    def _tell_down(self, watcher: Pid, monitor: int, target: Pid, reason: ExitReason) -> None:
        """Tell a process of this shard, if it lives and still wants to know."""
        process = self.core.find(watcher)
        if process is not None:
            ties = process.attachments
            if ties is not None and ties.monitors is not None and ties.monitors.pop(monitor, None) is not None:
                self.core.tell(process, ProcessDown(monitor, target, reason))

    # -- links

    def link(self, process: LightProcess, to: Pid | str) -> None:
        """Tie the fates of two processes."""
        target = self.pid_of(to)
        if target == process.pid:
            return
        if target is None:
            self._exit_signal(process, None, NOPROC, linked=True)
            return
        ties = ties_of(process)
        if ties.links is not None and target in ties.links:
            return
        check_room(ties.links, "links", process)
        found = self.core.find(target)
        if found is not None:
            other = ties_of(found)
            check_room(other.links, "links", found)
            if other.links is None:
                other.links = {}
            other.links[process.pid] = None
        elif target.address == self.core.address:
            self._exit_signal(process, target, NOPROC, linked=True)
            return
        elif self.carrier.signal(target.address, ("link", process.pid, target)):
            self._remote[target.address].links[process.pid, target] = None
        else:
            self._exit_signal(process, target, self.carrier.why_not(target.address), linked=True)
            return
        if ties.links is None:
            ties.links = {}
        ties.links[target] = None

    def unlink(self, process: LightProcess, to: Pid | str) -> None:
        """Untie them."""
        target = self.pid_of(to)
        ties = process.attachments
        if target is None or ties is None or ties.links is None or target not in ties.links:
            return
        del ties.links[target]
        self._forget_link(process.pid, target)

    def _forget_link(self, ours: Pid, target: Pid) -> None:
        found = self.core.find(target)
        if found is not None:
            links = ties_of(found).links
            if links is not None:
                links.pop(ours, None)
        elif target.address != self.core.address:
            remote = self._remote.get(target.address)
            if remote is not None and remote.links.pop((ours, target), 0) is None:
                self.carrier.signal(target.address, ("unlink", ours, target))

    # -- exit signals

    def exit(self, to: Pid | str, reason: ExitReason | str, source: Pid | None = None) -> None:
        """Ask *to* to end of *reason*. Nothing happens if it is gone."""
        why, target = reason_of(reason), self.pid_of(to)
        if target is None:
            return
        process = self.core.find(target)
        if process is not None:
            self._exit_signal(process, source, why, linked=False)
        elif target.address != self.core.address:
            self.carrier.signal(target.address, ("exit", source, target, why))

    def _exit_signal(self, process: LightProcess, source: Pid | None, reason: ExitReason, linked: bool) -> None:
        if reason.kind == "killed" and not linked:
            self.end(process, reason)
        elif process.attachments is not None and process.attachments.trap_exit:
            self.core.tell(process, ProcessExit(source, reason))
        elif reason.kind != "normal" or (not linked and source == process.pid):
            self.end(process, reason)

    # -- ends

    def end(self, process: LightProcess, reason: ExitReason) -> None:
        """End a process now, whatever it is at; ends that follow from it have happened when this returns."""
        self._to_end.append((process, reason))
        if self._ending:
            return
        self._ending = True
        try:
            while self._to_end:
                self._end_one(*self._to_end.popleft())
        finally:
            self._ending = False

    def _end_one(self, process: LightProcess, reason: ExitReason) -> None:
        ties: ProcessTies | None = process.attachments
        if process.status == "ended" or (ties is not None and ties.ending):
            return
        has_last_words = type(process).terminate is not Process.terminate  # type: ignore[attr-defined]
        if has_last_words and reason.kind != "killed" and process.has_started:
            ties = ties_of(process)
            ties.ending = True
            self._terminate(process, reason)
        if not self.core.remove(process, reason):
            return
        for change in list(self.changing):
            change.ended_one(process.pid)
        if reason.kind in ("error", "hung"):
            label = f" ({ties.label})" if ties is not None and ties.label else ""
            if (change := self.changes.get(type(process))) is not None:
                change.crashed_one()
            self.crash_log.tell(f"{type(process).__name__} {process.pid}{label}", reason, self.now_ns())
        if ties is not None:
            self._untie(process, ties, reason)
        if process.parent is not None and process.parent in self.supervisors:
            self.supervisors[process.parent].child_gone(process.pid, reason)
        supervisor = self.supervisors.pop(process.pid, None)
        if supervisor is not None:
            supervisor.end_children(self, reason)

    def _terminate(self, process: Any, reason: ExitReason) -> None:
        try:
            left = process.terminate(reason)
            if left is not None:
                getattr(left, "close", lambda: None)()
                raise BadRequest(f"{type(process).__name__}.terminate gave {left!r:.100}", hint="it may not be async")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the end goes on, whatever the user's last words are
            log.error("terminate of %s: %r", process.pid, error)

    def _untie(self, process: LightProcess, ties: ProcessTies, reason: ExitReason) -> None:
        me = process.pid
        if ties.names or ties.groups:
            self.names.forget(process)
        if ties.start is not None:
            start, ties.start = ties.start, None
            start(reason)
        watchers, ties.watchers = ties.watchers, None
        for watcher, monitor in watchers or ():
            if watcher.address == self.core.address:
                self._tell_down(watcher, monitor, me, reason)
            else:
                self._remote[watcher.address].watchers.pop((watcher, monitor, me), None)
                self.carrier.signal(watcher.address, ("down", watcher, monitor, me, reason))
        monitors, ties.monitors = ties.monitors, None
        for monitor, target in (monitors or {}).items():
            self._forget_monitor(me, monitor, target)
        links, ties.links = ties.links, None
        for other in links or ():
            self._unlink_by_end(me, other, reason)

    def _unlink_by_end(self, me: Pid, other: Pid, reason: ExitReason) -> None:
        found = self.core.find(other)
        if found is not None:
            links = ties_of(found).links
            if links is not None and links.pop(me, 0) is None:
                self._exit_signal(found, me, reason, linked=True)
        elif other.address != self.core.address:
            remote = self._remote.get(other.address)
            if remote is not None and remote.links.pop((me, other), 0) is None:
                self.carrier.signal(other.address, ("linked_exit", me, other, reason))

    # -- what the core reports

    def process_ended(self, process: LightProcess, error: BaseException | None) -> None:
        """Take the end of its code, or what that raised."""
        ties = process.attachments
        if error is None:
            reason = ties.stop_reason if ties is not None and ties.stop_reason is not None else NORMAL
        elif isinstance(error, ProcessEnd):
            reason = error.reason
        elif isinstance(error, HandlerInterrupted):
            reason = replace(self.crash_log.reason(error, self.now_ns()), kind="hung", message="a handler ran too long")
        else:
            reason = self.crash_log.reason(error, self.now_ns())
        self.end(process, reason)

    def process_started(self, process: LightProcess) -> None:
        """Tell who waits for the start."""
        ties = process.attachments
        if ties is not None and ties.start is not None:
            start, ties.start = ties.start, None
            start(None)
        elif process.parent is not None and process.parent in self.supervisors:
            self.supervisors[process.parent].child_up(process.pid)

    def close_failed(self, process: LightProcess, error: BaseException) -> None:
        """Log what the ``finally`` blocks of an ended coroutine raised."""
        log.error("%s raised as it was ended: %r", process.pid, error)

    def mailbox_overflowed(self, process: LightProcess) -> None:
        """End a process that says ``on_full = "exit"``."""
        error = MailboxFull(f"{process.mailbox_length} messages waited, as many as may", hint="raise mailbox_limit")
        self.end(process, ExitReason("error", error.message, error=error))

    def reply_message(self, call: ProcessCall) -> CallReply:
        """The answer to ``send_request``."""
        value, error = call.outcome
        return CallReply(call.label[0] if call.label else None, value, error)

    def down_error(self, process: LightProcess, reason: ExitReason) -> ActorGridError:
        """What callers of an ended process get."""
        return error_of(reason, process.pid)

    # -- to and from other shards

    def send_elsewhere(self, to: Any, message: Any) -> bool:
        """Send to a process of another shard; ``False`` where there is none, or no way."""
        target = self.pid_of(to)
        if target is None or target.address == self.core.address:
            return False
        return self.carrier.message(target.address, target, message)

    def call_elsewhere(self, call: ProcessCall) -> None:
        """Call a process of another shard; fails at once where there is none, or no way."""
        target = self.pid_of(call.server)
        if target is None or target.address == self.core.address:
            call.fail(NoSuchActor(f"there is no process {call.server}", hint="it has ended, or nobody has that name"))
            return
        number = next(self._call_ids)
        if not self.carrier.signal(target.address, ("call", self.core.address, number, target, call.request)):
            call.fail(error_of(self.carrier.why_not(target.address), target))
            return
        calls = self._remote[target.address].calls
        calls[number] = call
        if len(calls) % CALLS_LOOKED_THROUGH == 0:
            # Those that have timed out, or whose callers are gone, are not waited for any more.
            for old in [old for old, waiting in calls.items() if waiting.done]:
                del calls[old]

    def call_refused(self, number: int, error: BaseException) -> None:
        """Fail a call of ours that cannot be sent."""
        for remote in self._remote.values():
            call = remote.calls.pop(number, None)
            if call is not None:
                call.fail(error)

    def take_message(self, target: Pid, message: Any) -> None:
        """Take a message from another shard."""
        self.core.send(target, message)

    def take_signal(self, address: ShardAddress, signal: tuple[Any, ...]) -> None:
        """Take a signal from another shard: ``monitor demonitor down link unlink exit linked_exit call answer``."""
        what, *rest = signal
        takers: dict[str, Callable[..., None]] = {
            "monitor": self._take_monitor,
            "demonitor": self._take_demonitor,
            "down": self._take_down,
            "link": self._take_link,
            "unlink": self._take_unlink,
            "exit": self._take_exit,
            "linked_exit": self._take_linked_exit,
            "call": self._take_call,
            "answer": self._take_answer,
        }
        takers[what](address, *rest)

    def _take_monitor(self, address: ShardAddress, watcher: Pid, monitor: int, target: Pid) -> None:
        process = self.core.find(target)
        if process is None:
            self.carrier.signal(address, ("down", watcher, monitor, target, NOPROC))
            return
        ties = ties_of(process)
        if ties.watchers is None:
            ties.watchers = {}
        ties.watchers[watcher, monitor] = None
        self._remote[address].watchers[watcher, monitor, target] = None

    def _take_demonitor(self, address: ShardAddress, watcher: Pid, monitor: int, target: Pid) -> None:
        self._remote[address].watchers.pop((watcher, monitor, target), None)
        process = self.core.find(target)
        if process is not None and process.attachments is not None and process.attachments.watchers is not None:
            process.attachments.watchers.pop((watcher, monitor), None)

    def _take_down(self, address: ShardAddress, watcher: Pid, monitor: int, target: Pid, reason: ExitReason) -> None:
        self._remote[address].monitors.pop(monitor, None)
        self._tell_down(watcher, monitor, target, reason)

    def _take_link(self, address: ShardAddress, theirs: Pid, target: Pid) -> None:
        process = self.core.find(target)
        if process is None:
            self.carrier.signal(address, ("linked_exit", target, theirs, NOPROC))
            return
        ties = ties_of(process)
        if ties.links is None:
            ties.links = {}
        ties.links[theirs] = None
        self._remote[address].links[target, theirs] = None

    def _take_unlink(self, address: ShardAddress, theirs: Pid, target: Pid) -> None:
        self._remote[address].links.pop((target, theirs), None)
        process = self.core.find(target)
        if process is not None and process.attachments is not None and process.attachments.links is not None:
            process.attachments.links.pop(theirs, None)

    def _take_linked_exit(self, address: ShardAddress, theirs: Pid, target: Pid, reason: ExitReason) -> None:
        self._remote[address].links.pop((target, theirs), None)
        process = self.core.find(target)
        if process is not None and process.attachments is not None:
            links = process.attachments.links
            if links is not None and links.pop(theirs, 0) is None:
                self._exit_signal(process, theirs, reason, linked=True)

    def _take_exit(self, address: ShardAddress, source: Pid | None, target: Pid, reason: ExitReason) -> None:
        process = self.core.find(target)
        if process is not None:
            self._exit_signal(process, source, reason, linked=False)

    def _take_call(self, address: ShardAddress, back_to: ShardAddress, number: int, target: Pid, request: Any) -> None:
        def answer(call: ProcessCall) -> None:
            self.carrier.signal(back_to, ("answer", number, *call.outcome))

        # Without a timeout: who asks has one.
        self.core.call(target, request, None, answer)

    def _take_answer(self, address: ShardAddress, number: int, value: Any, error: BaseException | None) -> None:
        call = self._remote[address].calls.pop(number, None)
        if call is not None:
            if error is not None:
                call.fail(error)
            else:
                call.reply(value)

    def shard_lost(self, address: ShardAddress, reason: ExitReason) -> None:
        """Tell everybody who is tied to processes of a shard that is gone, or that nobody reaches any more."""
        remote = self._remote.pop(address, None)
        if remote is None:
            return
        for call in remote.calls.values():
            call.fail(error_of(reason, call.server))
        for monitor, (watcher, target) in remote.monitors.items():
            self._tell_down(watcher, monitor, target, reason)
        for watcher, monitor, target in remote.watchers:
            process = self.core.find(target)
            if process is not None and process.attachments is not None and process.attachments.watchers is not None:
                process.attachments.watchers.pop((watcher, monitor), None)
        for ours, theirs in remote.links:
            process = self.core.find(ours)
            if process is not None and process.attachments is not None:
                links = process.attachments.links
                if links is not None and links.pop(theirs, 0) is None:
                    self._exit_signal(process, theirs, reason, linked=True)


class ProcessEnd(BaseException):
    """Raised by ``exit_process`` in a process: it ends of this reason, from wherever it is."""

    def __init__(self, reason: ExitReason) -> None:
        super().__init__(str(reason))
        self.reason = reason


def exit_process(reason: ExitReason | str = NORMAL) -> None:
    """``exit/1``: end the process whose code calls this, now. Raises, so nothing after it is done."""
    raise ProcessEnd(reason_of(reason))
