"""The shim of a worker that serves function jobs, one after another: each call is an attempt of its own.

An attempt that it serves has its own folder, lock, token, output, time limit and status, as if it had a shim of its
own, and holds nothing when its status is there. So it is adopted by the agent's next start like any other: that finds
this shim by the attempt's spec and proves the attempt's token. What is shared is the shim, its worker process and what
the two are kept in. They serve another call only when the one before has succeeded and left the process as it was
(process_state.py) and nothing beside it; else the whole tree is ended before the call's status is written.

Beside what ``shim.py`` says, on the control socket::

    ["serve", attempt_id, deadline]  ["for", attempt_id, frame]                from the agent that keeps this worker
    ["serving", attempt_id]  ["not_serving", attempt_id, why]  ["ended", attempt_id, status, again]           to it

It leaves when that agent hangs up, as soon as it serves nothing; and by itself at its deadline, which is the attempt's
while it serves one.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actorgrid.actors.files.untrusted_files import open_to_write
from actorgrid.errors import NotARegularFile
from actorgrid.transports.frames import encode_frame

from .attempt_dir import AttemptDir
from .containment import RECORD, Containment, write_record
from .linux import boot_seconds
from .output import OpenFile, carry_all, times_of
from .process_state import ProcessState, ProcessUse, reset_peak, state_and_use
from .process_tree import descendants
from .shim import Shim
from .shim_channels import OpenWork
from .shim_sockets import WorkerSocket
from .work_records import ServedCallSpec, WorkSpec, WorkStatus, call_of
from .worker_process import worker_draft

MODULES_MAX = 256
STREAMS = ("stdout", "stderr")
GROWN_BYTES_MAX = 256 * 2**20
"""A process that keeps so much more memory than at its start serves no other call: nothing is granted for it."""


@dataclass(slots=True)
class _Call:
    """The attempt that is served."""

    directory: AttemptDir
    spec: WorkSpec
    lock: int
    started_at: float


class FunctionShim(Shim):
    """The loop of a shim whose worker serves calls; its own folder is the worker's."""

    def __init__(
        self,
        directory: AttemptDir,
        spec: WorkSpec,
        listener: socket.socket,
        deadline: float,
        containment: Containment,
        channels: socket.socket | None = None,
    ) -> None:
        super().__init__(directory, spec, listener, deadline, containment, channels)
        self._call: _Call | None = None
        self._served = 0
        self._began: ProcessState | None = None
        self._rss_at_start = 0
        self._cpu_before_s = 0.0  # of the calls before
        self._just_seen: ProcessUse | None = None
        self._modules: dict[str, tuple[int, int]] = {}
        self._kept_by_agent = False
        self._leaving = False

    # -- beginning a call

    def _obey(self, frame: list[Any], token: str) -> bool:
        call = self._call
        if token != self._spec["token"]:
            return super()._obey(frame, token)  # of the attempt that is served: its token is let in for so long
        self._kept_by_agent = True
        match frame:
            case ["serve", str(attempt_id), float(deadline)]:
                why = self._serve(attempt_id, deadline)
                self._agents.tell_all(["not_serving", attempt_id, why] if why else ["serving", attempt_id], token)
            case ["for", str(attempt_id), list(inner)]:
                return call is None or attempt_id != call.directory.attempt_id or super()._obey(inner, token)
            case ["renew", float(deadline)]:
                if call is None:  # an attempt's deadline is its own
                    self._renew(deadline)
            case ["retire"]:
                self._leave_when_idle()
            case _:
                return super()._obey(frame, token)
        return True

    def _serve(self, attempt_id: str, deadline: float) -> str:
        """Begin to serve an attempt; gives why not, and then has not touched it."""
        why = self._why_not(deadline)
        if why:
            return why
        assert self._worker is not None, "why_not has looked"
        directory = AttemptDir(Path(self._spec["attempts_dir"]), attempt_id)
        spec = directory.read_spec()
        if spec is None or spec.get("kind") != "function" or spec.get("served_by") != self._dir.attempt_id:
            return "it is no attempt for this worker"
        try:
            lock = directory.take()
        except OSError as error:
            return f"it cannot be begun: {error}"
        if lock is None:
            return "it has been begun before"
        self._call = _Call(directory, spec, lock, time.time())
        self._served += 1
        self._oom_kills.begin()
        self._renew(deadline)
        for stream, name, times in zip(self._streams, STREAMS, times_of(directory), strict=True):
            stream.redirect(_opened_later(directory, name), spec["max_output_bytes"], times)
        self._leave_record(directory)
        self._spec["grace_s"] = spec["grace_s"]
        if spec["timeout_s"] is not None:
            self._timeout_at = time.monotonic() + spec["timeout_s"]
        self._agents.let_in(spec["token"])
        draft = worker_draft(directory.result)
        call: ServedCallSpec = {**call_of(spec), "draft_path": str(draft)}
        if not self._worker.tell(encode_frame(["call", call])):
            self._stop("stopped", 0.0)
        return ""

    def _leave_record(self, directory: AttemptDir) -> None:
        """Leave word of what is to be ended should we be killed: where the worker is kept, all that it serves is."""
        with suppress(OSError, NotARegularFile):  # on a full disk, there are its marks
            try:
                os.link(self._dir.path / RECORD, directory.path / RECORD, follow_symlinks=False)
            except OSError:
                write_record(directory.path, self._tag, self._enclosure)

    def _why_not(self, deadline: float) -> str:
        """Why no call is taken now; empty when one is."""
        if self._call is not None:
            return "another call is served"
        if self._reason or self._late or self._leaving or self._status is not None or self._worker is None:
            return "the worker is ending"
        if self._began is None:
            return "the worker is not ready"
        if boot_seconds() >= deadline:
            return "the lease ran out"
        if self._changed_modules():
            self._leave_when_idle()
            return "a module that an earlier call has imported has changed"
        return ""

    def _changed_modules(self) -> bool:
        return any(_facts_of(path) != facts for path, facts in self._modules.items())

    def _open_work(self) -> OpenWork | None:
        call = self._call
        if call is None or super()._open_work() is None:
            return None
        return self._open_work_of(call.directory.attempt_id, call.spec, call.spec["env"])

    # -- while it runs, and its end

    def _state(self) -> list[Any]:
        return ["state", {"pid": self._child, "ready": self._began is not None}]

    def _read_worker(self, worker: WorkerSocket) -> None:
        frames = worker.read()
        self._look_at_clock()
        for frame in [] if self._late else frames:
            match frame:
                case ["ready"] if self._began is None:
                    found = state_and_use(self._child)
                    if found is not None:
                        self._began, self._rss_at_start = found[0], found[1].rss_bytes
                        self._agents.tell_all(["ready"], self._spec["token"])
                case ["done", list(modules)] if self._call is not None:
                    if self._reason:  # it was told to stop, and has delivered within its grace
                        self._let_go()
                    else:
                        self._call_done(self._call, modules)
                case ["refused", str(why)] if self._call is not None:
                    self._error = why
                    self._let_go()
        if worker.closed:
            self._worker = None

    def _call_done(self, call: _Call, modules: list[Any]) -> None:
        """End the call; the worker serves another one only if this one left nothing behind."""
        self._reap()
        if not self._is_as_it_began(call) or not self._learn(modules):
            self._let_go()
            return
        self._timeout_at = float("inf")
        for stream in self._streams:
            while self._carry(stream):
                pass
        if any(stream.blocked_until for stream in self._streams):
            self._let_go()  # the disk is full: what it has written waits for room, and nothing else is begun meanwhile
            return
        again = self._served < self._spec["calls_max"] and self._kept_by_agent and not self._leaving
        status = self._leave_status(call.directory, call.started_at, durably=False)
        reset_peak(self._child)
        self._close(call, status, again)
        if not again:
            self._leave_when_idle()

    def _is_as_it_began(self, call: _Call) -> bool:
        """Whether a successful call has left the worker as it was, and nothing beside it."""
        if not worker_draft(call.directory.result).exists():
            return False  # it says that it is done, and has left no result
        found = state_and_use(self._child)
        if found is None or found[0] != self._began:
            return False
        if found[1].rss_bytes > self._rss_at_start + GROWN_BYTES_MAX:
            return False
        self._just_seen = found[1]
        own = {self._child, self._init.pid if self._init is not None else 0}
        return not {*self._enclosure.members(), *descendants(os.getpid())} - own

    def _learn(self, modules: list[Any]) -> bool:
        """Take note of the files that must not change; ``False`` when they are too many, or changed already."""
        for entry in modules:
            match entry:
                case [str(path), int(changed_at), int(size)]:
                    self._modules[path] = changed_at, size
                case _:
                    return False
        return len(self._modules) <= MODULES_MAX and not any(
            _facts_of(entry[0]) != (entry[1], entry[2]) for entry in modules
        )

    def _let_go(self) -> None:
        """Have the worker end, by itself if it can; the call's status comes when nothing of it lives."""
        self._leaving, self._just_seen = True, None
        if self._worker is None or not self._worker.tell(encode_frame(["leave"])):
            self._terminate(0.0)

    def _close(self, call: _Call, status: WorkStatus, again: bool) -> None:
        """Close what a call had, once its status is there."""
        if self._channels is not None:
            self._channels.close_all()
        self._call = None
        for stream, name in zip(self._streams, STREAMS, strict=True):
            stream.redirect(_opened_later(self._dir, name), self._spec["max_output_bytes"])
        self._agents.shut_out(call.spec["token"])
        # Before it is told: who hears of its end finds nobody who holds it any more.
        os.close(call.lock)
        self._agents.tell_all(["ended", call.directory.attempt_id, status, again], self._spec["token"])

    def _finish(self) -> None:
        call = self._call
        if call is not None:
            carry_all(self._streams, self._carry)
            if self._error and self._reason == "exited":
                self._status = 127 << 8
            self._close(call, self._leave_status(call.directory, call.started_at, durably=False), False)
            self._error = ""
        super()._finish()

    def _use(self) -> tuple[int, float]:
        seen, self._just_seen = self._just_seen, None
        if seen is None and self._status is None:
            found = state_and_use(self._child)
            seen = None if found is None else found[1]
        most, cpu_s = super()._use() if seen is None else (seen.max_rss_bytes, seen.cpu_s)
        before_s, self._cpu_before_s = self._cpu_before_s, cpu_s
        return most, max(0.0, cpu_s - before_s)

    def _leave_when_idle(self) -> None:
        self._leaving = True
        if self._call is None:
            self._stop("stopped", 0.0)

    def _agent_gone(self, token: str) -> None:
        if token == self._spec["token"]:
            self._kept_by_agent = False
            self._leave_when_idle()


def _opened_later(directory: AttemptDir, name: str) -> OpenFile:
    return lambda: open_to_write(directory.path, name, os.O_APPEND)


def _facts_of(path: str) -> tuple[int, int] | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size
