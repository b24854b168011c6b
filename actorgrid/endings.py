"""How a process ended, in words: the signal by its name, its exit status, the last it said."""

from __future__ import annotations

import signal

LAST_LINES = 5
LAST_CHARS = 600
FATAL = "Fatal Python error:"
THREAD = "(most recent call first):"


def how_it_ended(exit_code: int | None, number: int | None) -> str:
    """``killed by SIGSEGV (signal 11)``, ``exit status 3``; ``gone`` when nothing is known."""
    if number is not None:
        name = signal_name(number)
        return f"killed by signal {number}" if name.startswith("signal") else f"killed by {name} (signal {number})"
    return "gone" if exit_code is None else f"exit status {exit_code}"


def for_want_of_memory(oom_kills: int) -> str:
    """What the kernel's count says of an end by SIGKILL: ``, most likely for want of memory (...)``, or nothing."""
    if not oom_kills:
        return ""
    killed = "a process" if oom_kills == 1 else f"{oom_kills} processes"
    return f", most likely for want of memory (the kernel killed {killed} of this host for that meanwhile)"


def signal_name(number: int) -> str:
    """A signal's name: ``SIGKILL`` for 9; for one without a name, ``signal 44``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_lines(text: str, lines: int = LAST_LINES) -> str:
    """The end of what was said, in a line: the last few that are not empty, joined by ``|``.

    Of the traceback that Python leaves when it crashes, these are its first: there is what it died of, and where.
    """
    kept = [line.strip() for line in text.splitlines() if line.strip()]
    crash = max((number for number, line in enumerate(kept) if line.startswith(FATAL)), default=None)
    kept = kept[-lines:] if crash is None else [line for line in kept[crash:] if not line.endswith(THREAD)][:lines]
    said = " | ".join(kept)
    return said if len(said) <= LAST_CHARS else f"…{said[-LAST_CHARS:]}"
