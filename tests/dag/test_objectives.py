"""What a graph is judged by: measured as planned where it ran as planned, and by hand where it did not."""

from __future__ import annotations

import pytest

from actorgrid.dag.hosts import HostCapacity
from actorgrid.dag.model import Cost, Graph, GraphStep
from actorgrid.dag.objectives import MeasuredRun, measured, of_plan
from actorgrid.dag.planning import plan_graph
from actorgrid.demand import Demand

from .heft import random_graph


@pytest.mark.parametrize("seed", range(4))
def test_what_ran_as_planned_measures_as_planned(seed: int) -> None:
    graph = random_graph(seed, 60, 1.0)
    hosts = [HostCapacity(f"h{number}") for number in range(3)]
    plan = plan_graph(graph, hosts)
    runs = [MeasuredRun(run.step, run.host, (), run.start_s, run.end_s, 7) for run in plan.runs]
    found, planned = measured(graph, runs, hosts), of_plan(graph, plan)
    assert found.makespan_s == pytest.approx(planned.makespan_s)
    assert found.steps_per_s == pytest.approx(planned.steps_per_s)
    assert found.cost == pytest.approx(planned.cost)
    assert found.bytes_moved > 0


def test_a_result_is_brought_to_a_host_once() -> None:
    steps = [GraphStep("a"), *(GraphStep(f"b{n}", inputs=("a",)) for n in range(4)), GraphStep("c", after=("a",))]
    runs = [
        MeasuredRun(0, "x", (), 0, 1, 100),
        MeasuredRun(1, "y", (), 1, 2, 5),
        MeasuredRun(2, "y", (), 1, 2, 5),
        MeasuredRun(3, "z", (), 1, 2, 5),
        MeasuredRun(4, "x", (), 1, 2, 5),
        MeasuredRun(5, "z", (), 1, 2, 5),  # takes nothing from a
    ]
    found = measured(Graph(steps), runs, [])
    assert (found.bytes_moved, found.steps, found.makespan_s) == (200, 6, 2)


def test_gpu_time_beside_a_part_that_is_taken_is_fragmented() -> None:
    half = Cost(Demand(gpu_count=1, gpu_milli=500))
    graph = Graph([GraphStep("a", cost=half), GraphStep("b", cost=half)])
    hosts = [HostCapacity("x", gpus=(("m", 1000), ("m", 1000)))]
    apart = [MeasuredRun(0, "x", (0,), 0, 10, 0), MeasuredRun(1, "x", (1,), 0, 5, 0)]
    together = [MeasuredRun(0, "x", (0,), 0, 10, 0), MeasuredRun(1, "x", (0,), 0, 10, 0)]
    assert measured(graph, apart, hosts).fragmented == pytest.approx((5 + 2.5) / 20)
    assert measured(graph, together, hosts).fragmented == 0.0


def test_without_gpus_nothing_is_fragmented_and_without_runs_there_is_nothing() -> None:
    graph = Graph([GraphStep("a")])
    assert measured(graph, [MeasuredRun(0, "x", (), 0, 1, 0)], []).fragmented is None
    assert measured(graph, [], []).steps_per_s == 0.0
