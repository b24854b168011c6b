"""A child process's heartbeat: a page of memory shared with its supervisor, and room for a traceback.

The supervisor makes a :class:`Heartbeat` (one memfd) before it forks; the child takes it with :func:`adopt` and writes
through an :class:`OwnHeartbeat`: that its loop turns, which handler runs since when, and how long that one may. The
supervisor reads whenever it likes, even when the child is stopped, loops or is dead. No message is sent for any of it.

The file is a page of 64-bit words and handler names, then 16 KiB of text. ``faulthandler`` of the child writes
there: on a fatal signal, before the process dies of it, and on SIGUSR2, when the supervisor asks where a hung child
is. The file's position is shared by all who inherited the descriptor, so it says how much text there is. The file is
sealed at its size: what does not fit is cut off by the kernel.

Torn reads are harmless. A child may be stopped between any two writes, so the order is: no handler runs, its limit,
the time it began. A processor that shows the last two in another order shows a handler that is just beginning with the
limit of the one before; nobody is judged at that age, and the next reading is right. A single word caught in the middle
of its write is read again: the reader takes what it has read twice the same.
"""

from __future__ import annotations

import errno
import faulthandler
import fcntl
import itertools
import math
import mmap
import os
import signal
import struct
from array import array
from dataclasses import dataclass
from time import monotonic_ns
from typing import Literal

from actorgrid.errors import StartFailed, TooManyActors

State = Literal["new", "starting", "running", "stopping"]

TRACEBACK_SIGNAL = signal.SIGUSR2
"""What the supervisor sends to have the child's stack written. Nothing else in the project uses it."""

TRACEBACK_WAIT_S = 0.2
"""How long to wait between asking for a stack and killing: a process that can answer at all does it in a few ms."""

TRACEBACK_BYTES_MAX = 16_384
HANDLER_NAMES_MAX = 61
"""Handlers beyond so many different ones are timed like all others, without a name."""

_PAGE = 4096
_WORDS = struct.Struct("=8Q")
_STATE, _BEATS, _HANDLED, _ORDER, _STARTED, _STOP_LIMIT, _STOP_SINCE = range(7)
_NAMES_AT, _NAME_BYTES = 128, 64
_LIMIT_BITS = 40
_NO_LIMIT = (1 << _LIMIT_BITS) - 1
_AS_WATCHED = 0
_ORDERS_MAX = 256
_READS_MAX = 8
_STATES: tuple[State, ...] = ("new", "starting", "running", "stopping")
_FATAL_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)


@dataclass(frozen=True, slots=True)
class HeartbeatReading:
    """The values that a heartbeat held at one moment.

    ``started_s`` is when the running handler (in state ``stopping``: the stop) began, on the monotonic clock of the
    host; ``None`` when none runs. ``limit_s`` is what it declared: ``None`` nothing, infinity that it has no limit.
    ``waited_s``: seconds that the main thread has waited for a CPU in its life, known only for a child that made no
    progress since the reading before (and where the kernel tells).
    """

    state: State
    beats: int = 0
    handled: int = 0
    started_s: float | None = None
    limit_s: float | None = None
    handler: str = ""
    waited_s: float | None = None


class Heartbeat:
    """The supervisor's end of a heartbeat: one descriptor, no mapping.

    Make it directly before the fork, give ``number`` to the child, set ``pid`` after the fork, ``close()`` when the
    child is buried. Raises TooManyActors when there is no descriptor left, StartFailed when there is no memory.
    """

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.pid: int | None = None
        try:
            self._fd = os.memfd_create("actorgrid-pulse", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            kind = TooManyActors if error.errno in (errno.EMFILE, errno.ENFILE) else StartFailed
            raise kind(
                "a child's heartbeat cannot be made", found=str(error), hint="raise the limit of open files"
            ) from None
        try:
            os.ftruncate(self._fd, _PAGE + TRACEBACK_BYTES_MAX)
            os.pwrite(self._fd, bytes(_WORDS.size), 0)  # have the page now: later, no memory would be SIGBUS
            os.lseek(self._fd, _PAGE, os.SEEK_SET)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        except OSError as error:
            os.close(self._fd)
            raise StartFailed("a child's heartbeat cannot be made", found=str(error), hint="free memory") from None
        self._before: tuple[int, ...] = ()
        _made.extend((self.number, self._fd))

    def read(self) -> HeartbeatReading:
        """Read what the child last wrote; works for a stopped or dead child too."""
        page = os.pread(self._fd, _PAGE, 0)
        for _ in range(_READS_MAX):  # it beats at most a few thousand times a second: the second is nearly always equal
            again = os.pread(self._fd, _PAGE, 0)
            if again[: _WORDS.size] == page[: _WORDS.size]:
                break
            page = again
        words = _WORDS.unpack_from(page)
        waited_s = self._waited_s() if words == self._before else None
        self._before = words
        state: State = _STATES[min(words[_STATE], len(_STATES) - 1)]
        if state == "stopping":
            started_ns, limit_ms, handler = words[_STOP_SINCE], words[_STOP_LIMIT], "stop"
        else:
            started_ns, limit_ms = words[_STARTED], words[_ORDER] & _NO_LIMIT
            handler = _name(page, words[_ORDER] >> _LIMIT_BITS) if started_ns else ""
        return HeartbeatReading(
            state,
            words[_BEATS],
            words[_HANDLED],
            started_ns / 1e9 if started_ns else None,
            _limit_s(limit_ms) if started_ns else None,
            handler,
            waited_s,
        )

    def _waited_s(self) -> float | None:
        if self.pid is None:
            return None
        try:
            with open(f"/proc/{self.pid}/schedstat", "rb") as file:
                return int(file.read().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):  # it is gone, or this kernel does not count
            return None

    def ask_traceback(self) -> bool:
        """Have the child write the stacks of all its threads; ``False`` when it cannot be asked (new, or gone).

        Does not wait: read ``traceback()`` after TRACEBACK_WAIT_S. A child stopped by SIGSTOP does not answer.
        """
        # Before it took its heartbeat, the signal would kill it.
        if self.pid is None or self.read().state == "new":
            return False
        os.lseek(self._fd, _PAGE, os.SEEK_SET)
        try:
            os.kill(self.pid, TRACEBACK_SIGNAL)
        except ProcessLookupError:
            return False
        return True

    def traceback(self) -> str:
        """The text that the child's faulthandler wrote on a fatal signal or after ``ask_traceback``; may be empty."""
        size = min(max(0, os.lseek(self._fd, 0, os.SEEK_CUR) - _PAGE), TRACEBACK_BYTES_MAX)
        return os.pread(self._fd, size, _PAGE).decode("utf-8", "replace")

    def close(self) -> None:
        """Close the descriptor; harmless when done already."""
        numbers = _made[::2]
        if self.number in numbers:
            at = 2 * numbers.index(self.number)
            del _made[at : at + 2]
            os.close(self._fd)


class OwnHeartbeat:
    """The child's end of a heartbeat. One handler runs at a time: a second ``handler_started`` replaces the first."""

    __slots__ = ("_fd", "_handled", "_map", "_names", "_orders", "_words")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map = mmap.mmap(fd, _PAGE)
        self._words = memoryview(self._map).cast("Q")
        self._handled = 0
        self._names: dict[str, int] = {"": 0}
        self._orders: dict[tuple[float | None, str], int] = {}

    def starting(self) -> None:
        """Say that the child starts, and answers when asked for its stack; nobody asks before this."""
        self._words[_STATE] = _STATES.index("starting")

    def running(self) -> None:
        """Say that the start is over: from now on the loop must turn."""
        self._words[_STATE] = _STATES.index("running")

    def stopping(self, limit_s: float | None) -> None:
        """Say that an orderly stop has begun.

        It may take *limit_s* seconds, whatever handlers and loop do; ``None``: for ever.
        """
        self._words[_STOP_LIMIT] = _NO_LIMIT if limit_s is None else _limit_ms(limit_s)
        self._words[_STOP_SINCE] = monotonic_ns()
        # Last: whoever reads this state takes the two above for those of the stop.
        self._words[_STATE] = _STATES.index("stopping")

    def beat(self) -> None:
        """Say that the loop turns. Call it from a timer of the loop, once each interval of the watchdog."""
        self._words[_BEATS] += 1

    def handler_started(self, limit_s: float | None, what: str) -> None:
        """Say that a handler of *what* begins, which may take *limit_s* seconds (``None``: the child spec's limit)."""
        order = self._orders.get((limit_s, what))
        if order is None:
            order = self._declare(limit_s, what)
        words = self._words
        words[_STARTED] = 0  # nobody may see the start of an unended one with the limit of this one
        words[_ORDER] = order
        words[_STARTED] = monotonic_ns()

    def handler_ended(self) -> None:
        """Say that the handler has ended."""
        words = self._words
        words[_STARTED] = 0
        self._handled = words[_HANDLED] = self._handled + 1

    def _declare(self, limit_s: float | None, what: str) -> int:
        slot = self._names.get(what)
        if slot is None:
            slot = len(self._names) if len(self._names) <= HANDLER_NAMES_MAX else 0
            if slot:
                self._names[what] = slot
                name = what.encode("utf-8", "replace")[:_NAME_BYTES]
                start = _NAMES_AT + (slot - 1) * _NAME_BYTES
                # Before an order has its number: a reader looks the name up by that.
                self._map[start : start + len(name)] = name
        order = (slot << _LIMIT_BITS) | (_AS_WATCHED if limit_s is None else _limit_ms(limit_s))
        if len(self._orders) < _ORDERS_MAX:
            self._orders[limit_s, what] = order
        return order

    def close(self) -> None:
        """Close the mapping, after faulthandler has let go of it."""
        _silence_faulthandler()
        self._words.release()
        self._map.close()
        os.close(self._fd)


_numbers = itertools.count(1)
# What this process made for its children, or inherited from its parent: number, descriptor, number, descriptor.
# Plain, so that a child closes those of its siblings without writing to the pages that their objects are on.
_made = array("q")
_own: OwnHeartbeat | None = None


def adopt(number: int) -> OwnHeartbeat:
    """In the child: take the heartbeat that the parent made as *number*, and close all others that the fork brought
    along.

    Those are the siblings', and the parent's own. From here on a fatal signal leaves a traceback in the heartbeat, and
    then kills as if nothing were there. Only the main thread may call this, once in a process.
    """
    global _own
    numbers = list(_made[::2])
    if number not in numbers:
        raise AssertionError(f"heartbeat {number} was not made before this process was forked; there are {numbers}")
    fd = _made[2 * numbers.index(number) + 1]
    for inherited in _made[1::2]:
        if inherited != fd:
            os.close(inherited)
    del _made[:]
    if _own is not None:
        _own.close()
    _own = OwnHeartbeat(fd)
    # faulthandler remembers, across a fork, that it is enabled, though the handlers may have been replaced since.
    _silence_faulthandler()
    for fatal in _FATAL_SIGNALS:
        signal.signal(fatal, signal.SIG_DFL)
    faulthandler.enable(file=fd, all_threads=True)
    faulthandler.register(TRACEBACK_SIGNAL, file=fd, all_threads=True, chain=False)
    _own.starting()  # not before: who is asked without the handler dies of the signal
    return _own


def _silence_faulthandler() -> None:
    faulthandler.disable()
    faulthandler.unregister(TRACEBACK_SIGNAL)


def _forked() -> None:
    # A fork of an actor that is no actor (a probe, a helper) may crash: that is no end of the actor.
    if _own is not None:
        _silence_faulthandler()


os.register_at_fork(after_in_child=_forked)


def _limit_ms(limit_s: float) -> int:
    if limit_s == math.inf:
        return _NO_LIMIT
    return min(max(1, math.ceil(limit_s * 1000)), _NO_LIMIT - 1)


def _limit_s(limit_ms: int) -> float | None:
    if limit_ms == _AS_WATCHED:
        return None
    return math.inf if limit_ms == _NO_LIMIT else limit_ms / 1000


def _name(page: bytes, slot: int) -> str:
    if not 0 < slot <= HANDLER_NAMES_MAX:
        return ""
    start = _NAMES_AT + (slot - 1) * _NAME_BYTES
    return page[start : start + _NAME_BYTES].rstrip(b"\0").decode("utf-8", "replace")
