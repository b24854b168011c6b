"""How a process ended, in words: the signal by its name, its exit status, the last it said."""

from __future__ import annotations

import signal

LAST_LINES = 5
LAST_CHARS = 600
STDERR_READ_BYTES = 16 * 1024
"""So much of the end of standard error is looked at: Python names up to a hundred frames of each thread."""
FATAL = "Fatal Python error:"
CRASHED = "Current thread"
THREAD = "(most recent call first)"
OWN_FRAME = "/actorgrid/actors/work/"


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

    Of the traceback that Python leaves when it crashes: what it died of, and where the thread that crashed was.
    """
    kept = crash_of(text)[:lines] or [line.strip() for line in text.splitlines() if line.strip()][-lines:]
    said = " | ".join(kept)
    return said if len(said) <= LAST_CHARS else f"…{said[-LAST_CHARS:]}"


def crash_of(text: str) -> list[str]:
    """Of the last traceback that Python left when it crashed, its headline and the frames of the thread that crashed,
    the innermost first, without those of this product; empty if *text* holds none.

    The headline is left out where *text* begins behind it.
    """
    kept = [line.strip() for line in text.splitlines() if line.strip()]
    headline = max((number for number, line in enumerate(kept) if line.startswith(FATAL)), default=-1)
    crashed = (number for number, line in enumerate(kept) if line.startswith(CRASHED) and THREAD in line)
    thread = max(crashed, default=-1)
    if thread < headline:
        return [kept[headline]]  # cut off before it could say more
    frames: list[str] = []
    for line in kept[thread + 1 :] if thread >= 0 else ():
        if not line.startswith("File "):
            break
        if OWN_FRAME not in line and not line.startswith('File "<string>"'):
            frames.append(line)
    return [kept[headline], *frames] if headline >= 0 else frames


def end_of(text: str, max_chars: int) -> str:
    """What of *text* is kept where there is little room: its end, or of a crash of Python what ``crash_of`` finds."""
    return text if len(text) <= max_chars else ("\n".join(crash_of(text))[:max_chars] or text[-max_chars:])
