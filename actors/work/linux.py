"""The few Linux calls that work needs and Python lacks."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterable

from actorgrid.errors import HostError

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
_libc.prctl.restype = ctypes.c_int

MARK_ATTEMPT = "ACTORGRID_ATTEMPT"
MARK_HOST = "ACTORGRID_HOST"
MARK_ROOM = 160


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise HostError(f"prctl({option}, {value}) failed: {os.strerror(number)}")


def die_with_parent(parent_pid: int, with_signal: int = signal.SIGKILL) -> None:
    """Have the kernel send us *with_signal* when the thread that forked us ends; leave at once if it is gone."""
    _prctl(_PR_SET_PDEATHSIG, with_signal)
    if os.getppid() != parent_pid:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies (a child subreaper)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def boot_seconds() -> float:
    """Seconds since boot, suspended time included: what leases are counted on."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Names this boot of the machine."""
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


def room_for_mark() -> str:
    """A value for MARK_ATTEMPT in the environment a process is started with, to be overwritten by :func:`mark`."""
    return "-" * MARK_ROOM


def mark(host_tag: str, work_id: str) -> None:
    """Write the marks of *work_id* over the room kept in this process's first environment.

    ``/proc/PID/environ`` shows the memory a process was started with; ``os.environ`` does not reach it. With
    the marks written there, a process that was only forked (never exec'd) can be found too, and so can
    every one it forks. Does nothing where the room is missing or too small.
    """
    with open("/proc/self/environ", "rb") as file:
        found = file.read()
    room = f"{MARK_ATTEMPT}={'-' * MARK_ROOM}".encode()
    at = found.find(room)
    text = f"{MARK_ATTEMPT}={work_id}\0{MARK_HOST}={host_tag}\0".encode()
    if at < 0 or len(text) > len(room):
        return
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    env_start = int(fields[47])  # field 50 of proc(5), counted after the command name
    if env_start:
        ctypes.memmove(env_start + at, text.ljust(len(room), b"\0"), len(room))
