"""Plans of graphs: how long traced workflows would take, by HEFT's measure, and what planning itself takes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

from actorgrid.dag.hosts import HostCapacity, check_satisfiable
from actorgrid.dag.model import Graph
from actorgrid.dag.plan import lane_counts, plan_by_lanes
from actorgrid.dag.planning import plan_graph
from actorgrid.dag.wfcommons import graph_of
from tests.dag.heft import heft_makespan, random_graph

from .figures import Figure, registry

WORKFLOWS = Path(__file__).resolve().parents[1] / "dag/workflows"
NAMES = {
    "Montage": "montage-chameleon-2mass-01d-001.json",
    "Epigenomics": "epigenomics-chameleon-hep-1seq-100k-001.json",
}
OTHERS = 40
LARGE = 10_000


@registry.add("graph_plans")
def graph_plans(runs: int) -> Iterator[Figure]:
    """Makespans against HEFT's on the same processors, and CPU time to check and plan 10,000 steps."""
    for workflow, name in NAMES.items():
        graph = graph_of(json.loads((WORKFLOWS / name).read_text()))
        for count in (4, 16):
            hosts = [HostCapacity(f"p{number}") for number in range(count)]
            plan = plan_graph(graph, hosts)
            part = plan.makespan_s / heft_makespan(graph, count)
            note = f"{plan.makespan_s:.1f} s, at least {plan.lower_bound_s:.1f} s"
            yield Figure(f"plan of {workflow}, {count} processors", "of HEFT", [part], False, must=1.03, note=note)
    parts = []
    for seed in range(OTHERS):
        graph = random_graph(1_000 + seed, (20, 60, 120, 300)[seed % 4], (0.05, 0.3, 1.0, 3.0)[seed // 4 % 4])
        count = (2, 3, 4, 8, 16)[seed % 5]
        plan = plan_graph(graph, [HostCapacity(f"p{number}") for number in range(count)])
        parts.append(plan.makespan_s / heft_makespan(graph, count))
    yield Figure(f"plans of {OTHERS} random graphs", "of HEFT", parts, False, must=1.03, note=f"worst {max(parts):.3f}")
    large = random_graph(5, LARGE, 0.3)
    hosts = [HostCapacity(f"h{number}") for number in range(16)]
    took = []
    for _ in range(runs):
        started = time.process_time()
        graph = Graph(large.steps)
        check_satisfiable(graph, hosts)
        counts = lane_counts(graph, hosts)
        assert counts is not None
        plan_by_lanes(graph, hosts, counts)
        took.append(time.process_time() - started)
    yield Figure(f"check and plan {LARGE} steps on 16 hosts, CPU", "s", took, False, must=1.0)
