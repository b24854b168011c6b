"""Nodes, tasks, the typical mix, and how both are brought to a size."""

from __future__ import annotations

import pytest

from actorgrid.errors import BadRequest, TooManyGpus
from actorgrid.hotpath.capacity import GangNeeds, NodeCapacity, all_fit
from actorgrid.replay.workload import (
    TraceNode,
    TraceTask,
    as_gangs,
    capacity_gpu_milli,
    check_times,
    offered_load,
    scaled,
    typical_tasks,
    typical_tasks_for,
    with_load,
)


def test_the_mix_keeps_what_is_popular() -> None:
    tasks = [TraceTask(str(n), 1000, 0, 1, 500) for n in range(90)]
    tasks += [TraceTask(f"b{n}", 2000, 0, 1, 1000) for n in range(6)]
    tasks += [TraceTask("rare share", 3000, 0, 1, 700), TraceTask("rare share 2", 3000, 0, 1, 800)]
    tasks += [TraceTask("rare pair", 4000, 0, 2, 1000), TraceTask("cpu", 5000)]
    mix = typical_tasks(tasks)
    # 90 of 100 do not make 95 %, with 6 more they do.
    assert [(each.cpu_milli, each.gpu_count, each.gpu_milli) for each in mix] == [
        (1000, 1, 500),
        (2000, 1, 1000),
    ]
    assert [each.weight for each in mix] == [90 / 96, 6 / 96]
    assert typical_tasks_for(tasks, "fgd") == mix
    told = typical_tasks_for(tasks, "completion")
    assert [each.gpu_count for each in told] == [1, 1, 2], "one of several GPUs is told of, however rare"
    assert [each.weight for each in told] == [90 / 97, 6 / 97, 1 / 97]


def test_a_scale_copies_the_cluster_and_takes_the_rest_evenly() -> None:
    nodes = [TraceNode(str(n), gpu_count=1) for n in range(4)]
    assert [node.name for node in scaled(nodes, 2.5)] == [
        *"0123",
        *("0+1", "1+1", "2+1", "3+1"),
        *("0+2", "2+2"),
    ]
    assert [node.name for node in scaled(nodes, 0.5)] == ["0", "2"]


@pytest.mark.parametrize("scale", [0, -1, 0.01, 1e9, float("nan")])
def test_a_scale_that_leaves_no_cluster_is_refused(scale: float) -> None:
    with pytest.raises(BadRequest, match="no cluster"):
        scaled([TraceNode("a")], scale)


def test_tasks_larger_than_any_node_become_gangs_of_equal_members() -> None:
    nodes = [TraceNode("a", gpu_count=8), TraceNode("b", gpu_count=2)]
    tasks = [TraceTask("8", gpu_count=8), TraceTask("12", gpu_count=12, cpu_milli=1200), TraceTask("20", gpu_count=20)]
    assert [(task.gang, task.gpu_count) for task in as_gangs(tasks, nodes)] == [(1, 8), (2, 6), (4, 5)]
    assert [task.cpu_milli for task in as_gangs(tasks, nodes)] == [0, 600, 0]
    assert all(
        after.total_gpu_milli == before.total_gpu_milli
        for after, before in zip(as_gangs(tasks, nodes), tasks, strict=True)
    )


def test_a_task_no_cluster_of_this_kind_could_hold_is_refused_by_name() -> None:
    with pytest.raises(TooManyGpus, match="huge"):
        as_gangs([TraceTask("huge", gpu_count=1)], [TraceNode("a", gpu_count=0)])


@pytest.mark.parametrize(
    ("task", "fits"),
    [
        (TraceTask("all", gpu_count=4, gpu_models=("A100",)), True),
        (TraceTask("more", gpu_count=5), False),
        (TraceTask("gang", gpu_count=2, gang=3), True),
        (TraceTask("larger gang", gpu_count=2, gang=4), False),
        (TraceTask("shares", gpu_count=1, gpu_milli=300, gang=18), True),
        (TraceTask("too many shares", gpu_count=1, gpu_milli=300, gang=19), False),
        (TraceTask("model", gpu_count=1, gpu_models=("H100",)), False),
        (TraceTask("cpu", cpu_milli=32_001), False),
        (TraceTask("cpus", cpu_milli=8_000, gang=5), True),
        (TraceTask("memory", memory_mib=131_073), False),
        (TraceTask("device memory", gpu_count=1, gpu_memory_mib=1), False),
    ],
    ids=lambda value: value.id if isinstance(value, TraceTask) else "",
)
def test_what_an_empty_cluster_could_hold(two_nodes: list[TraceNode], task: TraceTask, fits: bool) -> None:
    rooms = [NodeCapacity(node.view, number) for number, node in enumerate(two_nodes)]
    assert all_fit(rooms, GangNeeds(task.demand.arguments())) is fits


def test_a_load_moves_arrivals_and_keeps_durations_and_deadlines_in_step() -> None:
    tasks = [
        TraceTask("a", gpu_count=1, submit_s=100.0, duration_s=100.0),
        TraceTask("b", gpu_count=1, submit_s=200.0, duration_s=50.0, deadline_s=300.0),
    ]
    assert offered_load(tasks, 1000) == 1.0  # a alone, all the time until b comes
    moved = with_load(tasks, 1000, 0.5)
    assert [task.submit_s for task in moved] == pytest.approx([100.0, 300.0])
    assert [task.duration_s for task in moved] == [100.0, 50.0]
    assert moved[1].deadline_s == pytest.approx(400.0)
    assert offered_load(moved, 1000) == pytest.approx(0.5)
    again = with_load(moved, 1000, 0.8)
    assert again[1].submit_s == pytest.approx(225.0)


def test_a_load_that_tasks_would_not_reach_even_at_once_is_refused_with_the_most_there_is() -> None:
    tasks = [TraceTask(str(n), gpu_count=1, submit_s=float(n), duration_s=1e6) for n in range(11)]
    with pytest.raises(BadRequest, match="cannot reach") as caught:
        with_load(tasks, 10_000, 0.9)
    assert caught.value.found == "at most 0.55"  # one more each second: 5.5 of ten on average


def test_a_load_needs_arrivals_that_spread() -> None:
    with pytest.raises(BadRequest, match="all at once"):
        with_load([TraceTask("a", gpu_count=1, submit_s=1.0, duration_s=1.0)], 1000, 1.0)
    with pytest.raises(BadRequest, match="more than nothing"):
        with_load([], 1000, 0.0)


def test_a_replay_in_time_names_the_task_that_has_none() -> None:
    with pytest.raises(BadRequest, match="task b does not say how long it runs"):
        check_times([TraceTask("a", submit_s=0.0, duration_s=1.0), TraceTask("b", submit_s=0.0)])


def test_capacity_counts_whole_gpus(two_nodes: list[TraceNode]) -> None:
    assert capacity_gpu_milli(two_nodes) == 6000
