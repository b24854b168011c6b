"""The shim: the small parent of one attempt or pool worker. It outlives the agent and keeps what must not be lost.

It starts the command or worker in a child, carries its output into bounded files, enforces time and memory limits,
and ends the whole tree when told, when a limit is passed, or at its deadline: a time on CLOCK_BOOTTIME (which a
suspended machine does not stop), by which nothing of the attempt lives any more unless the agent has given a later
one. The agent gives one as often as the host's lease is renewed (docs/leases.md). As a subreaper the shim is the parent
of every orphan in its tree.

Control socket (frames; the first must be ["hello", token])::

    ["renew", deadline]  ["stop", reason, grace_s]  ["limits", memory_bytes]  ["worker", frame]     from the agent
    ["state", {"pid"}]  ["worker", frame]                                                 to the agent

The status it leaves (``status.msgpack``)::

    reason       exited | cancelled | preempted | stopped | timed_out | memory | isolated | refused (never started)
    exit_code, signal (None where it does not apply), error (text, for refused), started_at, ended_at,
    max_rss_bytes, cpu_s, dropped {stdout, stderr} bytes, result_bytes, isolated_s

The agent learns of the end by the socket closing, and then reads the status.
"""

from __future__ import annotations

import gc
import hmac
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgpack
from setproctitle import setproctitle

from actorgrid.errors import ActorGridError
from actorgrid.transports.frames import FrameDecoder, encode_frame

from .attempt_dir import AttemptDir
from .limits import MemoryGroup, limit_process, writable_cgroup
from .linux import MARK_HOST, adopt_orphans, boot_seconds, close_all_but, die_with_parent, mark
from .output import FULL_DISK_RETRY_S, OutputStream
from .process_tree import children_of, descendants, kill_descendants, living, send, tree_rss_bytes
from .untrusted_files import open_to_write

READ_BYTES = 64 * 1024
MAX_CONTROLLERS = 4
MAX_CONTROL_FRAME = 4 * 2**20
MEMORY_CHECK_S = 0.25
KILL_AGAIN_S = 0.01
DRAIN_PATIENCE_S = 10.0  # how long output of a dead tree waits for room on a full disk
EXIT_NOT_STARTED = 127
EXIT_CRASHED = 70

Body = Callable[[dict[str, Any], list[socket.socket]], int]


class _Controller:
    """One connection from an agent."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.decoder = FrameDecoder(MAX_CONTROL_FRAME)
        self.known = False


class Shim:
    """The loop of one shim."""

    def __init__(self, directory: AttemptDir, spec: dict[str, Any], listener: socket.socket, deadline: float) -> None:
        self._dir = directory
        self._spec = spec
        self._listener = listener
        self._controllers: dict[int, _Controller] = {}
        self._poll = select.poll()
        self._deadline = deadline
        self._timeout_at = float("inf")
        self._memory_bytes: int = spec["memory_bytes"]
        self._memory_check_at = 0.0
        self._kill_at = float("inf")
        self._reason = ""
        self._status: int | None = None
        self._usage: Any = None
        self._child = 0
        self._error = ""
        self._group: MemoryGroup | None = None
        self._streams: list[OutputStream] = []
        self._worker: socket.socket | None = None
        self._worker_decoder = FrameDecoder(MAX_CONTROL_FRAME)
        self._to_worker = bytearray()
        self._started_at = time.time()
        self._max_tree_rss = 0

    # -- starting

    def run(self, body: Body, inherited: list[socket.socket]) -> None:
        """Start the child, see it through, leave the status."""
        self._wake, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._stop("stopped", self._spec["grace_s"]))
        self._make_group()
        self._start(body, inherited)
        self._poll.register(self._wake, select.POLLIN)
        self._listener.setblocking(False)
        self._poll.register(self._listener, select.POLLIN)
        if self._spec["timeout_s"] is not None:
            self._timeout_at = time.monotonic() + self._spec["timeout_s"]
        while not self._finished():
            self._turn()
        self._finish()

    def _make_group(self) -> None:
        folder = writable_cgroup() if self._memory_bytes else None
        if folder is not None:
            try:
                self._group = MemoryGroup(folder, self._dir.attempt_id, self._memory_bytes)
            except OSError:
                self._group = None  # sampling does it

    def _start(self, body: Body, inherited: list[socket.socket]) -> None:
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        fault_read, fault_write = os.pipe2(os.O_CLOEXEC)
        child_control: socket.socket | None = None
        if self._spec["kind"] == "worker":
            self._worker, child_control = socket.socketpair()
            inherited = [*inherited, child_control]
        # Before the work runs, which could put something else there. It gets neither: both are closed when it starts.
        files = [open_to_write(self._dir.path, path.name, os.O_APPEND) for path in (self._dir.stdout, self._dir.stderr)]
        shim_pid = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            self._be_child(body, shim_pid, (out_write, err_write, fault_write), inherited)
        for fd in (out_write, err_write, fault_write):
            os.close(fd)
        for end in inherited:
            end.close()
        limit = self._spec["max_output_bytes"]
        self._streams = [
            OutputStream(pipe, file, limit) for pipe, file in zip((out_read, err_read), files, strict=True)
        ]
        for stream in self._streams:
            self._poll.register(stream.pipe or 0, select.POLLIN)
        with open(fault_read, "rb") as faults:
            self._error = faults.read(4096).decode("utf-8", "replace")
        if self._worker is not None:
            self._poll.register(self._worker, select.POLLIN)

    def _be_child(
        self,
        body: Body,
        shim_pid: int,
        pipes: tuple[int, int, int],
        inherited: list[socket.socket],
    ) -> NoReturn:
        out, err, fault = pipes
        spec = self._spec
        step = "set up"
        try:
            die_with_parent(shim_pid)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.setpgid(0, 0)
            if self._group is not None:
                self._group.enter()
            limit_process()
            step = "open standard input"
            stdin = os.open(spec["stdin"] or os.devnull, os.O_RDONLY)
            for source, target in ((stdin, 0), (out, 1), (err, 2)):
                os.dup2(source, target)
            close_all_but([0, 1, 2, fault, *(end.fileno() for end in inherited)])
            os.umask(0o022)
            step = f"enter {spec['cwd']}"
            os.chdir(spec["cwd"])
            if boot_seconds() >= self._deadline:
                os._exit(EXIT_NOT_STARTED)  # the shim looks at the clock before it looks at us
            if spec["kind"] == "command":
                step = f"run {spec['command'][0]}"
                os.execvpe(spec["command"][0], spec["command"], spec["env"])  # nosec B606 - the job itself
        except (OSError, ValueError, ActorGridError) as error:
            why = (error.strerror or "") if isinstance(error, OSError) else str(error)
            os.write(fault, f"cannot {step}: {why}".encode()[:4000])
            os._exit(EXIT_NOT_STARTED)
        os.close(fault)
        try:
            setproctitle(spec["title"])
            mark(spec["env"].get(MARK_HOST, ""), self._dir.attempt_id)
            os._exit(body(spec, inherited))
        except BaseException:  # noqa: BLE001 - the outermost loop of a worker process
            traceback.print_exc()
            os._exit(EXIT_CRASHED)

    # -- running

    def _turn(self) -> None:
        ready = self._poll.poll(self._wait_ms(time.monotonic()))
        # The deadline is looked at first after every pause, before anything that could move it.
        if boot_seconds() >= self._deadline:
            self._isolate()
        for fd, _ in ready:
            self._ready(fd)
        now = time.monotonic()
        if now >= self._timeout_at and not self._reason:
            self._stop("timed_out", self._spec["grace_s"])
        if now >= self._kill_at:
            kill_descendants(os.getpid())
            if self._group is not None:
                self._group.kill()
        if self._memory_bytes and now >= self._memory_check_at:
            self._check_memory(now)
        for stream in self._streams:
            if stream.blocked_until and now >= stream.blocked_until:
                stream.drain(now)
                if stream.pipe is not None and not stream.blocked_until:
                    self._poll.register(stream.pipe, select.POLLIN)
        self._reap()

    def _wait_ms(self, now: float) -> int:
        until = 60.0
        if self._kill_at <= now or self._status is not None:
            until = KILL_AGAIN_S
        else:
            until = min(until, self._deadline - boot_seconds(), self._kill_at - now)
            if not self._reason:
                until = min(until, self._timeout_at - now)
        if self._memory_bytes:
            until = min(until, self._memory_check_at - now)
        if any(stream.blocked_until for stream in self._streams):
            until = min(until, FULL_DISK_RETRY_S)
        return max(0, int(until * 1000) + 1)

    def _ready(self, fd: int) -> None:
        if fd == self._wake:
            os.read(self._wake, 512)
        elif fd == self._listener.fileno():
            self._accept()
        elif fd in self._controllers:
            self._read_controller(self._controllers[fd])
        elif self._worker is not None and fd == self._worker.fileno():
            self._read_worker()
        else:
            for stream in self._streams:
                if stream.pipe == fd:
                    stream.drain(time.monotonic())
                    if stream.pipe is None or stream.blocked_until:
                        self._poll.unregister(fd)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child:
                self._status, self._usage = status, usage
                if not self._reason:
                    self._reason = "exited"
                # What it left running goes too: an attempt that ended holds nothing.
                if children_of(os.getpid()):
                    self._terminate(min(self._spec["grace_s"], 1.0))

    def _finished(self) -> bool:
        if self._status is None:
            return False
        if living(descendants(os.getpid())):
            if self._kill_at == float("inf"):
                self._terminate(0.0)
            return False
        return True

    # -- ending

    def _stop(self, reason: str, grace_s: float) -> None:
        """SIGTERM to the tree now, SIGKILL after the grace. The first reason stays; a shorter grace counts."""
        if not self._reason:
            self._reason = reason
        self._terminate(grace_s)

    def _isolate(self) -> None:
        if not self._reason:
            self._reason = "isolated"
        self._kill_at = 0.0  # the lease is over: no grace

    def _terminate(self, grace_s: float) -> None:
        if self._kill_at == float("inf"):
            for pid in living(descendants(os.getpid())):
                send(pid, signal.SIGTERM)
                send(pid, signal.SIGCONT)
        self._kill_at = min(self._kill_at, time.monotonic() + grace_s)

    def _check_memory(self, now: float) -> None:
        self._memory_check_at = now + MEMORY_CHECK_S
        used = tree_rss_bytes(os.getpid())
        self._max_tree_rss = max(self._max_tree_rss, used)
        if used > self._memory_bytes or (self._group is not None and self._group.was_exceeded()):
            if not self._reason or self._reason == "exited":
                self._reason = "memory"
            self._kill_at = 0.0

    def _finish(self) -> None:
        patience = time.monotonic() + DRAIN_PATIENCE_S
        for stream in self._streams:
            while stream.drain(time.monotonic()) or (stream.blocked_until and time.monotonic() < patience):
                if stream.blocked_until:
                    time.sleep(0.05)
            stream.close()
        if self._group is not None:
            if self._group.was_exceeded() and self._reason == "exited":
                self._reason = "memory"
            self._group.remove()
        code = signal_number = None
        status = self._status or 0
        if os.WIFSIGNALED(status):
            signal_number = os.WTERMSIG(status)
        else:
            code = os.WEXITSTATUS(status)
        if self._error and self._reason == "exited":
            self._reason = "refused"
        tree = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._dir.write_status(
            {
                "reason": self._reason,
                "exit_code": code,
                "signal": signal_number,
                "error": self._error,
                "started_at": self._started_at,
                "ended_at": time.time(),
                "max_rss_bytes": max(tree.ru_maxrss * 1024, self._max_tree_rss),
                "cpu_s": round(tree.ru_utime + tree.ru_stime, 4),
                "dropped": {"stdout": self._streams[0].dropped, "stderr": self._streams[1].dropped},
                "result_bytes": self._result_bytes(),
            }
        )

    def _result_bytes(self) -> int | None:
        try:
            return self._dir.result.stat().st_size
        except OSError:
            return None

    # -- the agent and the worker

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        if len(self._controllers) >= MAX_CONTROLLERS:
            connection.close()
            return
        connection.setblocking(False)
        self._controllers[connection.fileno()] = _Controller(connection)
        self._poll.register(connection, select.POLLIN)

    def _drop(self, controller: _Controller) -> None:
        if self._controllers.pop(controller.socket.fileno(), None) is None:
            return  # dropped before, when it could not be told something
        self._poll.unregister(controller.socket)
        controller.socket.close()

    def _read_controller(self, controller: _Controller) -> None:
        try:
            data = controller.socket.recv(READ_BYTES)
            if not data:
                self._drop(controller)
                return
            for frame in controller.decoder.feed(data):
                if not self._obey(controller, frame):
                    self._drop(controller)
                    return
        except BlockingIOError:
            return
        except (OSError, ActorGridError):
            self._drop(controller)  # it broke the protocol or left; the lease goes on counting

    def _obey(self, controller: _Controller, frame: list[Any]) -> bool:
        if not controller.known:
            match frame:
                case ["hello", str(token)] if hmac.compare_digest(token.encode(), self._spec["token"].encode()):
                    controller.known = True
                    self._tell(controller, ["state", {"pid": self._child}])
                    return True
            return False
        match frame:
            case ["renew", float(deadline)]:
                self._renew(deadline)
            case ["stop", str(reason), (int() | float()) as grace_s]:
                self._stop(reason, float(grace_s))
            case ["limits", int(memory_bytes)]:
                self._memory_bytes = memory_bytes
            case ["worker", list(inner)] if self._worker is not None:
                self._tell_worker(encode_frame(inner))
            case _:
                return False
        return True

    def _renew(self, deadline: float) -> None:
        if self._kill_at != 0.0:  # what is being killed stays so
            self._deadline = deadline

    def _tell(self, controller: _Controller, frame: list[Any]) -> None:
        try:
            controller.socket.sendall(encode_frame(frame))
        except OSError:
            self._drop(controller)  # it does not read: it has to come back

    def _tell_worker(self, data: bytes) -> None:
        """Queue *data*: we may not wait for a worker that is busy, the lease goes on counting."""
        if len(self._to_worker) > MAX_CONTROL_FRAME:
            self._stop("stopped", 0.0)  # it has not read for very long
            return
        self._to_worker += data
        self._flush_worker()

    def _flush_worker(self) -> None:
        if self._worker is None:
            return
        try:
            while self._to_worker:
                del self._to_worker[: self._worker.send(self._to_worker, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            pass
        except OSError:
            self._to_worker.clear()  # it is ending: its exit tells us
        self._poll.modify(self._worker, select.POLLIN | (select.POLLOUT if self._to_worker else 0))

    def _read_worker(self) -> None:
        worker = self._worker
        if worker is None:
            return
        self._flush_worker()
        try:
            data = worker.recv(READ_BYTES, socket.MSG_DONTWAIT)
            frames = self._worker_decoder.feed(data)
        except BlockingIOError:
            return  # there was only room
        except (OSError, ActorGridError):
            data, frames = b"", []
        if not data:
            self._poll.unregister(worker)
            worker.close()
            self._worker = None
            return
        for frame in frames:
            for controller in [each for each in self._controllers.values() if each.known]:
                self._tell(controller, ["worker", frame])


def listen(path: str) -> socket.socket:
    """An AF_UNIX listener only our user may connect to. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.exists(path):
            os.unlink(path)
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(16)
    except OSError:
        listener.close()
        raise
    return listener


def worker_body(spec: dict[str, Any], inherited: list[socket.socket]) -> int:
    """What the child of a function job or pool worker does after its fork; gives the exit code."""
    from . import worker

    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(0, "r", closefd=False),
        os.fdopen(1, "w", buffering=1, closefd=False),
        os.fdopen(2, "w", buffering=1, closefd=False),
    )
    gc.enable()
    worker.use_environment(spec["env"])
    if spec["kind"] == "function":
        return worker.run_job(spec)
    listener, control = inherited
    worker.serve(spec["worker"]["worker_id"], listener, control)


def run_shim(folder: str, ready: int, deadline: float) -> None:
    """Be the shim of the attempt in *folder*: called in a fresh process of its own session.

    Writes its pid to descriptor *ready* once it listens; writes nothing there when the attempt has had a shim, or when
    *deadline* has passed: then it is still free to be started.
    """
    path = Path(folder)
    directory = AttemptDir(path.parent, path.name)
    spec = directory.read_spec()
    if spec is None or boot_seconds() >= deadline or directory.take() is None:
        return
    gc.enable()
    setproctitle(f"actorgrid: shim {directory.attempt_id}")
    adopt_orphans()
    sockets = [spec["control_path"]]
    listener = listen(spec["control_path"])
    inherited: list[socket.socket] = []
    if spec["kind"] == "worker":
        inherited.append(listen(spec["worker"]["socket_path"]))
        sockets.append(spec["worker"]["socket_path"])
    os.write(ready, msgpack.packb(os.getpid()))
    os.close(ready)
    shim = Shim(directory, spec, listener, deadline)
    shim.run(worker_body, inherited)
    for name in sockets:
        try:
            os.unlink(name)
        except FileNotFoundError:
            continue
