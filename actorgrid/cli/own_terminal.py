"""The terminal that this command runs in: its size, and raw while what is typed goes elsewhere."""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from actorgrid.errors import NotATerminal
from actorgrid.transports.channel_frames import SIDE_MAX, TerminalSize

TERM_AT_LEAST = "xterm"


def check_terminal(hint: str) -> None:
    """Raises NotATerminal when our standard input or output is none."""
    for name, stream in (("input", sys.stdin), ("output", sys.stdout)):
        if not stream.isatty():
            raise NotATerminal(f"our standard {name} is no terminal", asked="a terminal (--pty)", hint=hint)


def has_terminal() -> bool:
    """Whether both our standard input and output are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def own_size() -> TerminalSize:
    """The size of our terminal."""
    try:
        found = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return TerminalSize(24, 80)
    return TerminalSize(min(max(found.lines, 1), SIDE_MAX), min(max(found.columns, 1), SIDE_MAX))


def terminal_variables() -> dict[str, str]:
    """What a program in a terminal of ours has to know of it."""
    return {"TERM": os.environ.get("TERM") or TERM_AT_LEAST}


@contextmanager
def raw_terminal() -> Iterator[None]:
    """Have our terminal hand on each key as it is pressed; as it was before when this ends, however it does.

    Also while we are stopped (SIGTSTP from elsewhere: Ctrl-Z is a key like others here).
    """
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def restore() -> None:
        with suppress(termios.error):  # it is gone
            termios.tcsetattr(fd, termios.TCSADRAIN, before)

    def stop(_number: int, _frame: FrameType | None) -> None:
        restore()
        os.kill(os.getpid(), signal.SIGSTOP)
        with suppress(termios.error):
            tty.setraw(fd)

    stopped = signal.signal(signal.SIGTSTP, stop)
    try:
        tty.setraw(fd)
        yield
    finally:
        restore()
        signal.signal(signal.SIGTSTP, stopped)


@contextmanager
def signals_to(handlers: dict[int, Callable[[], None]]) -> Iterator[int]:
    """Call these for signals, and give a descriptor that is readable after each: for who waits with ``select``."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    woken = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    before: dict[int, Any] = {}
    try:
        for number, call in handlers.items():
            before[number] = signal.signal(number, lambda _number, _frame, call=call: call())  # type: ignore[misc]
        yield read
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(woken)
        os.close(read)
        os.close(write)
