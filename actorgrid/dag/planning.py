"""The plan of a graph by a strategy's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .allocators import DEFAULT, CostOptimized, TimeOptimized, find_allocator
from .hosts import HostCapacity, check_satisfiable
from .model import Graph
from .plan import GraphPlan
from .ranks import BANDWIDTH
from .simulation import simulate

FRAGMENTATION_POLICY = "fgd"


def plan_graph(
    graph: Graph,
    hosts: Sequence[HostCapacity],
    strategy: str = DEFAULT,
    *,
    bandwidth: float = BANDWIDTH,
    deadline_s: float | None = None,
) -> GraphPlan:
    """Where and when each step is expected to run on *hosts*, which have nothing else to do.

    Raises UnsatisfiableCost for a step that no host could serve, UnknownPolicy for a strategy that is none.
    """
    check_satisfiable(graph, hosts)
    allocator = find_allocator(strategy)
    if isinstance(allocator, CostOptimized):
        allocator = CostOptimized(deadline_s)
    if isinstance(allocator, TimeOptimized):
        allocator = TimeOptimized(bandwidth)
    policy = FRAGMENTATION_POLICY if strategy == "least_fragmentation" else "best_fit"
    played = simulate(graph, hosts, allocator, bandwidth=bandwidth, policy=policy)
    if isinstance(allocator, TimeOptimized) and allocator.plan is not None:
        # Played as planned it is the same, and says what else there is to say.
        best = allocator.plan if allocator.plan.makespan_s < played.makespan_s else played
        return replace(best, fragmented=played.fragmented, lower_bound_s=allocator.plan.lower_bound_s)
    return played
