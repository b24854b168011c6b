"""List scheduling: steps in the order of their urgency, each on the lane where it is done first.

A lane is one processor of a host: what lies on the host need not be brought there, and each lane runs one step at a
time. With *insertion* a step may begin in a gap that earlier ones have left (HEFT); without it, behind the last one
on its lane.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

from .ranks import PlannedGraph

GAPS_LOOKED_AT = 64
"""Gaps of one lane tried for one step; the ones after them are behind the last anyway."""
HOSTS_LOOKED_AT = 32
"""Beside those that hold its inputs, hosts tried for one step: the ones that are free first."""
LANES_LOOKED_AT = 64
"""With more lanes than that, of each host only the one that is free first is tried."""
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes there are: ``hosts[lane]`` and ``speeds[lane]``; lanes of one host stand together."""

    hosts: tuple[int, ...]
    speeds: tuple[float, ...]
    of_host: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, counts: Sequence[int], speeds: Sequence[float] = ()) -> Lanes:
        """*counts[i]* lanes on host *i*, each *speeds[i]* times as fast as what runtimes were told for."""
        hosts = tuple(host for host, count in enumerate(counts) for _ in range(count))
        own = speeds or [1.0] * len(counts)
        of_host: list[list[int]] = [[] for _ in counts]
        for lane, host in enumerate(hosts):
            of_host[host].append(lane)
        return cls(hosts, tuple(own[host] for host in hosts), tuple(map(tuple, of_host)))


@dataclass(frozen=True, slots=True)
class LaneSchedule:
    """When each step begins and ends (seconds from the start), and on which lane; by its place in the planned graph."""

    starts: list[float]
    ends: list[float]
    lanes: list[int]

    @property
    def makespan_s(self) -> float:
        """When the last one ends."""
        return max(self.ends, default=0.0)


class _Lane:
    """What is free of one lane: the gaps, in order, and the time from which on all is."""

    __slots__ = ("free_from", "gaps")

    def __init__(self) -> None:
        self.gaps: list[tuple[float, float]] = []  # (end, start): found by their ends
        self.free_from = 0.0

    def earliest(self, ready: float, length: float) -> float:
        """When something of that *length* may begin, not before *ready*."""
        gaps = self.gaps
        first = bisect_left(gaps, (ready + length, 0.0))
        for end, start in gaps[first : first + GAPS_LOOKED_AT]:
            begin = start if start > ready else ready
            if begin + length <= end + _SAME:
                return begin
        return self.free_from if self.free_from > ready else ready

    def take(self, begin: float, end: float, keep_gaps: bool) -> None:
        """Take the time from *begin* to *end*, which is free."""
        if begin >= self.free_from - _SAME:
            if keep_gaps and begin > self.free_from + _SAME:
                insort(self.gaps, (begin, self.free_from))
            self.free_from = max(end, self.free_from)
            return
        place = bisect_left(self.gaps, (begin + _SAME, 0.0))
        while not (self.gaps[place][1] <= begin + _SAME and end <= self.gaps[place][0] + _SAME):
            place += 1
        gap_end, gap_start = self.gaps.pop(place)
        if begin - gap_start > _SAME:
            insort(self.gaps, (begin, gap_start))
        if gap_end - end > _SAME:
            insort(self.gaps, (gap_end, end))


def schedule(
    planned: PlannedGraph,
    lanes: Lanes,
    ranks: Sequence[float] | None,
    *,
    insertion: bool = True,
    allowed: Sequence[frozenset[int] | None] = (),
) -> LaneSchedule:
    """Place each step where it is done first, the highest of *ranks* first among those whose producers are placed.

    ``None`` for *ranks*: in the order in which their inputs are there, as a queue serves them. *allowed* are the hosts
    that a step may have (``None``: all).
    """
    count = len(planned.steps)
    starts, ends, chosen = [0.0] * count, [0.0] * count, [0] * count
    open_counts = list(map(len, planned.producers))
    waiting = [(_urgency(ranks, index, 0.0), index) for index in range(count) if not open_counts[index]]
    heapq.heapify(waiting)
    free = [_Lane() for _ in lanes.hosts]
    picker = _HostPicker(lanes, free)
    while waiting:
        _, index = heapq.heappop(waiting)
        only = allowed[index] if allowed else None
        runtime, producers = planned.runtimes[index], planned.producers[index]
        held = {lanes.hosts[chosen[producer]] for producer, _ in producers}
        elsewhere = max((ends[producer] + transfer_s for producer, transfer_s in producers), default=0.0)
        best_end, best_begin, best = float("inf"), 0.0, -1
        for host in picker.candidates(held, only):
            ready = elsewhere
            if host in held:
                ready = 0.0
                for producer, transfer_s in producers:
                    there = ends[producer] if lanes.hosts[chosen[producer]] == host else ends[producer] + transfer_s
                    if there > ready:
                        ready = there
            for lane in picker.lanes_of(host):
                length = runtime / lanes.speeds[lane]
                if insertion:
                    begin = free[lane].earliest(ready, length)
                else:
                    begin = free[lane].free_from if free[lane].free_from > ready else ready
                if begin + length < best_end - _SAME:
                    best_end, best_begin, best = begin + length, begin, lane
        starts[index], ends[index], chosen[index] = best_begin, best_end, best
        free[best].take(best_begin, best_end, insertion)
        picker.changed(best)
        for consumer, _ in planned.consumers[index]:
            open_counts[consumer] -= 1
            if not open_counts[consumer]:
                inputs_at = 0.0 if ranks is not None else max(ends[each] for each, _ in planned.producers[consumer])
                heapq.heappush(waiting, (_urgency(ranks, consumer, inputs_at), consumer))
    return LaneSchedule(starts, ends, chosen)


def _urgency(ranks: Sequence[float] | None, index: int, inputs_at: float) -> float:
    return inputs_at if ranks is None else -ranks[index]


class _HostPicker:
    """The hosts and lanes worth trying for a step: all, of few; of many, those with its inputs and the next free."""

    def __init__(self, lanes: Lanes, free: list[_Lane]) -> None:
        self._lanes = lanes
        self._free = free
        self._hosts = [host for host, own in enumerate(lanes.of_host) if own]
        self._next_free: list[list[tuple[float, int]]] = []
        """For each host its lanes, a heap by when they are free; where all lanes are tried, nothing."""
        if len(lanes.hosts) > LANES_LOOKED_AT:
            self._next_free = [[(0.0, lane) for lane in own] for own in lanes.of_host]
        self._by_free: list[tuple[float, int]] = []
        if len(self._hosts) > HOSTS_LOOKED_AT:
            self._by_free = [(0.0, host) for host in self._hosts]

    def changed(self, lane: int) -> None:
        """Take note that *lane* was given out."""
        host = self._lanes.hosts[lane]
        if self._next_free:
            heapq.heappush(self._next_free[host], (self._free[lane].free_from, lane))
        if self._by_free:
            heapq.heappush(self._by_free, (self._free_at(host), host))

    def lanes_of(self, host: int) -> Sequence[int]:
        """The lanes of *host* to try."""
        return (self._first_free(host)[1],) if self._next_free else self._lanes.of_host[host]

    def candidates(self, held: set[int], only: frozenset[int] | None) -> Sequence[int]:
        """Hosts in their order; *held* have inputs of the step, *only* may be had (``None``: all)."""
        if only is not None:
            return sorted(only)
        if not self._by_free:
            return self._hosts
        found: dict[int, float] = {}
        while self._by_free and len(found) < HOSTS_LOOKED_AT:
            at, host = heapq.heappop(self._by_free)
            if at == self._free_at(host):  # else another entry says when
                found[host] = at
        for host, at in found.items():
            heapq.heappush(self._by_free, (at, host))
        return sorted({*found, *held})

    def _free_at(self, host: int) -> float:
        if self._next_free:
            return self._first_free(host)[0]
        return min(self._free[lane].free_from for lane in self._lanes.of_host[host])

    def _first_free(self, host: int) -> tuple[float, int]:
        heap = self._next_free[host]
        while heap[0][0] != self._free[heap[0][1]].free_from:
            heapq.heappop(heap)  # another entry says when
        return heap[0]
