"""Strategies: what each of them goes by, and that others can be offered by packages."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint

import pytest

from actorgrid.dag import allocators
from actorgrid.dag.allocators import (
    GROUP,
    CostOptimized,
    FirstAvailable,
    TimeOptimized,
    allocator_names,
    find_allocator,
)
from actorgrid.dag.hosts import ClusterTracker, HostCapacity, ResourceTracker, check_satisfiable
from actorgrid.dag.model import Cost, Graph, GraphStep
from actorgrid.dag.planning import plan_graph
from actorgrid.dag.simulation import ReadySteps, simulate
from actorgrid.demand import Demand
from actorgrid.errors import AllocatorStalled, UnknownNode, UnknownPolicy, UnsatisfiableCost

BIG, SMALL = HostCapacity("big", 4000, price_per_hour=8.0), HostCapacity("small", 1000, price_per_hour=1.0)


def independent(count: int, **cost: float) -> Graph:
    return Graph([GraphStep(f"s{number}", cost=Cost(runtime_s=1.0, **cost)) for number in range(count)])  # type: ignore[arg-type]


def hosts_of(graph: Graph, hosts: Sequence[HostCapacity], strategy: str) -> list[str]:
    runs = plan_graph(graph, hosts, strategy).by_step
    return [runs[number].host for number in graph.running]


def test_first_available_takes_the_first_host_with_room() -> None:
    assert hosts_of(independent(5), [BIG, SMALL], "first_available") == ["big"] * 4 + ["small"]


def test_load_balanced_takes_the_least_used_host() -> None:
    two = [HostCapacity("a", 4000), HostCapacity("b", 4000)]
    assert hosts_of(independent(4), two, "load_balanced") == ["a", "b", "a", "b"]


def test_cost_optimized_takes_the_cheapest_host() -> None:
    assert hosts_of(independent(3), [BIG, SMALL], "cost_optimized") == ["small", "big", "big"]


def test_cost_optimized_waits_for_the_cheapest_host_while_the_deadline_lets_it() -> None:
    graph = independent(3)
    patient = simulate(graph, [BIG, SMALL], CostOptimized(deadline_s=10.0))
    assert {run.host for run in patient.runs} == {"small"}
    hurried = simulate(graph, [BIG, SMALL], CostOptimized(deadline_s=2.0))
    assert hurried.makespan_s <= 2.0
    assert {run.host for run in hurried.runs} == {"big", "small"}


def test_least_communication_goes_where_the_inputs_are() -> None:
    steps = [
        GraphStep("a", cost=Cost(runtime_s=1, output_bytes=10**9), node="two"),
        GraphStep("b", inputs=("a",), cost=Cost(runtime_s=1)),
    ]
    two = [HostCapacity("one", 4000), HostCapacity("two", 4000)]
    assert hosts_of(Graph(steps), two, "least_communication") == ["two", "two"]
    assert hosts_of(Graph(steps), two, "first_available") == ["two", "one"]


def test_least_fragmentation_keeps_devices_whole() -> None:
    steps = [GraphStep(f"h{n}", cost=Cost(Demand(cpu_milli=100, gpu_count=1, gpu_milli=500), 1.0)) for n in range(2)]
    steps.append(GraphStep("whole", cost=Cost(Demand(cpu_milli=100, gpu_count=1), 1.0)))
    hosts = [HostCapacity(f"h{n}", 1000, gpus=(("A", 1000),)) for n in range(2)]
    plan = plan_graph(Graph(steps), hosts, "least_fragmentation")
    assert plan.by_step[0].host == plan.by_step[1].host
    assert plan.fragmented == 0.0
    assert plan.makespan_s == pytest.approx(1.0)


def test_a_step_runs_on_the_host_that_it_names_and_with_what_it_is_collocated_with() -> None:
    steps = [GraphStep("a", node="b"), GraphStep("c"), GraphStep("d", collocated="a"), GraphStep("e", collocated="d")]
    hosts = [HostCapacity("a", 4000), HostCapacity("b", 4000)]
    for strategy in allocators.BUILT_IN:
        found = hosts_of(Graph(steps), hosts, strategy)
        assert found[0] == found[2] == found[3] == "b", strategy


def test_collocated_steps_that_name_no_host_share_one() -> None:
    steps = [GraphStep(f"s{n}", collocated="" if n == 0 else "s0") for n in range(6)]
    hosts = [HostCapacity(f"h{n}", 1000) for n in range(3)]
    for strategy in allocators.BUILT_IN:
        assert len(set(hosts_of(Graph(steps), hosts, strategy))) == 1, strategy


def test_what_nobody_can_give_is_named_with_the_way_to_the_step() -> None:
    steps = [GraphStep("load"), GraphStep("train", inputs=("load",), cost=Cost(Demand(cpu_milli=1000, gpu_count=16)))]
    with pytest.raises(UnsatisfiableCost) as refused:
        check_satisfiable(Graph(steps), [HostCapacity("h", gpus=(("A", 1000),) * 8)])
    assert refused.value.details == {"step": "train", "path": ["load", "train"]}
    assert refused.value.asked == "1 CPUs, 16 GPUs, at load -> train"
    assert "gpu_count" in refused.value.found


def test_a_host_that_is_not_there_and_too_much_of_a_resource_are_named() -> None:
    with pytest.raises(UnsatisfiableCost, match="no host is called that"):
        check_satisfiable(Graph([GraphStep("a", node="nowhere")]), [SMALL])
    graph = Graph([GraphStep("a", cost=Cost(named={"licence": 3}))], named={"licence": 2})
    with pytest.raises(UnsatisfiableCost, match="the graph has 2 of it"):
        check_satisfiable(graph, [SMALL])


def test_a_tracker_counts_what_is_held() -> None:
    tracker = ClusterTracker(independent(3), [BIG, SMALL])
    assert [host.name for host in tracker.room_for(0)] == ["big", "small"]
    assert tracker.claim(0, "small")
    assert not tracker.claim(0, "big")  # it runs already
    assert not tracker.claim(1, "small")
    assert not tracker.claim(1, "elsewhere")
    assert (tracker.load("small"), tracker.load("big")) == (1.0, 0.0)
    assert tracker.host_of(0) == "small"
    tracker.ended(0)
    assert tracker.host_of(0) == "small"
    assert tracker.claim(1, "small")
    assert tracker.claim_anywhere(2) == "big"
    tracker.lost(0)
    assert tracker.host_of(0) is None
    with pytest.raises(UnknownNode):
        tracker.load("elsewhere")


def test_ready_steps_come_by_urgency_and_go_back_where_they_were() -> None:
    ready = ReadySteps([1.0, 3.0, 2.0, 3.0])
    for step in range(4):
        ready.add(step)
    assert ready.offer(3) == [1, 3, 2]
    ready.give_back({3})
    assert len(ready) == 3
    assert ready.offer() == [1, 2, 0]


def test_an_unknown_strategy_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownPolicy, match="did you mean time_optimized"):
        find_allocator("time-optimised")


class Backwards(FirstAvailable):
    """The last step first."""

    def prepare(self, graph: Graph, tracker: ResourceTracker) -> Sequence[float]:
        return [float(number) for number in range(len(graph))]


class Idle(FirstAvailable):
    def allocate(self, ready: Sequence[int], tracker: ResourceTracker, now_s: float) -> None:
        """Begin nothing."""


def offer(monkeypatch: pytest.MonkeyPatch, name: str, found: str) -> None:
    point = EntryPoint(name, found, GROUP)
    monkeypatch.setattr(allocators, "entry_points", lambda group: [point] if group == GROUP else [])


def test_a_package_can_offer_a_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "backwards", f"{__name__}:Backwards")
    monkeypatch.setattr(EntryPoint, "load", lambda self: Backwards)
    assert "backwards" in allocator_names()
    plan = plan_graph(independent(3), [SMALL], "backwards")
    assert [run.step for run in plan.runs] == [2, 1, 0]


def test_a_package_that_offers_something_else_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "wrong", "builtins:dict")
    with pytest.raises(UnknownPolicy, match="gives no allocator"):
        find_allocator("wrong")


def test_an_allocator_that_begins_nothing_is_named() -> None:
    with pytest.raises(AllocatorStalled, match="Idle begins nothing"):
        simulate(independent(3), [SMALL], Idle())


def test_a_late_step_goes_elsewhere() -> None:
    # The plan has a and b on one processor each; a takes far longer than told, and what follows it on its lane moves.
    steps = [
        GraphStep("a", cost=Cost(runtime_s=2)),
        GraphStep("b", cost=Cost(runtime_s=3)),
        GraphStep("c", cost=Cost(runtime_s=2)),
    ]
    hosts = [HostCapacity("p0"), HostCapacity("p1")]
    played = simulate(Graph(steps), hosts, TimeOptimized(), runtimes=[100.0, 3.0, 2.0])
    assert played.makespan_s == pytest.approx(100.0)
