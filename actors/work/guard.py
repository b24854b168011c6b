"""The guard: one small process of a host that outlives the agent, and ends what a shim can end no more.

A cgroup dies with nobody: if agent, zygote and shims are killed together, what they started would live on. So each
shim tells the guard in what its work is kept, and the guard ends that when the connection closes without a word, or
when the work's deadline passes (which the shim sees too, unless it is stopped). It reads the deadline in memory that
it shares with the shim, so that renewing costs it nothing.

Messages on its socket, in msgpack::

    {"v": 1, "record": containment.write_record's, "folder": the attempt's}   from a shim, with the memory's descriptor
    "done"                                                                    then: nothing of it lives any more
    {"v": 1, "keep": true}                                                    from a zygote: stay, even without shims

It leaves when nobody is connected and nothing is left to be ended. There is one for each data directory. If it is
killed, the zygote starts another and the shims tell that one; if that is dead too, the next start of the agent ends
what it finds.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import select
import signal
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import msgpack
from setproctitle import setproctitle

from .containment import end_left, remove_record
from .linux import BootTimer, boot_seconds, close_all_but

VERSION = 1
MAX_MESSAGE = 64 * 1024
MAX_CONNECTIONS = 100_000
END_AGAIN_S = 0.01
END_PATIENTLY_S = 0.5
HASTY_TRIES = 500
LOOKS = 5
"""A look can miss a process that forks and exits meanwhile, and nobody looks again for what was taken to be gone."""
_DEADLINE = struct.Struct("=d")
_REAL_TIME = 1


class SharedDeadline:
    """A deadline on CLOCK_BOOTTIME that one process sets and others read, without a word between them."""

    def __init__(self, fd: int | None = None, *, inherited: bool = False, keep: bool = False) -> None:
        """New, or that of another process behind *fd*, which is closed here unless it is to be kept (*keep*).

        *inherited*: our forked children see it too.
        """
        self.fd = os.memfd_create("deadline", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, mmap.PAGESIZE)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        elif os.fstat(fd).st_size < mmap.PAGESIZE or not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            os.close(fd)
            raise OSError("the memory of a deadline may shrink")  # to read past its end would be a fatal signal
        self._memory = mmap.mmap(self.fd, mmap.PAGESIZE)  # which keeps a descriptor of its own
        if fd is not None and not keep:
            os.close(fd)
            self.fd = -1
        if not inherited:
            self._memory.madvise(mmap.MADV_DONTFORK)  # what users' code can write, it could prolong

    def set(self, deadline: float) -> None:
        """Set the deadline, for others to see."""
        _DEADLINE.pack_into(self._memory, 0, deadline)

    def get(self) -> float:
        """The deadline that was set last."""
        found: float = _DEADLINE.unpack_from(self._memory, 0)[0]
        return found

    def close(self) -> None:
        """Close the memory and its descriptor."""
        self._memory.close()
        if self.fd >= 0:
            os.close(self.fd)


class GuardLink:
    """A shim's, or zygote's, connection to the guard; where there is no guard it does nothing until asked again."""

    def __init__(self, path: str, message: dict[str, Any], deadline: SharedDeadline | None = None) -> None:
        self._path = path
        self._message = msgpack.packb({"v": VERSION, **message})
        self._deadline = deadline
        self.socket: socket.socket | None = None

    def connect(self) -> bool:
        """Connect to the guard and tell it of this work, unless it knows; whether it knows now."""
        if self.socket is not None:
            return True
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.setblocking(False)
        try:
            link.connect(self._path)
            fds = [] if self._deadline is None else [self._deadline.fd]
            socket.send_fds(link, [self._message], fds)
        except OSError:
            link.close()
            return False
        self.socket = link
        return True

    def lost(self) -> None:
        """Take note that the guard is gone."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def done(self) -> None:
        """Tell the guard that there is nothing to be guarded any more."""
        if self.socket is not None:
            with suppress(OSError):
                self.socket.send(msgpack.packb("done"))
            self.lost()


class _Guarded:
    """One connection to the guard, and what is known of its work."""

    def __init__(self, link: socket.socket) -> None:
        self.link: socket.socket | None = link
        self.record: dict[str, Any] | None = None
        self.folder = Path()
        self.deadline: SharedDeadline | None = None
        self.known = False
        self.over = False  # its end is due
        self.tries = 0
        self.again_at = 0.0

    def due_at(self) -> float:
        """The time at which something is to be done for this work, as things are now."""
        if self.over:
            return self.again_at
        return float("inf") if self.deadline is None else self.deadline.get()


class Guard:
    """The guard's loop over its connections."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._poll = select.poll()
        self._timer = BootTimer()
        self._guarded: dict[int, _Guarded] = {}
        self._left: list[_Guarded] = []
        self._poll.register(listener, select.POLLIN)
        self._poll.register(self._timer.fd, select.POLLIN)

    def run(self) -> None:
        """Run until nobody needs the guard."""
        begun = boot_seconds()
        while self._guarded or self._left or boot_seconds() < begun + END_PATIENTLY_S:
            self._timer.set(min((each.due_at() for each in self._all()), default=boot_seconds() + END_PATIENTLY_S))
            for fd, _ in self._poll.poll():
                if fd == self._timer.fd:
                    self._timer.read()
                elif fd == self._listener.fileno():
                    self._accept()
                else:
                    self._read(fd)
            now = boot_seconds()
            for each in self._all():
                if each.due_at() <= now:
                    self._end(each, now)

    def _all(self) -> list[_Guarded]:
        return [*self._guarded.values(), *self._left]

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        if len(self._guarded) >= MAX_CONNECTIONS:
            link.close()
            return
        link.setblocking(False)
        self._guarded[link.fileno()] = _Guarded(link)
        self._poll.register(link, select.POLLIN)

    def _read(self, fd: int) -> None:
        each = self._guarded[fd]
        assert each.link is not None, "what has no link is not polled"
        try:
            data, fds, _, _ = socket.recv_fds(each.link, MAX_MESSAGE, 1)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if data and not each.known and self._introduced(each, data, fds):
            return
        done = not each.known or each.record is None
        if data:
            with suppress(ValueError, msgpack.UnpackException):
                done = done or msgpack.unpackb(data) == "done"
        self._poll.unregister(fd)
        del self._guarded[fd]
        each.link.close()
        each.link = None
        if done:
            self._forget(each)
        else:
            each.over, each.again_at = True, 0.0  # its shim was killed
            self._left.append(each)

    def _introduced(self, each: _Guarded, data: bytes, fds: list[int]) -> bool:
        try:
            message = msgpack.unpackb(data)
            memory = SharedDeadline(fds.pop()) if fds else None
        except (ValueError, msgpack.UnpackException, OSError):
            return False
        each.deadline = memory
        each.known = True
        match message:
            case {"keep": True}:
                return True
            case {"record": dict(record), "folder": str(folder)} if memory is not None:
                each.record, each.folder = record, Path(folder)
                return True
        return False

    def _end(self, each: _Guarded, now: float) -> None:
        """Kill what is left of some work; again until nothing is, and less often what does not die."""
        each.over = True
        if each.record is None or not end_left(each.record, LOOKS):
            if each.link is None:
                remove_record(each.folder)
                self._left.remove(each)
                self._forget(each)
                return
            each.again_at = float("inf")  # its shim lives, and writes down how it ended
            return
        each.tries += 1
        each.again_at = now + (END_AGAIN_S if each.tries < HASTY_TRIES else END_PATIENTLY_S)

    def _forget(self, each: _Guarded) -> None:
        if each.deadline is not None:
            each.deadline.close()
            each.deadline = None


def be_guard(path: str, ready: int) -> None:
    """Be the guard that listens on *path*, unless there is one; closes *ready* when there is.

    To be called in a process of its own session. Returns when it is not needed any more.
    """
    if GuardLink(path, {"keep": False}).connect():
        return
    setproctitle("actorgrid: guard")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # of an orderly stop it hears by its connections
    with suppress(OSError):
        # The first to run when the machine wakes, and under any load: it has next to nothing to do.
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(_REAL_TIME))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        # What lies there is a dead guard's: a living one has been asked for above.
        with suppress(FileNotFoundError):
            os.unlink(path)
        listener.bind(path)
        # Before it listens: until then nobody can connect.
        os.chmod(path, 0o600)
        listener.listen(1024)
        listener.setblocking(False)
        # Not before it listens: whoever waits for this connects next.
        os.close(ready)
        Guard(listener).run()  # its socket is left lying: by now another guard may have put its own there


def remove_socket_of_gone(path: Path) -> bool:
    """Remove the socket that a guard left lying; false while one listens there.

    Only while there is no zygote, which may start another guard between the look and the removal.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError as error:
            return error.errno == errno.ENOENT  # else it listens, and has no room for one more
        else:
            return False
    return True


def start_guard(path: str) -> None:
    """Start a guard on *path*; returns when one listens there, or none can. For a process with one thread."""
    ready_read, ready_write = os.pipe2(os.O_CLOEXEC)
    middle = os.fork()
    if middle == 0:
        _detach(path, ready_write)
    os.close(ready_write)
    os.waitpid(middle, 0)
    os.read(ready_read, 1)
    os.close(ready_read)


def _detach(path: str, ready: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for target in (0, 1, 2):
                os.dup2(null, target)  # whoever reads what the agent writes is not to wait for us to end
            close_all_but([0, 1, 2, ready])
            be_guard(path, ready)
        code = 0
    finally:
        os._exit(code)
