"""Those who wait and could start, kept by what they need, each line in the policy's order.

Requests of one need fit or do not fit together, so each need has a line of its own: once the first of it does not
fit, the whole line is closed, and looked at again only when room is freed. The lines of needs that are at least as
large are closed with it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from actorgrid.hotpath import PriorityBitmap

from .job import Job
from .request import Need
from .shadow import Ask

COMPARED_MAX = 64
"""Needs known not to fit that others are compared with; further ones close only their equals."""
_ENDLESS = 10_000
_PER_OCTAVE = 4


def length_class(expected_s: float | None) -> int:
    """Estimates that differ by less than a fifth (a quarter octave) share a line; none is a class of its own."""
    if expected_s is None:
        return _ENDLESS
    return round(_PER_OCTAVE * math.log2(max(expected_s, 1e-3)))


class Line:
    """The waiting jobs of one need, and of one length where the policy makes reservations."""

    __slots__ = ("arguments", "ask", "jobs", "key")

    def __init__(self, key: tuple[Need, int], levels: int, arguments: dict[str, Any] | None) -> None:
        self.key = key
        self.arguments = arguments
        self.ask = Ask(arguments or {})
        self.jobs = PriorityBitmap(levels)

    @property
    def need(self) -> Need:
        """What all of them need."""
        return self.key[0]


class Lines:
    """All lines. A line takes about 12 bytes for each of the policy's levels, and goes with its last job."""

    def __init__(self, levels: int) -> None:
        self._levels = levels
        self._lines: dict[tuple[Need, int], Line] = {}
        self.open: dict[Line, None] = {}
        """Lines whose first is worth trying."""
        self._full: dict[Need, None] = {}

    def __iter__(self) -> Iterator[Line]:
        return iter(self._lines.values())

    def __len__(self) -> int:
        return len(self._lines)

    def get(self, key: tuple[Need, int]) -> Line | None:
        """The line of that need and length, if anyone stands there."""
        return self._lines.get(key)

    def add(self, job: Job, key: tuple[Need, int], arguments: dict[str, Any] | None) -> None:
        """Let *job* stand in the line of *key*, in the engine's words *arguments* (``None``: nothing can serve it)."""
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(key, self._levels, arguments)
        job.line = line
        job.ask = line.ask
        # Orders of equals are told apart by the sequence, which grows as they come.
        job.handle = line.jobs.insert(job.level, job.order, job)
        if key[0] not in self._full:
            self.open[line] = None

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
        if line.need not in self._full:
            self.open[line] = None

    def freed(self) -> None:
        """Room came free: every line is worth trying again."""
        self._full.clear()
        self.open = dict.fromkeys(self._lines.values())

    def reopen(self) -> None:
        """Reservations changed: those that were only kept out by one are worth trying again."""
        self.open.update((line, None) for line in self._lines.values() if line.need not in self._full)

    def renew(self, translate: Callable[[Need], dict[str, Any] | None]) -> None:
        """The engine changed: say every need in its words again, and open all lines."""
        for line in self._lines.values():
            line.arguments = translate(line.need)
            line.ask = Ask(line.arguments or {})
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
