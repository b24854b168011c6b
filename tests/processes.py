"""What tests ask of processes: whether one lives, and to wait for what it does."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

import psutil

PAUSE_MS = 5


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(condition: Callable[[], Any], what: str, within_s: float = 30.0) -> Any:
    """The first true value of *condition*; fails the test when there is none in time."""
    deadline = time.monotonic() + within_s
    pause = select.poll()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:g} s: {what}")
        pause.poll(PAUSE_MS)
