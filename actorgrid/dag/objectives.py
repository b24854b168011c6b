"""What a graph is judged by: how long it took, how many steps a second, what crossed between hosts, what was spoilt.

Measured from what really ran, in the same terms as a plan, so that both stand beside each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .hosts import HostCapacity
from .model import Graph
from .plan import GraphPlan, share_of

WHOLE_MILLI = 1000


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One step's run that gave the result which counts: its number, the host, the devices there, when (seconds of any
    clock), and how many bytes it gave."""

    step: int
    host: str
    gpu_indexes: tuple[int, ...]
    start_s: float
    end_s: float
    size: int


@dataclass(frozen=True, slots=True)
class GraphObjectives:
    """*steps* that ran to their end, in *makespan_s* from the first start to the last end. *bytes_moved* crossed from
    host to host. *fragmented*: the part of all GPU time that was free on devices of which another part was taken;
    ``None`` where no step had a GPU. *cost* is in the unit of the hosts' prices."""

    steps: int
    makespan_s: float
    bytes_moved: int
    fragmented: float | None
    cost: float

    @property
    def steps_per_s(self) -> float:
        """Throughput."""
        return self.steps / self.makespan_s if self.makespan_s > 0 else 0.0


def of_plan(graph: Graph, plan: GraphPlan) -> GraphObjectives:
    """What a plan says. Here too a result is brought to each host once; ``plan.bytes_moved`` counts arrows."""
    at = {run.step: run.host for run in plan.runs}
    brought: dict[tuple[int, str], int] = {}
    for run in plan.runs:
        for producer in graph.taken[run.step]:
            if at[producer] != run.host:
                arrow = producer, run.host
                brought[arrow] = max(brought.get(arrow, 0), graph.arrow_bytes(producer, run.step))
    return GraphObjectives(len(plan.runs), plan.makespan_s, sum(brought.values()), plan.fragmented, plan.cost)


def measured(graph: Graph, runs: Sequence[MeasuredRun], hosts: Sequence[HostCapacity]) -> GraphObjectives:
    """What came of these *runs* on these *hosts*. A result is brought to each host once, however many steps there take
    from it."""
    if not runs:
        return GraphObjectives(0, 0.0, 0, None, 0.0)
    by_step = {run.step: run for run in runs}
    brought: set[tuple[int, str]] = set()
    for run in runs:
        for producer in graph.taken[run.step]:
            source = by_step.get(producer)
            if source is not None and source.host != run.host:
                brought.add((producer, run.host))
    begin, end = min(run.start_s for run in runs), max(run.end_s for run in runs)
    by_name = {host.name: host for host in hosts}
    cost = 0.0
    for run in runs:
        host = by_name.get(run.host)
        if host is not None:
            share = share_of(host, graph.steps[run.step].cost.demand)
            cost += host.price * share * (run.end_s - run.start_s) / 3600
    moved = sum(by_step[producer].size for producer, _ in brought)
    return GraphObjectives(len(runs), end - begin, moved, _fragmented(graph, runs, hosts, end - begin), cost)


def _fragmented(
    graph: Graph, runs: Sequence[MeasuredRun], hosts: Sequence[HostCapacity], makespan_s: float
) -> float | None:
    changes: dict[tuple[str, int], list[tuple[float, int]]] = {}
    for run in runs:
        milli = graph.steps[run.step].cost.demand.gpu_milli
        for index in run.gpu_indexes:
            changes.setdefault((run.host, index), []).extend([(run.start_s, milli), (run.end_s, -milli)])
    if not changes:
        return None
    devices = max(len(changes), sum(len(host.gpus) for host in hosts))
    spoilt = 0.0
    for events in changes.values():
        taken, before_s = 0, 0.0
        for at_s, milli in sorted(events):
            if 0 < taken < WHOLE_MILLI:
                spoilt += (WHOLE_MILLI - taken) / WHOLE_MILLI * (at_s - before_s)
            taken, before_s = taken + milli, at_s
    return spoilt / (devices * makespan_s) if makespan_s > 0 else 0.0
