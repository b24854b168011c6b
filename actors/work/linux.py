"""The few Linux calls that work needs and Python lacks."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import time
from collections.abc import Callable, Iterable
from functools import cache

from actorgrid.errors import HostError

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
_libc.prctl.restype = ctypes.c_int

_libc.unshare.argtypes = [ctypes.c_int]
_libc.setns.argtypes = [ctypes.c_int, ctypes.c_int]
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_libc.capset.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
_libc.timerfd_create.argtypes = [ctypes.c_int, ctypes.c_int]
_libc.timerfd_settime.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x0002_0000, 0x1000_0000, 0x2000_0000
CLONE_NEWUTS, CLONE_NEWIPC = 0x0400_0000, 0x0800_0000
MS_RDONLY, MS_REMOUNT = 1, 32
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_SLAVE = 2, 4, 8, 1 << 12, 1 << 14, 1 << 19
_CAP_VERSION_3 = 0x2008_0522
_TFD_TIMER_ABSTIME = 1

MARK_ATTEMPT = "ACTORGRID_ATTEMPT"
MARK_HOST = "ACTORGRID_HOST"
MARK_ROOM = 160
KERNEL_FILE_BYTES = 16 * 1024


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise HostError(f"prctl({option}, {value}) failed: {os.strerror(number)}")


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill us when the thread that forked us ends; leave at once if it is gone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def end_with_parent() -> None:
    """As :func:`die_with_parent`, for one that cannot see its parent's pid and learns of its end in another way too."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies (a child subreaper)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def boot_seconds() -> float:
    """Seconds since boot, suspended time included: what leases are counted on."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _checked(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer


def unshare(flags: int) -> None:
    """Leave namespaces; for CLONE_NEWPID, our children will be in the new one. Raises OSError."""
    _checked(_libc.unshare(flags))


def open_namespace(pid: int, name: str) -> int:
    """A descriptor of the namespace of that name (``user``, ``pid``, ``mnt``) of a process. Raises OSError."""
    return os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)


def enter_namespace(fd: int) -> None:
    """Enter a namespace, and close its descriptor; of one of pids, our children will be in it. Raises OSError."""
    try:
        _checked(_libc.setns(fd, 0))
    finally:
        os.close(fd)


def namespaces_apart(pid: int, other: int, names: Iterable[str]) -> list[str]:
    """Those of the named kinds of namespaces in which two processes are not together. Raises OSError."""
    return [name for name in names if os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/{other}/ns/{name}")]


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """mount(2). Raises OSError."""
    fs, data = (None if text is None else text.encode() for text in (kind, options or None))
    _checked(_libc.mount(os.fsencode(source), os.fsencode(target), fs, flags, data))


def drop_capabilities() -> None:
    """Give up every capability that our uid does not have by itself. Raises OSError."""
    header = (ctypes.c_uint32 * 2)(_CAP_VERSION_3, 0)
    _checked(_libc.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())))


class BootTimer:
    """A descriptor that becomes readable at a time on CLOCK_BOOTTIME, and at once after a suspension that went past it.

    A wait with a timeout is no substitute: that is counted on CLOCK_MONOTONIC, which stands still while the machine
    is suspended, so that what was to be done in 9 s is done 9 s after it woke.
    """

    def __init__(self) -> None:
        """Raises OSError."""
        self.fd = _checked(_libc.timerfd_create(time.CLOCK_BOOTTIME, os.O_CLOEXEC | os.O_NONBLOCK))
        self._at = float("inf")

    def set(self, at: float) -> None:
        """Become readable at *at* (``inf``: never), instead of at the time set before."""
        if at == self._at:
            return
        self._at = at
        if at == float("inf"):
            seconds, nanoseconds = 0, 0
        else:
            nanoseconds = max(1, int(at * 1e9))  # 0 would disarm it
            seconds, nanoseconds = divmod(nanoseconds, 10**9)
        value = (ctypes.c_long * 4)(0, 0, seconds, nanoseconds)
        _checked(_libc.timerfd_settime(self.fd, _TFD_TIMER_ABSTIME, ctypes.byref(value), None))

    def read(self) -> None:
        """Make it unreadable until the next time is set."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            return
        self._at = float("inf")

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)


@cache
def boot_id() -> str:
    """The id of this boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def close_all_but(keep: Iterable[int]) -> None:
    """Close every descriptor of this process except *keep*."""
    low = 0
    for fd in sorted(set(keep)):
        if fd > low:  # closerange(0, 0) closes everything there is, on kernels with close_range
            os.closerange(low, fd)
        low = fd + 1
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    os.closerange(low, highest + 1)


def mark_placeholder() -> str:
    """A value for MARK_ATTEMPT in the environment a process is started with, to be overwritten by :func:`mark`."""
    return "-" * MARK_ROOM


class _MarkRoom:
    """Where this process keeps its marks: an address in the memory of its first environment, 0 until they are made."""

    address = 0


def mark(host_tag: str, work_id: str) -> None:
    """Write the marks of *work_id* over the room kept in this process's first environment, or over earlier marks.

    ``/proc/PID/environ`` shows the memory a process was started with; ``os.environ`` does not reach it. With
    the marks written there, a process that was only forked (never exec'd) can be found too, and so can
    every one it forks. Does nothing where the room is missing or too small.
    """
    room = f"{MARK_ATTEMPT}={'-' * MARK_ROOM}".encode()
    text = f"{MARK_ATTEMPT}={work_id}\0{MARK_HOST}={host_tag}\0".encode()
    if len(text) > len(room):
        return
    if not _MarkRoom.address:
        with open("/proc/self/environ", "rb") as file:
            found = file.read()
        at = found.find(room)
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        env_start = int(fields[47])  # field 50 of proc(5), counted after the command name
        if at < 0 or not env_start:
            return
        _MarkRoom.address = env_start + at
    ctypes.memmove(_MarkRoom.address, text.ljust(len(room), b"\0"), len(room))


def failure_in_child(attempt: Callable[[], object]) -> int:
    """The error number that *attempt* fails with, made in a child that dies with us; 0: it does not fail."""
    read, write = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        number = errno.EIO
        try:
            die_with_parent(parent)
            attempt()
            number = 0
        except OSError as error:
            number = error.errno or errno.EIO
        finally:
            os.write(write, struct.pack("=i", number))
            os._exit(0)
    os.close(write)
    with open(read, "rb", buffering=0) as pipe:
        said = pipe.read(4) or b""
    os.waitpid(child, 0)
    return int(struct.unpack("=i", said)[0]) if len(said) == 4 else errno.EIO


def read_kernel_file(path: str) -> bytes:
    """A file that the kernel makes as it is read, of /proc or a cgroup. Raises OSError.

    A Python file asks five questions more of the kernel each time, which cost more than what is read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = [os.read(fd, KERNEL_FILE_BYTES)]
        while pieces[-1]:
            pieces.append(os.read(fd, KERNEL_FILE_BYTES))
    finally:
        os.close(fd)
    return b"".join(pieces)
