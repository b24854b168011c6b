"""What is done about processes that hold a device without a grant, and about contexts whose processes are gone.

No I/O and no clock: samples in, instructions out. Whoever carries an instruction out looks again: between a sample and
a signal the process may be gone, and its number another's.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from .device_users import UngrantedProcess

KILL_AFTER_S = 10.0
"""A process that was told to end is killed when it is still there that much later."""
GIVE_UP_AFTER = 3
"""Signals to one process: what three do not end, a driver holds, or nobody here may end it."""
EVENTS_MAX = 64


class Whose(StrEnum):
    """Whose a process is that has memory of a device it was not granted."""

    LIVE_WORK = "live work"
    """Of work that runs, on another device than its own: it is never ended for that."""
    ENDED_WORK = "ended work"
    """Of work of this host that the ledger holds no more: it escaped its end."""
    NOBODYS = "nobody's"
    """Of no work of this host's."""
    GONE = "gone"
    """The driver lists it, and there is no such process: what it had is freed by a reset of the device, if at all."""


@dataclass(frozen=True, slots=True)
class EndStranger:
    """Have the process be ended."""

    pid: int
    work_id: str
    """The ended work that it is of; empty: nobody's."""
    since_s: float
    """When it was first seen, on CLOCK_BOOTTIME: one that started later is another."""
    hard: bool
    """By SIGKILL; else by SIGTERM."""


@dataclass(frozen=True, slots=True)
class StrangerEvent:
    """What was seen of such a process, or done about it."""

    at: float
    """Seconds since the epoch."""
    uuid: str
    pid: int
    whose: Whose
    what: str
    """For people: seen, told to end, killed, why it was left alone, or gone."""


@dataclass(slots=True)
class _Stranger:
    uuid: str
    whose: Whose
    since_s: float
    told: int = 0
    is_named: bool = False
    again_s: float = -math.inf


class UngrantedPolicy:
    """Take samples; ``events`` has the last of what happened, oldest first."""

    def __init__(self) -> None:
        self.events: deque[StrangerEvent] = deque(maxlen=EVENTS_MAX)
        self.ended_total = 0
        self._known: dict[int, _Stranger] = {}

    def take(
        self,
        seen: Collection[UngrantedProcess],
        live: Collection[str],
        policy: str,
        grace_s: float,
        now_s: float,
        at: float,
    ) -> list[EndStranger]:
        """Take those of the next sample; *live*: the work that the ledger holds for this host.

        *policy* is ``report``, ``end-own`` (what escaped of this host's work that has ended), or ``end-all`` (also what
        is nobody's), each *grace_s* after it was first seen; *now_s* is on CLOCK_BOOTTIME, *at* since the epoch.
        """
        found: dict[int, _Stranger] = {}
        for one in seen:
            whose = whose_is(one, live)
            before = self._known.get(one.pid)
            if before is None or before.whose is not whose:
                before = _Stranger(one.uuid, whose, now_s)
            # A process that ends is listed for a moment; only what stays is a context that nobody freed.
            if not before.is_named and (whose is not Whose.GONE or now_s - before.since_s >= grace_s):
                before.is_named = True
                self._tell(at, one.pid, before, _seen(one))
            found[one.pid] = before
        for pid, stranger in self._known.items():
            if pid not in found and stranger.is_named:
                self.ended_total += stranger.told > 0
                self._tell(at, pid, stranger, "has gone" if not stranger.told else "has ended")
        self._known = found
        ends = {"end-own": (Whose.ENDED_WORK,), "end-all": (Whose.ENDED_WORK, Whose.NOBODYS)}.get(policy, ())
        owners = {one.pid: one.work_id for one in seen}
        todo = []
        for pid, stranger in found.items():
            is_due = now_s - stranger.since_s >= grace_s and now_s >= stranger.again_s
            if stranger.whose in ends and is_due and stranger.told < GIVE_UP_AFTER:
                todo.append(EndStranger(pid, owners[pid], stranger.since_s, stranger.told > 0))
                stranger.told += 1
                stranger.again_s = now_s + KILL_AFTER_S
        return todo

    def done(self, end: EndStranger, why_not: str, at: float) -> None:
        """Take how an instruction went: *why_not* says why the process was left alone, ``""``: it was signalled."""
        stranger = self._known.get(end.pid)
        if stranger is None:
            return
        if why_not:
            stranger.told = GIVE_UP_AFTER  # not asked again: what speaks against it does not go away by itself
        self._tell(at, end.pid, stranger, f"is left alone: {why_not}" if why_not else _SIGNALS[end.hard])

    def count(self, whose: Whose) -> int:
        """How many processes of that kind the last sample had; of those that are gone, the ones that stay listed."""
        return sum(one.whose is whose and one.is_named for one in self._known.values())

    def _tell(self, at: float, pid: int, stranger: _Stranger, what: str) -> None:
        self.events.append(StrangerEvent(at, stranger.uuid, pid, stranger.whose, what))


def whose_is(process: UngrantedProcess, live: Collection[str]) -> Whose:
    """Whose *process* is, where the ledger holds the work *live* for this host."""
    if process.is_gone:
        return Whose.GONE
    if not process.work_id:
        return Whose.NOBODYS
    return Whose.LIVE_WORK if process.work_id in live else Whose.ENDED_WORK


def _seen(process: UngrantedProcess) -> str:
    amount = "memory" if process.memory_mib is None else f"{process.memory_mib} MiB"
    if process.is_gone:
        return (
            f"is no process here, and has {amount}: a reset of the device frees it, if the driver counts our processes"
        )
    return f"has {amount} of it without a grant"


_SIGNALS = {False: "is told to end", True: "is killed"}
