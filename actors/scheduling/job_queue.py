"""Those who wait and could start, kept by what they need, each line in the policy's order.

Requests of one need fit or do not fit together, so each need has a line of its own: once the first of it does not
fit, the whole line is closed, and looked at again only when room is freed. The lines of needs that are at least as
large are closed with it. Tenants with limits of their own have lines of their own: one of a tenant at the limit is
held, whole, until that tenant has room again, and costs nothing until then.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from actorgrid.hotpath import PriorityBitmap
from actorgrid.hotpath.capacity import Ask

from .job import Job
from .request import Need

COMPARED_MAX = 64
"""Needs known not to fit that others are compared with; further ones close only their equals."""
Key = tuple[Need, int, str]
"""Need, class of length, and tenant: see ``Line``."""
_ENDLESS = 10_000
_PER_OCTAVE = 4


def length_class(expected_s: float | None) -> int:
    """Estimates that differ by less than a fifth (a quarter octave) share a line; none is a class of its own."""
    if expected_s is None:
        return _ENDLESS
    return round(_PER_OCTAVE * math.log2(max(expected_s, 1e-3)))


class Line:
    """The waiting jobs of one need, of one length where the policy makes reservations, of one tenant with limits."""

    __slots__ = ("arguments", "ask", "held", "jobs", "key")

    def __init__(self, key: Key, levels: int, arguments: dict[str, Any] | None) -> None:
        self.key = key
        self.arguments = arguments
        self.ask = Ask(arguments or {}, apart=key[0].apart)
        self.jobs = PriorityBitmap(levels)
        self.held = False
        """Whether its tenant has no room for its first."""

    @property
    def need(self) -> Need:
        """What all of them need."""
        return self.key[0]

    @property
    def tenant(self) -> str:
        """Whose jobs they are, where that one has limits; else ``""``."""
        return self.key[2]


class Lines:
    """All lines. A line takes about 12 bytes for each of the policy's levels, and goes with its last job."""

    def __init__(self, levels: int) -> None:
        self._levels = levels
        self._lines: dict[Key, Line] = {}
        self._held: dict[str, dict[Line, None]] = {}
        self._held_count = 0
        self.open: dict[Line, None] = {}
        """Lines whose first is worth trying."""
        self._full: dict[Need, None] = {}

    def __iter__(self) -> Iterator[Line]:
        """Those that are not held."""
        return (line for line in self._lines.values() if not line.held)

    def __len__(self) -> int:
        return len(self._lines) - self._held_count

    def get(self, key: Key) -> Line | None:
        """The line of that key, if anyone stands there."""
        return self._lines.get(key)

    def add(self, job: Job, key: Key, arguments: dict[str, Any] | None) -> None:
        """Let *job* stand in the line of *key*, in the engine's words *arguments* (``None``: nothing can serve it)."""
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(key, self._levels, arguments)
        job.line = line
        job.need = line.need  # equal, and one object for all of them
        job.ask = line.ask
        # Orders of equals are told apart by the sequence, which grows as they come.
        job.handle = line.jobs.insert(job.level, job.order, job)
        self.offer(line)

    def remove(self, job: Job) -> None:
        """Take *job* out of its line, if it stands in one."""
        line = job.line
        if line is None:
            return
        line.jobs.remove(job.handle)
        job.line = None
        if not len(line.jobs):
            del self._lines[line.key]
            self.open.pop(line, None)
            if line.held:
                self._unhold(line)

    def hold(self, line: Line) -> None:
        """The tenant of *line* has no room for its first: nobody there is looked at until ``let_go``."""
        if not line.held:
            line.held = True
            self._held.setdefault(line.tenant, {})[line] = None
            self._held_count += 1
            self.open.pop(line, None)

    def let_go(self, tenant: str | None = None) -> list[Line]:
        """The lines held of *tenant* (``None``: of all) are worth a look again; gives them."""
        tenants = list(self._held) if tenant is None else [tenant]
        found = [line for each in tenants for line in self._held.get(each, ())]
        for line in found:
            self._unhold(line)
            self.offer(line)
        return found

    def _unhold(self, line: Line) -> None:
        line.held = False
        held = self._held[line.tenant]
        del held[line]
        if not held:
            del self._held[line.tenant]
        self._held_count -= 1

    def move(self, job: Job, level: int) -> None:
        """*job* stands at another level from now on."""
        assert job.line is not None
        job.level = level
        job.line.jobs.move(job.handle, level)

    def known_full(self, need: Need) -> bool:
        """Whether *need* cannot fit, because it or something no larger did not, and nothing was freed since."""
        if need in self._full:
            return True
        return any(need.needs_at_least(full) for full, _ in zip(self._full, range(COMPARED_MAX), strict=False))

    def full(self, need: Need) -> None:
        """*need* did not fit."""
        self._full[need] = None

    def offer(self, line: Line) -> None:
        """The line has a new first, or one with a better chance."""
        if line.need not in self._full and not line.held:
            self.open[line] = None

    def freed(self) -> None:
        """Room came free: every line is worth trying again."""
        self._full.clear()
        self.open = dict.fromkeys(self)

    def reopen(self) -> None:
        """Reservations changed: those that were only kept out by one are worth trying again."""
        self.open.update((line, None) for line in self if line.need not in self._full)

    def renew(self, translate: Callable[[Need], dict[str, Any] | None]) -> None:
        """The engine changed: say every need in its words again, and open all lines."""
        for line in self._lines.values():
            line.arguments = translate(line.need)
            line.ask = Ask(line.arguments or {}, apart=line.need.apart)
            for job in line.jobs:
                job.ask = line.ask
        self.freed()


def heads(lines: Iterable[Line]) -> list[tuple[tuple[int, int, int], Job]]:
    """A heap of the lines' first jobs."""
    found = []
    for line in lines:
        job = line.jobs.first()
        if job is not None:
            found.append((job.key, job))
    heapq.heapify(found)
    return found
