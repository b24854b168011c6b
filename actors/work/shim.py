"""The shim: the small parent of one attempt or pool worker. It outlives the agent and keeps what must not be lost.

It starts the command or worker in a child, carries its output into bounded files, enforces time and memory limits,
and ends the whole tree when told, when a limit is passed, or at its deadline: a time on CLOCK_BOOTTIME (which a
suspended machine does not stop), by which nothing of the attempt lives any more unless the agent has given a later
one. The agent gives one as often as the host's lease is renewed (docs/leases.md). As a subreaper the shim is the parent
of every orphan in its tree.

Control socket (frames; the first must be ["hello", token])::

    ["renew", deadline]  ["stop", reason, grace_s]  ["limits", memory_bytes]  ["worker", frame]     from the agent
    ["state", {"pid"}]  ["worker", frame]                                                 to the agent

People come to the work over channels, at a socket of their own (job_channels.py).

(A shim whose worker serves many function jobs, one after another, has more of them: function_shim.py.)

The agent learns of the end by the socket closing, and then reads the status (``WorkStatus``).
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from actorgrid.actors.files.untrusted_files import open_to_write, remove_tree
from actorgrid.errors import NotARegularFile
from actorgrid.transports.frames import encode_frame

from .attempt_dir import AttemptDir
from .checkpoint_taking import taker_of
from .collected_outputs import Collected, collect_wanted
from .command_steps import with_pack
from .containers import remove_container
from .containment import (
    Containment,
    Enclosure,
    GroupEnclosure,
    InitEnclosure,
    TreeEnclosure,
    remove_record,
    unrecorded,
    write_record,
)
from .device_memory_limits import DeviceLimits
from .groups import FreezerGroup, KillGroup, group_name
from .guard import GuardLink, SharedDeadline
from .isolation.work_folder import WorkFolder
from .job_terminal import JobTerminal
from .limits import own_shared_memory_bytes, writable_cgroup
from .linux import MARK_HOST, BootTimer, boot_seconds
from .oom_kills import OomKillsSince
from .output import FULL_DISK_RETRY_S, OutputStream, carry_all, times_of
from .pid_namespace import Init
from .pid_namespace import enter as enter_pid_namespace
from .process_tree import (
    children_of,
    descendants,
    environment_of,
    kill_descendants,
    living,
    send,
    start_ticks,
    tree_rss_bytes,
)
from .python_environment_spec import hold_python_environment
from .secret_files import remove_secrets
from .shim_channels import OpenWork, ShimChannels
from .shim_child import LONG_STEP, Body, ChildEnds, ShimChild
from .shim_sockets import AgentSockets, WorkerSocket
from .work_records import WorkSpec, WorkStatus, uid_of
from .worker_process import remove_unread, take_draft
from .working_dir_spec import hold_working_dir

MEMORY_CHECK_S = 0.25
KILL_AGAIN_S = 0.01
GUARD_AGAIN_S = 1.0
PACKING_LOOK_MS = 200
INIT_PID = 1  # inside of its namespace


class Shim:
    """The loop of one shim."""

    def __init__(
        self,
        directory: AttemptDir,
        spec: WorkSpec,
        listener: socket.socket,
        deadline: float,
        containment: Containment,
        channels: socket.socket | None = None,
    ) -> None:
        self._dir = directory
        self._spec = spec
        self._containment = containment
        self._tag = str(spec["env"].get(MARK_HOST, ""))
        self._enclosure: Enclosure = TreeEnclosure(os.getpid())
        self._init: Init | None = None
        self._timer = BootTimer()
        self._late = False  # the deadline has passed: nothing the work says counts any more
        self._for_guard = SharedDeadline()
        self._for_worker = SharedDeadline(inherited=True)
        self._guard: GuardLink | None = None
        self._guard_again_at = 0.0
        self._poll = select.poll()
        self._child = 0
        self._agents = AgentSockets(listener, self._poll, spec["token"], self._state, self._obey, self._agent_gone)
        self._channels = None if channels is None else ShimChannels(channels, self._poll, self._open_work)
        self._terminal = JobTerminal() if self._channels is not None and spec.get("pty") else None
        if self._channels is not None:
            self._channels.terminal = self._terminal
        self._env: dict[str, str] = spec["env"]
        self._deadline = deadline
        self._timeout_at = self._kill_at = float("inf")
        self._memory_bytes: int = spec["memory_bytes"]
        self._device_limits = DeviceLimits()
        self._memory_check_at = 0.0
        self._prepares = bool(spec.get("environment")) and spec["kind"] != "functions"
        self._oom_kills = OomKillsSince()
        self._reason = self._error = ""
        self._status: int | None = None
        self._faults = -1
        self._is_heard_out = False
        self._group: KillGroup | FreezerGroup | None = None
        self._streams: list[OutputStream] = []
        self._worker: WorkerSocket | None = None
        self._started_at = time.time()
        self._collected: Collected | None = None
        self._cwd = WorkFolder(spec, directory.path)
        self._checkpoints = taker_of(spec, directory, self._cwd)
        self._max_tree_rss = 0

    # -- starting

    def run(self, body: Body, inherited: list[socket.socket]) -> None:
        """Start the child, see it through, and leave the status."""
        self._wake, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._stop("stopped", self._spec["grace_s"]))
        # Before the guard and the worker see it: a deadline that was never set reads as 0, which is long over.
        self._renew(self._deadline)
        self._make_group()
        hold_working_dir(self._spec)
        hold_python_environment(self._spec)
        self._start(body, inherited)
        self._poll.register(self._wake, select.POLLIN)
        self._poll.register(self._timer.fd, select.POLLIN)
        # After the start: whoever connects is told the pid of what runs.
        self._agents.listen()
        if self._channels is not None:
            self._channels.listen()
        if not self._prepares:
            self._begin_time()
        while not self._finished():
            self._turn()
        self._finish()

    def _begin_time(self) -> None:
        """Let the limits count: from when the work itself begins, not what is done for it before."""
        if self._prepares:
            self._prepares = False
            with suppress(OSError):  # it has ended: nobody comes to it
                self._env = environment_of(self._child)
        if self._spec["timeout_s"] is not None:
            self._timeout_at = time.monotonic() + self._spec["timeout_s"]
        if isinstance(self._group, KillGroup) and self._memory_bytes:
            self._group.limit_memory(self._memory_bytes)

    def _make_group(self) -> None:
        """Make a cgroup to keep the work in, or at least to limit its memory; where that fails, sampling does it."""
        kind = FreezerGroup if self._containment.kind == "freezer" else KillGroup
        contained = self._containment.kind in ("cgroup", "freezer")
        folder = Path(self._containment.folder) if contained else writable_cgroup() if self._memory_bytes else None
        if folder is None:
            return
        group = kind(folder / group_name(self._tag, self._dir.attempt_id))
        try:
            group.make(0 if self._prepares else self._memory_bytes)
        except OSError:
            return
        self._group = group
        if contained:
            self._enclosure = GroupEnclosure(group)
            self._make_known()  # before anything is inside: there is no moment at which nobody would end it

    def _make_known(self) -> None:
        """Leave word of what is to be ended should we be killed: on disk, and with the guard."""
        with suppress(OSError, NotARegularFile):  # on a full disk the guard knows, and the marks are there
            write_record(self._dir.path, self._tag, self._enclosure)
        path = self._spec.get("guard_path")
        if path:
            record = unrecorded(self._tag, self._dir.attempt_id) | self._enclosure.record()
            self._guard = GuardLink(path, {"record": record, "folder": str(self._dir.path)}, self._for_guard)
            self._tell_guard(time.monotonic())

    def _tell_guard(self, now: float) -> None:
        self._guard_again_at = now + GUARD_AGAIN_S
        if self._guard is not None and self._guard.socket is None and self._guard.connect():
            self._poll.register(self._guard.socket or 0, select.POLLIN)

    def _start(self, body: Body, inherited: list[socket.socket]) -> None:
        terminal = self._terminal
        out_read, out_write = os.pipe2(os.O_CLOEXEC) if terminal is None else (terminal.ours, terminal.theirs)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        fault_read, fault_write = os.pipe2(os.O_CLOEXEC)
        if self._spec["kind"] in ("worker", "functions", "objects"):
            control, child_control = socket.socketpair()
            self._worker = WorkerSocket(control, self._poll)
            inherited = [*inherited, child_control]
        # Before the work runs, which could put something else there. It gets neither: both are closed when it starts.
        files = [open_to_write(self._dir.path, path.name, os.O_APPEND) for path in (self._dir.stdout, self._dir.stderr)]
        ends = ChildEnds(out_write, err_write, fault_write, inherited, terminal is not None)
        if self._containment.kind == "pid_namespace":
            self._start_in_namespace(body, ends)
        if self._init is None:
            shim_pid = os.getpid()
            self._child = os.fork()
            if self._child == 0:
                self._own_child().run(body, shim_pid, ends)
        # Our own ends first: with one of them open here, the read below would not end.
        for fd in (*([out_write] if terminal is None else []), err_write, fault_write):
            os.close(fd)
        for end in inherited:
            end.close()
        limit = self._spec["max_output_bytes"]
        heard = (lambda _data: None) if terminal is None else terminal.wrote
        self._streams = [
            OutputStream(pipe, file, limit, times, heard)
            for pipe, file, times in zip((out_read, err_read), files, times_of(self._dir), strict=True)
        ]
        if terminal is not None:
            terminal.keep_in(self._dir, lambda: self._streams[0].kept)
        for stream in self._streams:
            self._poll.register(stream.pipe or 0, select.POLLIN)
        self._faults = fault_read
        self._hear_faults()
        if self._prepares:
            self._poll.register(fault_read, select.POLLIN)
        if self._init is not None:
            self._child = next(iter(children_of(self._init.pid)), 0)  # its pid as everybody outside sees it
        if self._worker is not None:
            self._worker.listen()
        if self._guard is None:
            self._make_known()

    def _hear_faults(self) -> None:
        """Wait until the child is at its work, or at what takes longer than we can wait; or says what it cannot do.

        The other end is closed by exec, and by a worker before its body runs. Asked again, it does not wait.
        """
        said = b""
        while not said.endswith(LONG_STEP):
            try:
                piece = os.read(self._faults, 4096)
            except BlockingIOError:  # something of the tree holds it, which it cannot by itself
                break
            if not piece:
                self._is_heard_out = True
                break
            said += piece
        self._error += said.replace(LONG_STEP, b"").decode("utf-8", "replace")
        os.set_blocking(self._faults, False)

    def _own_child(self) -> ShimChild:
        return ShimChild(self._spec, self._dir.attempt_id, self._group, self._for_worker)

    def _start_in_namespace(self, body: Body, ends: ChildEnds) -> None:
        """Where the kernel refuses after all what it allowed at the agent's start, the work runs without."""
        title = f"actorgrid: init of {self._dir.attempt_id}"
        try:
            self._init = enter_pid_namespace(lambda: self._own_child().run(body, INIT_PID, ends), title)
        except OSError as error:
            self._containment = Containment("none", why=f"pid_namespace: {error.strerror}")
            return
        self._enclosure = InitEnclosure(self._init.pid, start_ticks(self._init.pid) or 0)
        self._poll.register(self._init.reports, select.POLLIN)

    # -- running

    def _turn(self) -> None:
        if not self._late:
            self._timer.set(self._deadline)
        ready = self._poll.poll(self._wait_ms(time.monotonic()))
        # The deadline is looked at first after every pause, before anything that could move it, and again before each
        # thing that is passed on: between two of them we may be paused, too.
        self._look_at_clock()
        for fd, _ in ready:
            self._ready(fd)
        now = time.monotonic()
        if now >= self._timeout_at and not self._reason:
            self._stop("timed_out", self._spec["grace_s"])
        if now >= self._kill_at:
            self._kill()
        if now >= self._guard_again_at:
            self._tell_guard(now)
        if self._memory_bytes and not self._prepares and now >= self._memory_check_at:
            self._check_memory(now)
        for stream in self._streams:
            if stream.blocked_until and (self._late or now >= stream.blocked_until):
                self._carry(stream)
                if stream.pipe is not None and not stream.blocked_until:
                    self._poll.register(stream.pipe, select.POLLIN)
        self._reap()
        if self._channels is not None:
            self._channels.turn(now)
        if self._checkpoints is not None and self._status is None and not self._prepares:
            self._checkpoints.turn(now)

    def _wait_ms(self, now: float) -> int:
        is_ending = self._kill_at <= now or self._status is not None
        until = KILL_AGAIN_S if is_ending else min(60.0, self._kill_at - now)
        if not is_ending and not self._reason:
            until = min(until, self._timeout_at - now)
        if self._memory_bytes and not self._prepares:
            until = min(until, self._memory_check_at - now)
        if any(stream.blocked_until for stream in self._streams):
            until = min(until, FULL_DISK_RETRY_S)
        if self._guard is not None and self._guard.socket is None:
            until = min(until, GUARD_AGAIN_S)
        if self._channels is not None:
            until = min(until, self._channels.wait_s())
        if self._checkpoints is not None and self._status is None:
            until = min(until, self._checkpoints.wait_s(now))
        # Rounded up: cut off, the wait would end just before its time, with nothing to do yet.
        return max(0, int(until * 1000) + 1)

    def _ready(self, fd: int) -> None:
        if fd == self._wake:
            os.read(self._wake, 512)
        elif fd == self._timer.fd:
            self._timer.read()
        elif self._init is not None and fd == self._init.reports:
            self._poll.unregister(fd)
            status = self._init.status()
            if status is not None:
                self._first_ended(status)
        elif self._guard is not None and self._guard.socket is not None and fd == self._guard.socket.fileno():
            self._poll.unregister(fd)
            self._guard.lost()
        elif fd == self._faults:
            self._hear_faults()
            if self._is_heard_out:  # all that was to be done before is done, or has failed
                self._poll.unregister(fd)
                self._begin_time()
        elif self._agents.ready(fd):
            return
        elif self._worker is not None and fd == self._worker.fileno():
            self._read_worker(self._worker)
        elif self._channels is not None and self._channels.ready(fd):
            return
        else:
            for stream in self._streams:
                if stream.pipe == fd:
                    self._carry(stream)
                    if stream.pipe is None or stream.blocked_until:
                        self._poll.unregister(fd)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._init is not None and pid == self._init.pid:
                if self._status is None:
                    # It may have told before it left, since we last looked; else it was killed, and everything with it.
                    told = self._init.status()
                    self._first_ended(signal.SIGKILL if told is None else told)
            elif pid == self._child and self._init is None:
                self._first_ended(status)
            elif self._checkpoints is not None and self._checkpoints.child_ended(pid, status):
                continue
            elif self._channels is not None:
                self._channels.child_ended(pid, status, time.monotonic())

    def _first_ended(self, status: int) -> None:
        """Deal with the end of the command or worker itself."""
        # First: what ended after its deadline was isolated, whatever its exit code says.
        self._look_at_clock()
        self._status = status
        if self._terminal is not None:
            self._terminal.work_has_ended()
        if not self._reason:
            self._reason = "exited"
        # What it left running goes too: an attempt that ended holds nothing.
        if self._anything_lives():
            self._terminate(min(self._spec["grace_s"], 1.0))

    def _anything_lives(self) -> bool:
        if self._enclosure.populated():
            return True
        # What root moved elsewhere is still below us, its subreaper.
        return self._init is None and bool(living(descendants(os.getpid())))

    def _finished(self) -> bool:
        if self._status is None:
            return False
        if self._anything_lives():
            if self._kill_at == float("inf"):
                self._terminate(0.0)
            return False
        return True

    # -- ending

    def _stop(self, reason: str, grace_s: float) -> None:
        """SIGTERM to the tree now, SIGKILL after the grace. The first reason stays; a shorter grace counts."""
        if self._checkpoints is not None and self._checkpoints.is_last_heard(reason):
            return  # nothing of the work lives
        if not self._reason:
            self._reason = reason
        self._terminate(grace_s)

    def _look_at_clock(self) -> None:
        """Kill the work once the deadline has passed, and take nothing more of what it says or left."""
        if not self._late and boot_seconds() >= self._deadline:
            self._late = True
            if not self._reason:
                self._reason = "isolated"
            self._kill_at = 0.0  # the lease is over: no grace
            self._kill()

    def _kill(self) -> None:
        self._enclosure.kill()
        if self._group is not None:
            self._group.kill()  # one that only limits memory
        if self._init is None and not self._enclosure.populated():
            kill_descendants(os.getpid())

    def _terminate(self, grace_s: float) -> None:
        if self._channels is not None:
            self._channels.work_has_ended()
        if self._kill_at == float("inf"):
            for pid in {*self._enclosure.members(), *([] if self._init else living(descendants(os.getpid())))}:
                send(pid, signal.SIGTERM)
                if self._terminal is not None:
                    send(pid, signal.SIGHUP)  # its terminal goes, which is what shells end for
                # One that is stopped takes the SIGTERM only when it goes on.
                send(pid, signal.SIGCONT)
        self._kill_at = min(self._kill_at, time.monotonic() + grace_s)

    def _check_memory(self, now: float) -> None:
        self._memory_check_at = now + MEMORY_CHECK_S
        used = tree_rss_bytes(os.getpid()) + (own_shared_memory_bytes(self._child) if uid_of(self._spec) else 0)
        used -= self._checkpoints.packer_rss_bytes if self._checkpoints else 0
        self._max_tree_rss = max(self._max_tree_rss, used)
        if used > self._memory_bytes or (self._group is not None and self._group.was_exceeded()):
            if not self._reason or self._reason == "exited":
                self._reason = "memory"
            self._kill_at = 0.0

    def _finish(self) -> None:
        # Before the rest of its output: where the work has filled the disk, that waits for the room.
        remove_unread(self._spec, self._dir, self._reason)
        carry_all(self._streams, self._carry)
        if self._channels is not None:
            self._channels.close_all()
        if self._kill_at < float("inf"):
            remove_container(self._spec)  # what was to end with its client, and is not one of its processes
        for stream in self._streams:
            stream.close()
        if self._group is not None:
            # Asked before it is removed, for what the kernel counted goes with it.
            if self._group.was_exceeded() and self._reason == "exited":
                self._reason = "memory"
            self._group.remove()
        if self._checkpoints is not None and not self._late:
            self._kill_at = float("inf")  # from now on deadlines are taken again: the lease is to last
            has_succeeded = self._reason == "cancelled" or (self._reason == "exited" and self._status == 0)
            self._checkpoints.last(has_succeeded, self._packing_goes_on)
        if not self._late:
            has_pack = self._status == 0 and self._reason in ("", "exited")
            self._collected = collect_wanted(self._spec, self._dir, self._cwd, with_pack if has_pack else None)
        if self._checkpoints is not None:
            self._checkpoints.clear()
        if self._spec.get("working_dir"):
            remove_tree(self._dir.own_cwd)
        remove_secrets(self._spec)
        self._leave_status(self._dir, self._started_at)
        if self._guard is not None:
            self._guard.done()

    def _packing_goes_on(self) -> bool:
        """Hear what is said while the last checkpoint is packed; whether it is still wanted."""
        for fd, event in self._poll.poll(PACKING_LOOK_MS):
            if event & select.POLLNVAL:
                self._poll.unregister(fd)  # of what is closed by now
            else:
                self._ready(fd)
        self._reap()
        return boot_seconds() < self._deadline

    def _leave_status(self, directory: AttemptDir, started_at: float, *, durably: bool = True) -> WorkStatus:
        # Before the status is written: whoever finds that takes the attempt for over, and looks for its result.
        take_draft(self._spec, directory, self._late)
        status = self._status or 0
        signal_number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if signal_number is None else None
        self._hear_faults()
        if self._error and self._reason == "exited":
            self._reason = "refused"
        max_rss_bytes, cpu_s = self._use()
        left: WorkStatus = {
            "reason": self._reason or "exited",
            "exit_code": code,
            "signal": signal_number,
            "oom_kills": self._oom_kills.count if signal_number == signal.SIGKILL else 0,
            "error": self._error,
            "started_at": started_at,
            "ended_at": time.time(),
            "max_rss_bytes": max_rss_bytes,
            "cpu_s": round(cpu_s, 4),
            "dropped": {"stdout": self._streams[0].dropped, "stderr": self._streams[1].dropped},
            "result_bytes": directory.result_bytes(),
            "containment": self._containment.kind,
        }
        if self._collected is not None:
            left["outputs"] = self._collected.to_plain()
        left = directory.write_status(left, durably=durably)
        remove_record(directory.path)
        return left

    def _use(self) -> tuple[int, float]:
        """The most memory that the work took, in bytes, and its CPU time, in seconds."""
        tree = resource.getrusage(resource.RUSAGE_CHILDREN)
        return max(tree.ru_maxrss * 1024, self._max_tree_rss), tree.ru_utime + tree.ru_stime

    def _carry(self, stream: OutputStream) -> bool:
        """Pass on some of what the work wrote, or let go of it when it wrote too late."""
        self._look_at_clock()
        carried = stream.discard() if self._late else stream.drain(time.monotonic())
        if self._terminal is not None and self._channels is not None:
            self._channels.terminal_wrote()
        return carried

    # -- the agent and the worker

    def _state(self) -> list[Any]:
        return ["state", {"pid": self._child}]

    def _open_work(self) -> OpenWork | None:
        """The work that people may come to now."""
        if self._status is not None or self._late or self._reason:
            return None
        return self._open_work_of(self._dir.attempt_id, self._spec, self._env)

    def _open_work_of(self, attempt_id: str, spec: WorkSpec, env: dict[str, str]) -> OpenWork:
        init_pid = 0 if self._init is None else self._init.pid
        return OpenWork(attempt_id, spec, env, self._group, init_pid, not self._prepares, self._child)

    def _agent_gone(self, _token: str) -> None:
        """Go on alone: the lease bounds how long."""

    def _obey(self, frame: list[Any], _token: str) -> bool:
        match frame:
            case ["renew", float(deadline)]:
                self._renew(deadline)
            case ["stop", str(reason), (int() | float()) as grace_s]:
                self._stop(reason, float(grace_s))
            case ["limits", int(memory_bytes), *devices]:
                self._memory_bytes = memory_bytes
                if isinstance(self._group, KillGroup) and memory_bytes:
                    self._group.limit_memory(memory_bytes)
                if not self._device_limits.change(self._group, devices):
                    self._stop("stopped", 0.0)  # what it was promised to be held to does not hold it
            case ["worker", list(inner)] if self._worker is not None:
                self._oom_kills.begin()  # of a pool's worker, each session begins anew
                self._look_at_clock()
                if not self._late and not self._worker.tell(encode_frame(inner)):
                    self._stop("stopped", 0.0)  # it has not read for very long
            case _:
                return False
        return True

    def _renew(self, deadline: float) -> None:
        if self._late or self._kill_at == 0.0:
            return  # what is being killed stays so
        self._deadline = deadline
        self._for_guard.set(deadline)
        self._for_worker.set(deadline)

    def _read_worker(self, worker: WorkerSocket) -> None:
        frames = worker.read()
        self._look_at_clock()
        for frame in [] if self._late else frames:
            self._agents.tell_all(["worker", frame])
        if worker.closed:
            self._worker = None
