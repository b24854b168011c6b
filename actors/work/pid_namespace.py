"""A pid namespace for one attempt, with an init of ours: when the init dies, the kernel kills all that is inside.

    shim ── init (pid 1 inside) ── command or worker ── ...

The init reaps orphans, tells the shim how the first child ended, and leaves when no child is left. It dies with its
shim: by PDEATHSIG, and because it waits on a pipe of which only the shim holds the other end. It has a /proc of its
own in a mount namespace of its own, since ``ps``, ``psutil`` and debuggers would look up its pids in the wrong one;
what is mounted on the host later appears inside too. Where we are not root it takes a user namespace as well, in
which our uid and gid stay themselves and every other looks like nobody's.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from setproctitle import setproctitle

from .linux import (
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_REC,
    MS_SLAVE,
    adopt_orphans,
    close_all_but,
    die_with_parent,
    drop_capabilities,
    end_with_parent,
    failure_in_child,
    mount,
    unshare,
)

_STATUS = struct.Struct("=ci")
_INIT, _FAILED, _ENDED = b"I", b"F", b"E"
_GO = b"G"


class Init:
    """A pid namespace as its shim sees it: the init's pid on the host, and the descriptor on which it reports."""

    def __init__(self, pid: int, reports: int, alive: int) -> None:
        self.pid = pid
        self.reports = reports
        self._alive = alive  # closes with us: the init waits for that

    def status(self) -> int | None:
        """The wait status of the first child; None when the init was killed before it could tell."""
        data = os.read(self.reports, _STATUS.size)
        return _STATUS.unpack(data)[1] if len(data) == _STATUS.size else None

    def close(self) -> None:
        """Close the descriptors; an init that lives then leaves."""
        for fd in (self.reports, self._alive):
            os.close(fd)


def enter(body: Callable[[], NoReturn], title: str) -> Init:
    """Run *body* in a child of the init of a new pid namespace.

    To be called by a subreaper with one thread: the init becomes its child. Raises OSError when the kernel does not
    allow it.
    """
    alive_read, alive_write = os.pipe2(os.O_CLOEXEC)
    report_read, report_write = os.pipe2(os.O_CLOEXEC)
    shim = os.getpid()
    maker = os.fork()
    if maker == 0:
        os.close(alive_write)
        os.close(report_read)
        _make(body, title, shim, alive_read, report_write)
    os.close(alive_read)
    os.close(report_write)
    _, status = os.waitpid(maker, 0)
    data = b""
    if status == 0:  # else it was killed, maybe without a word of an init that it made: that one leaves without a go
        with suppress(BrokenPipeError):
            os.write(alive_write, _GO)
        data = os.read(report_read, _STATUS.size)
    tag, number = _STATUS.unpack(data) if len(data) == _STATUS.size else (_FAILED, errno.EAGAIN)
    if tag != _INIT:
        os.close(alive_write)
        os.close(report_read)
        raise OSError(number, os.strerror(number))
    return Init(number, report_read, alive_write)


def try_out() -> None:
    """Run nothing in a namespace and see how it ended. Raises OSError when there is none to be had."""
    number = failure_in_child(_end_with_seven)
    if number:
        raise OSError(number, os.strerror(number))


def _end_with_seven() -> None:
    adopt_orphans()
    if enter(lambda: os._exit(7), "").status() != 7 << 8:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def _make(body: Callable[[], NoReturn], title: str, shim: int, alive: int, report: int) -> NoReturn:
    """In a process between: what is to leave namespaces is not the shim. The init is its child, and then the shim's."""
    try:
        die_with_parent(shim)
        mapped = _leave_namespaces()
        init = os.fork()
        if init == 0:
            _be_init(body, title, alive, report, mapped)
        os.write(report, _STATUS.pack(_INIT, init))
    except OSError as error:
        os.write(report, _STATUS.pack(_FAILED, error.errno or errno.EIO))
    except BaseException:  # noqa: BLE001 - no error may go up into what is a copy of the shim
        os._exit(1)
    os._exit(0)


def _leave_namespaces() -> bool:
    """Enter new namespaces; whether that took a user namespace. Raises OSError."""
    try:
        unshare(CLONE_NEWPID | CLONE_NEWNS)
        return False
    except OSError:
        uid, gid = os.geteuid(), os.getegid()
        unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, text.encode())
            finally:
                os.close(fd)
        return True


def _be_init(body: Callable[[], NoReturn], title: str, alive: int, report: int, mapped: bool) -> NoReturn:
    # PDEATHSIG would fire when the process between is gone, so the shim says when it has reaped that (its descriptors
    # close earlier, so a pipe of its own would say it too soon). From then on it fires when the shim dies.
    if os.read(alive, 1) != _GO:
        os._exit(1)
    end_with_parent()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # what is meant for the work is sent to the work
    woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        mount("none", "/", None, MS_REC | MS_SLAVE)
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        if os.readlink("/proc/self") != "1":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        first = os.fork()
    except OSError:
        os._exit(1)  # the shim finds no report of how the first child ended
    if first == 0:
        if mapped:
            drop_capabilities()
        for fd in (alive, report, woken, wake):
            os.close(fd)
        body()
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    close_all_but([0, 1, 2, alive, report, woken, wake])
    if title:
        setproctitle(title)
    poll = select.poll()
    poll.register(alive, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while True:
        with suppress(ChildProcessError):
            _reap(first, report)
            for fd, _ in poll.poll():
                if fd == alive:
                    os._exit(0)  # the shim is gone: the kernel ends what is left
                os.read(woken, 512)
            continue
        os._exit(0)  # no child is left


def _reap(first: int, report: int) -> None:
    """Reap one ended child. Raises ChildProcessError when there is no child."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        if pid == first:
            os.write(report, _STATUS.pack(_ENDED, status))
