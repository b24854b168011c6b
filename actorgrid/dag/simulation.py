"""A graph played on virtual time: an allocator decides, hosts run what it starts, and nothing waits for a clock.

For plans of strategies that make none beforehand, for `actorgrid dag plan`, and to see what wrong estimates do.
Bringing what a step takes from other hosts begins when it was made, as long as nobody knows where it will be wanted:
the model that HEFT is published with. A step holds its room from when it is given until it ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from actorgrid.errors import AllocatorStalled

from .allocators import Allocator
from .hosts import ClusterTracker, HostCapacity
from .model import Graph
from .plan import GraphPlan, PlannedRun, critical_runs, summed
from .ranks import BANDWIDTH, PlannedGraph, critical_path_s

READY_SHOWN = 256
"""Steps that could begin which an allocator is shown at a time, the most urgent first."""


class ReadySteps:
    """The steps that could begin, the most urgent first. *urgency* by number; ``None``: in the order they came."""

    def __init__(self, urgency: Sequence[float] | None) -> None:
        self._urgency = urgency
        self._heap: list[tuple[float, int, int]] = []
        self._came = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, step: int) -> None:
        """Add a step whose producers are done."""
        self._came += 1
        urgency = 0.0 if self._urgency is None else -self._urgency[step]
        heapq.heappush(self._heap, (urgency, self._came, step))

    def offer(self, most: int = READY_SHOWN) -> list[int]:
        """Take out the first *most*; those that did not begin are put back by ``give_back``."""
        self._offered = [heapq.heappop(self._heap) for _ in range(min(most, len(self._heap)))]
        return [step for _, _, step in self._offered]

    def give_back(self, begun: set[int]) -> None:
        """Put back what was offered and is not among *begun*."""
        for entry in self._offered:
            if entry[2] not in begun:
                heapq.heappush(self._heap, entry)
        self._offered = []


def simulate(
    graph: Graph,
    hosts: Sequence[HostCapacity],
    allocator: Allocator,
    *,
    bandwidth: float = BANDWIDTH,
    runtimes: Sequence[float] | None = None,
    policy: str = "best_fit",
) -> GraphPlan:
    """Play *graph* on *hosts*. *runtimes*, by step, is how long they really take (default: as expected).

    Raises AllocatorStalled when nothing runs and the allocator begins nothing of what could.
    """
    tracker = ClusterTracker(graph, hosts, bandwidth=bandwidth, policy=policy)
    speeds = {host.name: host.speed for host in hosts}
    ready = ReadySteps(allocator.prepare(graph, tracker))
    open_counts = [len(graph.producers[number]) for number in range(len(graph))]
    for number in graph.running:
        if not open_counts[number]:
            ready.add(number)
    ended_at: dict[int, float] = {}
    ending: list[tuple[float, int]] = []
    runs: list[PlannedRun] = []
    now = fragments_s = 0.0
    with_gpus = any(graph.steps[number].cost.demand.gpu_count for number in graph.running)
    while ready or ending:
        allocator.allocate(ready.offer(), tracker, now)
        begun = tracker.claimed[:]
        tracker.claimed.clear()
        ready.give_back({step for step, _ in begun})
        for step, host in begun:
            begin = now
            for producer in graph.producers[step]:
                there = ended_at[producer]
                if tracker.host_of(producer) != host:
                    there += graph.arrow_bytes(producer, step) / bandwidth
                begin = max(begin, there)
            runtime = graph.steps[step].cost.expected_s if runtimes is None else runtimes[step]
            end = begin + runtime / speeds[host]
            runs.append(PlannedRun(step, host, begin, end))
            heapq.heappush(ending, (end, step))
        if not ending:
            shown = [graph.steps[step].id for step in ready.offer(3)]
            raise AllocatorStalled(
                f"{type(allocator).__name__} begins nothing although nothing runs",
                found=f"{len(shown) + len(ready)} steps could begin: {', '.join(shown)}, ...",
                hint="claim room for one of them: tracker.claim(step, host)",
            )
        if with_gpus:
            free, whole = tracker.gpu_milli()
            fragments_s += free / whole * (ending[0][0] - now) if whole else 0.0
        now, _ = ending[0]
        while ending and ending[0][0] <= now:
            _, step = heapq.heappop(ending)
            ended_at[step] = now
            tracker.ended(step)
            for consumer in graph.consumers[step]:
                open_counts[consumer] -= 1
                if not open_counts[consumer] and graph.steps[consumer].kind.runs:
                    ready.add(consumer)
    runs.sort(key=lambda run: (run.start_s, run.end_s, run.step))
    planned = PlannedGraph.of(graph, bandwidth)
    # What runs at once is bounded by the hosts' CPUs at least; without any, by nothing that is known here.
    total_cpu = sum(host.cpu_milli * host.speed for host in hosts)
    work = sum(graph.steps[n].cost.demand.cpu_milli * graph.steps[n].cost.expected_s for n in graph.running)
    bound = max(critical_path_s(planned) / max(speeds.values()), work / total_cpu if total_cpu else 0.0)
    found = tuple(runs)
    critical = critical_runs(graph, found, bandwidth)
    fragmented = (fragments_s / now if now else 0.0) if with_gpus else None
    return summed(graph, hosts, found, bound, critical_path_s(planned), critical, fragmented=fragmented)
