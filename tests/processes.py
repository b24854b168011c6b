"""What tests ask of processes: whether one lives, and to wait for what it does."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil

from tests.patience import Patience

PF_EXITING = 0x4
"""In the flags of ``/proc/PID/stat``: the kernel is ending it (include/linux/sched.h)."""
EXIT_S = 60.0


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not. One that the kernel is ending already is waited for: it runs none
    of its code any more, and its files are closed, as whoever holds the other end hears, before it is a zombie.
    """
    try:
        if _is_exiting(pid):
            ended = os.pidfd_open(pid)
            try:
                select.select([ended], [], [], EXIT_S)
            finally:
                os.close(ended)
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
        return False


def _is_exiting(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        after_name = file.read().rpartition(")")[2].split()  # from the third field on; the flags are the ninth
    return bool(int(after_name[6]) & PF_EXITING)


def titles_below(pid: int) -> dict[int, str]:
    """The command lines of all processes below one, by pid. Those that end while they are asked are left out: a
    worker may, at any moment. A zombie has none.
    """
    found = {}
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            found[process.pid] = " ".join(process.cmdline())
    return {pid: title for pid, title in found.items() if title}


def server_below(pid: int, server: str) -> int:
    """The pid of the one server of this name (as in its title, ``actorgrid: NAME``) below a process."""
    (found,) = [each for each, title in titles_below(pid).items() if title.startswith(f"actorgrid: {server}")]
    return found


def until(condition: Callable[[], Any], what: str, within_s: float = 60.0) -> Any:
    """The first true value of *condition*; fails the test when there is none in time."""
    patience = Patience(within_s)
    while True:
        value = condition()
        if value:
            return value
        if patience.is_over:
            raise AssertionError(f"not within {within_s:g} s: {what}")
        patience.pause()
