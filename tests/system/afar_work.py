"""Functions for workers: what tasks of clients on other machines do in tests."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import actorgrid


def leave_mark(folder: str, number: int) -> int:
    """Says that it runs, in a file that says how often."""
    with open(os.path.join(folder, "marks"), "ab", buffering=0) as file:
        file.write(f"{number}\n".encode())
    return number


def echo(data: bytes) -> bytes:
    return data[::-1]


def count_to(n: int) -> Iterator[int]:
    yield from range(n)


def plus_one(n: int) -> int:
    return n + 1


def until_cancelled(path: str) -> str:
    Path(path).touch()
    while not actorgrid.current_task().cancelled:
        time.sleep(0.01)
    return "stopped"


def marked_sleep(folder: str, number: int) -> int:
    leave_mark(folder, number)
    time.sleep(1.0)
    (Path(folder) / "done").touch()
    return number


def wait_for(path: str) -> int:
    while not os.path.exists(path):
        time.sleep(0.02)
    return actorgrid.current_task().attempt_number


def die_once(path: str) -> int:
    if not os.path.exists(path):
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return actorgrid.current_task().attempt_number
