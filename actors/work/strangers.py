"""Ends a process that holds a device without a grant, once it is certain which one it is, and that it may be ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection

from .linux import MARK_HOST
from .messages import EndUngranted
from .process_tree import environment_of, owners_of, read_process, start_ticks

DEVICE_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")
"""What a process has open that uses a device. Without one it is not the process that the driver means: a driver may
count processes of another pid namespace than ours."""
_ANCESTORS_MAX = 64
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_CLOCK_STEP_S = 1.0
"""Start times are told in ticks, and counted from a moment that is not quite CLOCK_BOOTTIME's."""


def end_stranger(request: EndUngranted, host_tag: str, live: Collection[str]) -> str:
    """Signal the process; why it is left alone, or ``""``. *live*: the attempts, leases and workers of this host."""
    try:
        process = os.pidfd_open(request.pid)  # from here on it is this one, whoever gets its number later
    except OSError as error:
        return f"it cannot be held: {error.strerror}"
    try:
        why_not = _why_left_alone(request, host_tag, live)
        if not why_not:
            signal.pidfd_send_signal(process, signal.SIGKILL if request.hard else signal.SIGTERM)
    except OSError as error:
        return f"it cannot be ended: {error.strerror}"
    finally:
        os.close(process)
    return why_not


def _why_left_alone(request: EndUngranted, host_tag: str, live: Collection[str]) -> str:
    started = start_ticks(request.pid)
    if started is None or started * _TICK_S > request.since_s + _CLOCK_STEP_S:
        return "it is another process than the one that was seen"
    owner = owners_of([request.pid], host_tag).get(request.pid, "")
    if owner != request.work_id:
        return f"it is of {owner or 'no work here'} now"
    if owner in live:
        return f"{owner} runs"
    return "" if owner else _why_not_nobodys(request.pid)


def _why_not_nobodys(pid: int) -> str:
    """Why a process without a mark of ours is not to be ended, whatever it holds. Raises OSError."""
    agent = {os.getpid(), os.getppid()} - {1}  # its servers are all below one process
    if pid == 1 or pid in _line_of(os.getpid()) or not agent.isdisjoint(_line_of(pid)):
        return "it is the system's, or the agent's"
    if MARK_HOST in environment_of(pid):
        return "it is work of another agent on this machine"
    if not _has_device_open(pid):
        return "it has no device file open: the driver means another process than ours of that number"
    return ""


def _line_of(pid: int) -> list[int]:
    """The process, its parent, and theirs."""
    line = [pid]
    while len(line) < _ANCESTORS_MAX and (facts := read_process(line[-1])) is not None and facts.parent:
        line.append(facts.parent)
    return line


def _has_device_open(pid: int) -> bool:
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        try:
            if os.readlink(f"{folder}/{name}").startswith(DEVICE_FILES):
                return True
        except OSError:  # closed meanwhile
            continue
    return False
