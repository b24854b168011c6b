"""Plans: no longer than HEFT's, kept to when they are played, and the same every time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actorgrid.dag.allocators import BUILT_IN, TimeOptimized
from actorgrid.dag.hosts import HostCapacity
from actorgrid.dag.list_schedule import Lanes, schedule
from actorgrid.dag.model import Cost, Graph, GraphStep
from actorgrid.dag.plan import GraphPlan, lane_counts, plan_by_lanes, slots_of
from actorgrid.dag.planning import plan_graph
from actorgrid.dag.ranks import PlannedGraph, critical_path_s, lower_bound_s, upward_ranks
from actorgrid.dag.simulation import simulate
from actorgrid.dag.wfcommons import graph_of
from actorgrid.demand import Demand

from .heft import heft_makespan, random_graph

WORKFLOWS = Path(__file__).parent / "workflows"
MONTAGE = "montage-chameleon-2mass-01d-001.json"
EPIGENOMICS = "epigenomics-chameleon-hep-1seq-100k-001.json"


def workflow(name: str) -> Graph:
    return graph_of(json.loads((WORKFLOWS / name).read_text()))


def processors(count: int) -> list[HostCapacity]:
    return [HostCapacity(f"p{number}") for number in range(count)]


def check_plan(graph: Graph, hosts: list[HostCapacity], plan: GraphPlan, bandwidth: float = 125e6) -> None:
    """A plan is possible: everything runs once, on hosts with room, not before what it takes is there."""
    runs = plan.by_step
    assert sorted(runs) == sorted(graph.running)
    for number, run in runs.items():
        assert run.end_s - run.start_s == pytest.approx(graph.steps[number].cost.expected_s)
        for producer in graph.producers[number]:
            there = runs[producer].end_s
            if runs[producer].host != run.host:
                there += graph.arrow_bytes(producer, number) / bandwidth
            assert run.start_s >= there - 1e-6
    for host in hosts:
        marks = [
            mark
            for number, run in runs.items()
            if run.host == host.name and run.end_s > run.start_s
            for cpu in [graph.steps[number].cost.demand.cpu_milli]
            for mark in [(run.start_s + 1e-7, cpu), (run.end_s - 1e-7, -cpu)]
        ]
        used = 0
        for _, cpu in sorted(marks):
            used += cpu
            assert used <= host.cpu_milli
    assert plan.makespan_s == pytest.approx(max(run.end_s for run in runs.values()))
    assert plan.makespan_s >= plan.lower_bound_s - 1e-6


@pytest.mark.parametrize(
    ("name", "count", "reference_s", "bound_s"),
    [
        (MONTAGE, 4, 99.5, 90.7),
        (MONTAGE, 16, 35.4, 22.7),
        (EPIGENOMICS, 4, 192.5, 134.8),
        (EPIGENOMICS, 16, 104.8, 104.8),
    ],
)
def test_the_workflows_take_no_longer_than_by_heft(name: str, count: int, reference_s: float, bound_s: float) -> None:
    graph, hosts = workflow(name), processors(count)
    plan = plan_graph(graph, hosts)
    assert heft_makespan(graph, count) == pytest.approx(reference_s, abs=0.06)
    assert plan.makespan_s <= 1.0 * heft_makespan(graph, count) + 1e-6
    assert plan.lower_bound_s == pytest.approx(bound_s, abs=0.06)
    check_plan(graph, hosts, plan)


@pytest.mark.parametrize("seed", range(12))
def test_other_graphs_take_no_longer_than_by_heft(seed: int) -> None:
    graph = random_graph(seed, (20, 60, 120)[seed % 3], (0.05, 0.3, 1.0, 3.0)[seed % 4])
    count = (2, 3, 4, 8, 16)[seed % 5]
    plan = plan_graph(graph, processors(count))
    assert plan.makespan_s <= heft_makespan(graph, count) * (1 + 1e-9)
    check_plan(graph, processors(count), plan)


def test_a_plan_that_is_played_takes_what_it_said() -> None:
    graph, hosts = workflow(MONTAGE), processors(4)
    allocator = TimeOptimized()
    played = simulate(graph, hosts, allocator)
    assert allocator.plan is not None
    assert played.makespan_s == pytest.approx(allocator.plan.makespan_s)


def test_the_same_graph_gets_the_same_plan() -> None:
    graph = random_graph(7, 80, 0.3)
    assert plan_graph(graph, processors(4)) == plan_graph(graph, processors(4))


@pytest.mark.parametrize("strategy", BUILT_IN)
def test_every_strategy_gives_a_plan_that_is_possible(strategy: str) -> None:
    for seed in range(2):
        graph, hosts = random_graph(seed, 50, 0.3), processors(3)
        check_plan(graph, hosts, plan_graph(graph, hosts, strategy))


def test_wrong_estimates_cost_little_more_than_knowing_better() -> None:
    graph, hosts = workflow(EPIGENOMICS), processors(4)
    really = [step.cost.expected_s * (0.5 if number % 2 else 1.5) for number, step in enumerate(graph.steps)]
    played = simulate(graph, hosts, TimeOptimized(), runtimes=really)
    told = Graph(
        [
            GraphStep(s.id, inputs=s.inputs, input_bytes=s.input_bytes, cost=Cost(runtime_s=t))
            for s, t in zip(graph.steps, really, strict=True)
        ]
    )
    assert played.makespan_s <= 1.25 * plan_graph(told, hosts).makespan_s


def test_steps_on_one_host_need_nothing_brought() -> None:
    graph = Graph(
        [
            GraphStep("a", cost=Cost(runtime_s=1, output_bytes=10**9)),
            GraphStep("b", inputs=("a",), cost=Cost(runtime_s=1)),
        ]
    )
    plan = plan_graph(graph, processors(2))
    assert plan.makespan_s == pytest.approx(2.0)
    assert plan.bytes_moved == 0
    assert [graph.steps[step].id for step in plan.critical_path] == ["a", "b"]


def test_the_critical_path_goes_by_hosts_too() -> None:
    graph = Graph([GraphStep("a", cost=Cost(runtime_s=3)), GraphStep("b", cost=Cost(runtime_s=2))])
    plan = plan_graph(graph, processors(1), "first_available")
    assert [graph.steps[step].id for step in plan.critical_path] == ["a", "b"]


def test_a_gap_is_used() -> None:
    # On one processor each: b waits for what a sends to it for 10 s; c fits in between.
    graph = Graph(
        [
            GraphStep("a", cost=Cost(runtime_s=1), node="p0"),
            GraphStep("b", inputs=("a",), input_bytes=(int(10 * 125e6),), cost=Cost(runtime_s=5), node="p1"),
            GraphStep("c", cost=Cost(runtime_s=4), node="p1"),
        ]
    )
    planned, lanes = PlannedGraph.of(graph), Lanes.of([1, 1])
    allowed = [frozenset((0,)), frozenset((1,)), frozenset((1,))]
    ranks = [(20.0, 15.0, 4.0)[number] for number in planned.steps]
    found = schedule(planned, lanes, ranks, allowed=[allowed[n] for n in planned.steps])
    starts = dict(zip((graph.steps[n].id for n in planned.steps), found.starts, strict=True))
    assert starts == {"a": 0.0, "b": 11.0, "c": 0.0}
    late = schedule(planned, lanes, ranks, insertion=False, allowed=[allowed[n] for n in planned.steps])
    assert late.makespan_s == pytest.approx(20.0)


def test_a_faster_host_is_used_for_what_is_critical() -> None:
    graph = Graph([GraphStep("long", cost=Cost(runtime_s=10)), GraphStep("short", cost=Cost(runtime_s=1))])
    hosts = [HostCapacity("slow"), HostCapacity("fast", speed=2.0)]
    plan = plan_graph(graph, hosts)
    assert plan.by_step[0].host == "fast"
    assert plan.makespan_s == pytest.approx(5.0)


def test_a_host_with_several_cpus_is_several_lanes() -> None:
    graph = Graph([GraphStep(f"s{number}", cost=Cost(runtime_s=1)) for number in range(8)])
    host = HostCapacity("big", cpu_milli=4000)
    assert lane_counts(graph, [host]) == [4]
    assert plan_graph(graph, [host]).makespan_s == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("demand", "slots"),
    [
        (Demand(cpu_milli=500), 16),
        (Demand(cpu_milli=1000, memory_mib=512), 2),
        (Demand(cpu_milli=1000, gpu_count=1), 2),
        (Demand(cpu_milli=1000, gpu_count=1, gpu_milli=300), 6),
        (Demand(cpu_milli=1000, gpu_count=1, gpu_milli=300, gpu_memory_mib=600), 3),
        (Demand(cpu_milli=1000, gpu_count=2), 1),
        (Demand(cpu_milli=1000, gpu_count=1, gpu_models=("B",)), 1),
        (Demand(cpu_milli=1000, gpu_count=1, gpu_memory_mib=4000), 0),
        (Demand(cpu_milli=9000), 0),
    ],
)
def test_how_many_steps_a_host_runs_at_once(demand: Demand, slots: int) -> None:
    host = HostCapacity("h", cpu_milli=8000, memory_mib=1024, gpus=(("A", 1000), ("B", 1500)))
    assert slots_of(host, demand) == slots


def test_steps_that_differ_in_what_they_need_are_planned_too() -> None:
    steps = [GraphStep(f"c{n}", cost=Cost(Demand(cpu_milli=1000), 2.0)) for n in range(6)]
    steps += [
        GraphStep(f"g{n}", inputs=(f"c{n}",), cost=Cost(Demand(cpu_milli=500, gpu_count=1), 3.0)) for n in range(6)
    ]
    graph = Graph(steps)
    hosts = [HostCapacity(f"h{n}", cpu_milli=2000, gpus=(("A", 1000),)) for n in range(2)]
    assert lane_counts(graph, hosts) is None
    for strategy in BUILT_IN:
        plan = plan_graph(graph, hosts, strategy)
        check_plan(graph, hosts, plan)
        assert plan.fragmented is not None
        assert plan.makespan_s <= 16


def test_no_more_run_at_once_than_the_graph_allows() -> None:
    steps = [GraphStep(f"s{n}", cost=Cost(runtime_s=1.0, named={"licence": 2})) for n in range(6)]
    hosts = [HostCapacity("h", cpu_milli=8000)]
    assert plan_graph(Graph(steps, named={"licence": 5}), hosts).makespan_s == pytest.approx(3.0)
    plain = [GraphStep(f"s{n}", cost=Cost(runtime_s=1.0)) for n in range(6)]
    assert plan_graph(Graph(plain, in_parallel=3), hosts).makespan_s == pytest.approx(2.0)


def test_bounds_are_bounds() -> None:
    planned = PlannedGraph.of(
        Graph(
            [
                GraphStep("a", cost=Cost(runtime_s=2)),
                GraphStep("b", after=("a",), cost=Cost(runtime_s=3)),
                GraphStep("c", cost=Cost(runtime_s=5)),
            ]
        )
    )
    assert critical_path_s(planned) == 5.0
    assert lower_bound_s(planned, [1.0]) == 10.0
    assert lower_bound_s(planned, [1.0, 1.0, 2.0]) == 2.5
    assert max(upward_ranks(planned)) == 5.0


def test_many_hosts_and_lanes_are_tried_in_part_and_still_give_a_plan() -> None:
    graph = random_graph(3, 200, 0.3)
    many = [HostCapacity(f"h{n}", cpu_milli=4000) for n in range(100)]
    counts = lane_counts(graph, many)
    assert counts is not None
    plan = plan_by_lanes(graph, many, counts)
    check_plan(graph, many, plan)
    assert plan.makespan_s <= 1.1 * plan.critical_path_s
