"""Who waits for room, and who is tried next.

Order: higher priority first, then who was submitted first. A job that may not start yet (a retry's pause, jobs it
depends on) waits aside. ``fifo`` jobs are ordered as if they had the default priority; ``priority`` and, for now,
every other policy go by their priority.

A job that does not fit does not hold up smaller ones behind it. Jobs are kept by shape: once a shape did not fit, it
and every larger one are passed over until room is freed. There is no guard against starvation here: a large job
can wait as long as smaller ones keep the room from adding up. Reservations for those are the scheduler's later work.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from actorgrid.errors import QueueFull

DEFAULT_PRIORITY = 50
LEASE_PRIORITY = 101
"""A client waits for a lease with its eyes open, so leases go before jobs of any priority."""
_COMPARED_MAX = 64
"""Shapes known not to fit that others are compared with; further ones only block their equals."""
_STALE_MAX = 1024


@dataclass(frozen=True, slots=True)
class Shape:
    """What an attempt or lease needs; jobs of one shape fit or do not fit together."""

    gpu_count: int
    gpu_milli: int
    gpu_memory_mib: int
    gpu_models: tuple[str, ...]
    gpu_affinity: tuple[str, ...]
    cpu_milli: int
    memory_mib: int

    @classmethod
    def of(cls, resources: Mapping[str, Any]) -> Shape:
        """The shape of a job record's ``resources``; without GPUs, what else is said of them is dropped."""
        count = int(resources.get("gpu_count", 0))
        return cls(
            gpu_count=count,
            gpu_milli=int(resources.get("gpu_milli", 0)) if count else 0,
            gpu_memory_mib=int(resources.get("gpu_memory_mib", 0)) if count else 0,
            gpu_models=tuple(sorted(resources.get("gpu_models", ()))) if count else (),
            gpu_affinity=tuple(sorted(resources.get("gpu_affinity", ()))) if count else (),
            cpu_milli=int(resources.get("cpu_milli", 0)),
            memory_mib=int(resources.get("memory_mib", 0)),
        )

    def needs_at_least(self, other: Shape) -> bool:
        """Whether room for this one would be room for *other*: then it cannot fit where *other* did not."""
        return (
            self.gpu_count >= other.gpu_count
            and self.gpu_milli >= other.gpu_milli
            and self.gpu_memory_mib >= other.gpu_memory_mib
            and self.cpu_milli >= other.cpu_milli
            and self.memory_mib >= other.memory_mib
            and (
                not other.gpu_count or (self.gpu_models == other.gpu_models and self.gpu_affinity == other.gpu_affinity)
            )
        )


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """One job or lease in the queue."""

    id: str
    shape: Shape
    key: tuple[int, ...]


class WaitingQueue:
    """Holds at most *maximum* entries, those that may not start yet included."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._entries: dict[str, Waiting] = {}
        self._ready: dict[Shape, list[tuple[tuple[int, ...], int, Waiting]]] = {}
        self._open: set[Shape] = set()
        self._full: dict[Shape, None] = {}
        self._delayed: list[tuple[float, int, Waiting]] = []
        self._delays: dict[str, float] = {}
        self._unmet: dict[str, set[str]] = {}
        self._dependents: dict[str, set[str]] = {}
        self._count = 0
        self._stale = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: object) -> bool:
        return id in self._entries

    def add(
        self,
        id: str,
        shape: Shape,
        *,
        priority: int = DEFAULT_PRIORITY,
        order: tuple[int, ...] = (0,),
        policy: str = "priority",
        not_before: float = 0.0,
        now: float = 0.0,
        unmet: Iterable[str] = (),
    ) -> None:
        """Queue *id*, or queue it anew as described now. *unmet* are the jobs it still waits for.

        Raises QueueFull when the maximum is reached; nothing is changed then.
        """
        if id not in self._entries and len(self._entries) >= self.maximum:
            raise QueueFull("the queue of waiting work is full", asked=id, found=f"{self.maximum} waiting")
        self.remove(id)
        waiting = Waiting(id, shape, (-(DEFAULT_PRIORITY if policy == "fifo" else priority), *order))
        self._entries[id] = waiting
        open_ones = set(unmet)
        if not_before > now:
            self._delays[id] = not_before
            self._count += 1
            heapq.heappush(self._delayed, (not_before, self._count, waiting))
        if open_ones:
            self._unmet[id] = open_ones
            for dependency in open_ones:
                self._dependents.setdefault(dependency, set()).add(id)
        self._offer(waiting)

    def remove(self, id: str) -> bool:
        """Forget *id*; ``False`` when it was not there."""
        if self._entries.pop(id, None) is None:
            return False
        self._delays.pop(id, None)
        for dependency in self._unmet.pop(id, ()):
            dependents = self._dependents[dependency]
            dependents.discard(id)
            if not dependents:
                del self._dependents[dependency]
        self._stale += 1
        if self._stale > _STALE_MAX + len(self._entries):
            self._sweep()
        return True

    def resolve(self, dependency: str) -> None:
        """*dependency* succeeded: nothing waits for it any more."""
        for id in self._dependents.pop(dependency, ()):
            unmet = self._unmet[id]
            unmet.discard(dependency)
            if not unmet:
                del self._unmet[id]
                self._offer(self._entries[id])

    def wake(self, now: float) -> None:
        """Let those whose pause is over take part."""
        while self._delayed and self._delayed[0][0] <= now:
            _, _, waiting = heapq.heappop(self._delayed)
            if self._entries.get(waiting.id) is waiting:
                self._delays.pop(waiting.id, None)
                self._offer(waiting)

    def next_wake(self) -> float | None:
        """When ``wake`` next has something to do."""
        while self._delayed and self._entries.get(self._delayed[0][2].id) is not self._delayed[0][2]:
            heapq.heappop(self._delayed)
        return self._delayed[0][0] if self._delayed else None

    def freed(self) -> None:
        """Room came free somewhere: every shape is worth trying again."""
        self._full.clear()
        self._open = set(self._ready)

    def serve(self, place: Callable[[Waiting], bool], limit: int) -> int:
        """Offer entries to *place* in order; those it takes leave the queue. Gives how many, at most *limit*.

        Each shape that is refused is not offered again before ``freed``.
        """
        heads: list[tuple[tuple[int, ...], int, Waiting]] = []
        for shape in list(self._open):
            self._push_head(heads, shape)
        taken = 0
        while heads and taken < limit:
            _, _, waiting = heapq.heappop(heads)
            shape = waiting.shape
            if self._cannot_fit(shape):
                self._open.discard(shape)
            elif place(waiting):
                taken += 1
                self._take_head(shape)
                self._push_head(heads, shape)
            else:
                self._full[shape] = None
                self._open.discard(shape)
        return taken

    def position(self, id: str) -> int | None:
        """Place in the line, from 1; ``None`` for one that may not start yet or is not here."""
        mine = self._entries.get(id)
        if mine is None or id in self._delays or id in self._unmet:
            return None
        return 1 + sum(
            1
            for other in self._entries.values()
            if other.key < mine.key and other.id not in self._delays and other.id not in self._unmet
        )

    def waits_for(self, id: str) -> tuple[list[str], float | None]:
        """The jobs *id* still depends on, and the time before which it may not start."""
        return sorted(self._unmet.get(id, ())), self._delays.get(id)

    def _offer(self, waiting: Waiting) -> None:
        if waiting.id in self._delays or waiting.id in self._unmet:
            return
        self._count += 1
        heapq.heappush(self._ready.setdefault(waiting.shape, []), (waiting.key, self._count, waiting))
        if waiting.shape not in self._full:
            self._open.add(waiting.shape)

    def _push_head(self, heads: list[tuple[tuple[int, ...], int, Waiting]], shape: Shape) -> None:
        line = self._ready.get(shape, [])
        while line and self._entries.get(line[0][2].id) is not line[0][2]:
            heapq.heappop(line)
            self._stale -= 1
        if line:
            heapq.heappush(heads, line[0])
        else:
            self._ready.pop(shape, None)
            self._open.discard(shape)

    def _take_head(self, shape: Shape) -> None:
        _, _, waiting = heapq.heappop(self._ready[shape])
        del self._entries[waiting.id]

    def _cannot_fit(self, shape: Shape) -> bool:
        if shape in self._full:
            return True
        return any(shape.needs_at_least(full) for full, _ in zip(self._full, range(_COMPARED_MAX), strict=False))

    def _sweep(self) -> None:
        """Drop what removals left behind, so that memory follows the number of entries."""
        for shape, line in list(self._ready.items()):
            kept = [item for item in line if self._entries.get(item[2].id) is item[2]]
            heapq.heapify(kept)
            if kept:
                self._ready[shape] = kept
            else:
                del self._ready[shape]
                self._open.discard(shape)
        self._delayed = [item for item in self._delayed if self._entries.get(item[2].id) is item[2]]
        heapq.heapify(self._delayed)
        self._stale = 0
