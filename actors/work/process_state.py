"""What a process looks like from outside: whether a call has left it as it was, so that it may serve another one.

Read from /proc by whoever looks after the process; the process itself is not asked, for it has run users' code.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass

from .linux import read_kernel_file

_KEPT = (
    b"Uid Gid Groups Threads SigBlk SigIgn SigCgt NoNewPrivs Seccomp "
    b"CapInh CapPrm CapEff CapBnd CapAmb Cpus_allowed Mems_allowed".split()
)
KEPT_LINES = re.compile(rb"^(?:%s):.*" % b"|".join(_KEPT), re.MULTILINE)
"""Of /proc/PID/status, what a call must leave as it was. Its directory, umask and variables are set anew anyway."""
SIZE_LINES = re.compile(rb"^(VmRSS|VmHWM):\s*(\d+)", re.MULTILINE)
_NICE, _CHILDREN_UTIME, _CHILDREN_STIME = 16, 13, 14  # of /proc/PID/stat, counted after the command name
_TICKS_S = 1.0 / os.sysconf("SC_CLK_TCK")
_CPU_CLOCK_OF_PROCESS = 2  # CPUCLOCK_SCHED: exact, where the fields of stat count ticks


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state of one process at one moment. Two that are equal differ in no more than memory and CPU time."""

    kept: tuple[bytes, ...]
    """Lines of its status: owner, threads, signals, capabilities, CPUs."""
    descriptors: tuple[tuple[str, str], ...]
    """Its open descriptors and what they are."""
    limits: bytes
    root: str
    nice: int


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """The memory that a process takes, and the CPU time that it has taken with its children."""

    rss_bytes: int
    max_rss_bytes: int
    cpu_s: float


def state_and_use(pid: int) -> tuple[ProcessState, ProcessUse] | None:
    """The state of a process and what it takes, or None when it is gone."""
    try:
        status = read_kernel_file(f"/proc/{pid}/status")
        fields = read_kernel_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        limits = read_kernel_file(f"/proc/{pid}/limits")
        names = sorted(os.listdir(f"/proc/{pid}/fd"), key=int)
        descriptors = tuple((name, os.readlink(f"/proc/{pid}/fd/{name}")) for name in names)
        root = os.readlink(f"/proc/{pid}/root")
        children_s = (int(fields[_CHILDREN_UTIME]) + int(fields[_CHILDREN_STIME])) * _TICKS_S
        cpu_s = time.clock_gettime(~pid << 3 | _CPU_CLOCK_OF_PROCESS) + children_s
    except (OSError, ValueError, IndexError):
        return None
    kept = tuple(KEPT_LINES.findall(status))
    sizes = {b"VmRSS": 0, b"VmHWM": 0, **{name: int(size) * 1024 for name, size in SIZE_LINES.findall(status)}}
    state = ProcessState(kept, descriptors, limits, root, int(fields[_NICE]))
    return state, ProcessUse(sizes[b"VmRSS"], sizes[b"VmHWM"], cpu_s)


def reset_peak(pid: int) -> None:
    """Have the kernel count the most memory of a process anew, where it can."""
    try:
        fd = os.open(f"/proc/{pid}/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    with suppress(OSError):
        os.write(fd, b"5")
    os.close(fd)
