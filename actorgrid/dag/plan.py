"""A plan: where and when each step of a graph is expected to run, and the one that ends soonest among many tried.

Where all steps take the same of a host, each host is so many lanes, and steps are placed on them by list scheduling
(list_schedule.py): in several orders of urgency, with and without gaps, as HEFT does and as a queue does. The best is
then bettered by trying orders like it, for a number of steps placed and not for a time: the same graph on the same
hosts gets the same plan. Steps that need different things are planned by playing them (simulation.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from actorgrid.demand import Demand

from .hosts import HostCapacity
from .list_schedule import Lanes, LaneSchedule, schedule
from .model import ONE_CPU, Graph
from .ranks import (
    BANDWIDTH,
    PlannedGraph,
    critical_path_s,
    downward_ranks,
    lower_bound_s,
    upward_ranks,
)

TRIED_STEPS_MAX = 30_000
"""So many steps are placed in looking for better orders, of a graph that is small enough for two tries at least."""
FIRST_TRIES_STEPS_MAX = 40_000
"""Beyond so many steps only HEFT's order is tried, and beside it the queue's."""
TRIES_MAX = 300
TRIES_MIN = 8
"""With room for fewer tries there are none: so large a graph gains little by them."""
NOISE = (0.02, 0.1, 0.3)
"""How far a rank is moved in a try, at most, as a part of itself."""
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One step's place in a plan: its number in the graph, its host, and seconds from the start of the graph."""

    step: int
    host: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """Where and when each step is expected to run.

    ``runs`` are in the order of their starts. ``lower_bound_s``: no plan can be shorter. ``critical_path``: the steps,
    by number, one of which ends where the next begins, up to the last end of all. ``cost`` is in the unit of the
    hosts' prices; ``bytes_moved`` is what crosses from host to host. ``fragmented``: the part of all GPU time that was
    free on devices of which another part was taken; ``None`` without GPUs. ``lanes``: for each step that runs the lane
    it was planned on, where hosts are lanes.
    """

    runs: tuple[PlannedRun, ...]
    makespan_s: float
    lower_bound_s: float
    critical_path_s: float
    critical_path: tuple[int, ...]
    cost: float = 0.0
    bytes_moved: int = 0
    fragmented: float | None = None
    lanes: tuple[int, ...] = ()

    @property
    def steps_per_s(self) -> float:
        """Steps done each second, from the first start to the last end."""
        return len(self.runs) / self.makespan_s if self.makespan_s > 0 else 0.0

    @property
    def by_step(self) -> dict[int, PlannedRun]:
        """The runs by the number of their step."""
        return {run.step: run for run in self.runs}


def slots_of(host: HostCapacity, demand: Demand) -> int:
    """How many steps of that *demand* an empty *host* runs at once."""
    most = []
    if demand.cpu_milli:
        most.append(host.cpu_milli // demand.cpu_milli)
    if demand.memory_mib:
        most.append(host.memory_mib // demand.memory_mib)
    if demand.gpu_count:
        devices = [
            memory
            for model, memory in host.gpus
            if (not demand.gpu_models or model in demand.gpu_models) and memory >= demand.gpu_memory_mib
        ]
        if demand.gpu_milli < 1000:
            each = 1000 // demand.gpu_milli
            if demand.gpu_memory_mib:
                fits = [min(each, memory // demand.gpu_memory_mib) for memory in devices]
            else:
                fits = [each] * len(devices)
            most.append(sum(fits) if demand.gpu_count == 1 else len(devices) // demand.gpu_count * each)
        else:
            most.append(len(devices) // demand.gpu_count)
    return min(most, default=UNBOUNDED_SLOTS)


UNBOUNDED_SLOTS = 1024
"""Of steps that need nothing."""


def share_of(host: HostCapacity, demand: Demand) -> float:
    """The part of *host* that a step of that *demand* takes: of what it takes most of."""
    parts = [0.0]
    if host.cpu_milli:
        parts.append(demand.cpu_milli / host.cpu_milli)
    if host.memory_mib:
        parts.append(demand.memory_mib / host.memory_mib)
    if host.gpus:
        parts.append(demand.gpus / len(host.gpus))
    return min(1.0, max(parts))


def lane_counts(graph: Graph, hosts: Sequence[HostCapacity]) -> list[int] | None:
    """How many lanes each host is for all steps of *graph* alike; ``None``: that depends on the step, or on others."""
    demands = {graph.steps[number].cost.demand for number in graph.running if graph.steps[number].kind.is_work}
    if any(demand.gang > 1 for demand in demands) or graph.in_parallel:
        return None
    if any(graph.steps[number].cost.named for number in graph.running):
        return None
    demands = demands or {ONE_CPU}
    counts = {tuple(slots_of(host, demand) for host in hosts) for demand in demands}
    return list(counts.pop()) if len(counts) == 1 else None


def plan_by_lanes(
    graph: Graph, hosts: Sequence[HostCapacity], counts: Sequence[int], bandwidth: float = BANDWIDTH
) -> GraphPlan:
    """The plan that ends soonest of those tried, on *counts[i]* lanes of each host."""
    planned = PlannedGraph.of(graph, bandwidth)
    lanes = Lanes.of(counts, [host.speed for host in hosts])
    allowed = _allowed(graph, planned, hosts)

    def tried(ranks: Sequence[float] | None, insertion: bool = True) -> LaneSchedule:
        return schedule(planned, lanes, ranks, insertion=insertion, allowed=allowed)

    best, ranks = _best_order(planned, tried)
    bound = lower_bound_s(planned, lanes.speeds)
    best = _bettered(planned, tried, best, ranks, bound)
    order = sorted(range(len(planned.steps)), key=lambda index: (best.starts[index], best.ends[index], index))
    names = [host.name for host in hosts]
    runs = tuple(
        PlannedRun(planned.steps[index], names[lanes.hosts[best.lanes[index]]], best.starts[index], best.ends[index])
        for index in order
    )
    lane_of = [0] * len(graph)
    for index, number in enumerate(planned.steps):
        lane_of[number] = best.lanes[index]
    critical = critical_runs(graph, runs, bandwidth)
    return summed(graph, hosts, runs, bound, critical_path_s(planned), critical, tuple(lane_of))


def summed(
    graph: Graph,
    hosts: Sequence[HostCapacity],
    runs: tuple[PlannedRun, ...],
    bound_s: float,
    critical_s: float,
    critical: tuple[int, ...],
    lanes: tuple[int, ...] = (),
    fragmented: float | None = None,
) -> GraphPlan:
    """A plan of these *runs*, with what it costs and moves."""
    by_name = {host.name: host for host in hosts}
    at = {run.step: run.host for run in runs}
    cost = sum(
        by_name[run.host].price
        * share_of(by_name[run.host], graph.steps[run.step].cost.demand)
        * (run.end_s - run.start_s)
        / 3600
        for run in runs
    )
    moved = sum(
        graph.arrow_bytes(producer, run.step)
        for run in runs
        for producer in graph.taken[run.step]
        if at[producer] != run.host
    )
    makespan = max((run.end_s for run in runs), default=0.0)
    return GraphPlan(runs, makespan, bound_s, critical_s, critical, cost, moved, fragmented, lanes)


def critical_runs(graph: Graph, runs: Sequence[PlannedRun], bandwidth: float = BANDWIDTH) -> tuple[int, ...]:
    """The chain of steps that leads to the last end: each begins because the one before, a producer or what was on
    its host, ended then. Oldest first."""
    if not runs:
        return ()
    by_step = {run.step: run for run in runs}
    on_host: dict[str, list[tuple[float, int]]] = {}
    for run in runs:
        on_host.setdefault(run.host, []).append((run.end_s, run.step))
    for ends in on_host.values():
        ends.sort()
    at = max(runs, key=lambda run: (run.end_s, -run.step))
    path = [at.step]
    while at.start_s > _SAME and len(path) <= len(runs):
        best, best_at = -1, -1.0
        for producer in graph.producers[at.step]:
            run = by_step.get(producer, at)
            there = run.end_s + (0.0 if run.host == at.host else graph.arrow_bytes(producer, at.step) / bandwidth)
            if run is not at and there > best_at:
                best, best_at = producer, there
        if best_at < at.start_s - max(_SAME, 1e-6 * at.start_s):
            # Not its inputs: it waited for room on its host.
            ends = on_host[at.host]
            place = bisect_right(ends, (at.start_s + _SAME, len(graph)))
            if place and ends[place - 1][1] != at.step and ends[place - 1][0] > best_at:
                best = ends[place - 1][1]
        if best < 0:
            break
        at = by_step[best]
        path.append(best)
    return tuple(reversed(path))


# -- looking for a good order


def _best_order(planned: PlannedGraph, tried: Callable[..., LaneSchedule]) -> tuple[LaneSchedule, list[float]]:
    """The best of the known orders, and the ranks to go on from."""
    upward = upward_ranks(planned)
    best, ranks = tried(upward), upward
    if len(planned.steps) <= FIRST_TRIES_STEPS_MAX // 8:
        downward = downward_ranks(planned)
        total = [up + down for up, down in zip(upward, downward, strict=True)]
        for other in (upward_ranks(planned, transfers=0.0), total, [-down for down in downward]):
            found = tried(other)
            if found.makespan_s < best.makespan_s - _SAME:
                best, ranks = found, list(other)
    found = tried(None, False)
    if found.makespan_s < best.makespan_s - _SAME:
        # As a queue serves them: their starts, backwards, are ranks that give the same or better.
        best, ranks = found, [-start for start in found.starts]
    return best, ranks


def _bettered(
    planned: PlannedGraph, tried: Callable[..., LaneSchedule], best: LaneSchedule, ranks: list[float], bound: float
) -> LaneSchedule:
    """*best*, or something shorter, down to *bound*: orders like its own, moved at random places by random amounts."""
    count = len(planned.steps)
    tries = min(TRIES_MAX, TRIED_STEPS_MAX // max(1, count))
    if tries < TRIES_MIN:
        return best
    dice = _Dice(count)
    for number in range(tries):
        if best.makespan_s <= bound + _SAME:
            break
        noise = NOISE[number % len(NOISE)]
        moved = [rank * (1 + noise * dice.signed()) if dice.signed() > 0 else rank for rank in ranks]
        found = tried(moved)
        if found.makespan_s < best.makespan_s + _SAME:
            best, ranks = (found if found.makespan_s < best.makespan_s else best), moved
    return best


class _Dice:
    """Numbers that look random and are the same every time (xorshift64*, Marsaglia 2003 and Vigna 2016)."""

    def __init__(self, seed: int) -> None:
        self._state = (seed * 0x9E3779B97F4A7C15 + 1) % 2**64

    def signed(self) -> float:
        """A number from -1 to 1."""
        state = self._state
        state ^= state >> 12
        state ^= state << 25 & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 27
        self._state = state
        return ((state * 0x2545F4914F6CDD1D) % 2**64) / 2**63 - 1.0


def _allowed(graph: Graph, planned: PlannedGraph, hosts: Sequence[HostCapacity]) -> list[frozenset[int] | None]:
    """The hosts that each step may have, where it is bound to one; empty: no step is."""
    place = {host.name: index for index, host in enumerate(hosts)}
    if not any(graph.steps[number].node or graph.together[number] for number in planned.steps):
        return []
    found: list[frozenset[int] | None] = []
    for number in planned.steps:
        group = (number, *graph.together[number])
        node = next((graph.steps[member].node for member in group if graph.steps[member].node), "")
        if node:
            found.append(frozenset((place[node],)))
        elif len(group) > 1:
            found.append(frozenset((min(group) % len(hosts),)))  # groups that nobody has bound go round
        else:
            found.append(None)
    return found
