"""FGD's protocol on small clusters, against a plain model."""

from __future__ import annotations

import random
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.errors import BadRequest
from actorgrid.hotpath import PlacementEngine
from actorgrid.replay.inflation import inflate, inflated
from actorgrid.replay.workload import TraceNode, TraceTask


def ticking() -> float:
    """A clock that stands still: decisions take no time."""
    return 0.0


def test_every_task_of_the_trace_arrives_once_and_then_drawn_ones_up_to_130_percent(
    mixed_tasks: list[TraceTask],
) -> None:
    arrivals = inflated(mixed_tasks, 20_000, random.Random(1))
    assert sorted(task.id for task in arrivals[:5]) == sorted(task.id for task in mixed_tasks)
    asked = [task.total_gpu_milli for task in arrivals]
    assert sum(asked) >= 26_000 > sum(asked[:-1])
    assert set(arrivals) <= set(mixed_tasks)


def test_a_trace_that_asks_for_more_is_cut_off(mixed_tasks: list[TraceTask]) -> None:
    arrivals = inflated(mixed_tasks * 100, 4_000, random.Random(1))
    assert sum(task.total_gpu_milli for task in arrivals) >= 5_200 > sum(task.total_gpu_milli for task in arrivals[:-1])


@pytest.mark.parametrize(
    ("tasks", "capacity", "until"),
    [([], 1000, 1.3), ([TraceTask("cpu", 1000)], 1000, 1.3), ([TraceTask("g", gpu_count=1)], 0, 1.3)],
)
def test_what_could_never_reach_it_is_refused(tasks: list[TraceTask], capacity: int, until: float) -> None:
    with pytest.raises(BadRequest, match="inflation needs GPUs"):
        inflated(tasks, capacity, random.Random(1), until)


@pytest.mark.parametrize("until", [0.0, -1.0, 11.0, float("nan")])
def test_an_end_out_of_range_is_refused(mixed_tasks: list[TraceTask], until: float) -> None:
    with pytest.raises(BadRequest, match="out of range"):
        inflated(mixed_tasks, 1000, random.Random(1), until)


def first_fit(nodes: list[TraceNode], tasks: list[TraceTask]) -> tuple[int, int]:
    """A model of ``first_fit``: what it gave out in thousandths, and how many it dropped."""
    free = [[node.cpu_milli, node.memory_mib, [1000] * node.gpu_count] for node in nodes]
    allocated = dropped = 0
    for task in tasks:
        for state in free:
            usable = [index for index, milli in enumerate(state[2]) if milli >= task.gpu_milli][: task.gpu_count]
            if state[0] >= task.cpu_milli and state[1] >= task.memory_mib and len(usable) == task.gpu_count:
                state[0] -= task.cpu_milli
                state[1] -= task.memory_mib
                for index in usable:
                    state[2][index] -= task.gpu_milli
                allocated += task.gpu_count * task.gpu_milli
                break
        else:
            dropped += 1
    return allocated, dropped


@settings(max_examples=50)
@given(st.integers(0, 1 << 30))
def test_a_run_does_what_a_plain_model_does(seed: int) -> None:
    dice = random.Random(seed)
    nodes = [
        TraceNode(str(n), cpu_milli=dice.randrange(20_000), memory_mib=1 << 20, gpu_count=dice.randrange(1, 5))
        for n in range(dice.randrange(1, 6))
    ]
    tasks = [
        TraceTask(str(n), dice.randrange(5_000), 64, dice.choice((0, 1, 1, 1, 2)), dice.choice((100, 400, 700, 1000)))
        for n in range(dice.randrange(1, 12))
    ] + [TraceTask("one", 100, 64, 1)]
    capacity = sum(node.gpu_milli for node in nodes)
    arrivals = inflated(tasks, capacity, random.Random(seed))
    run = inflate(nodes, tasks, PlacementEngine("first_fit"), random.Random(seed), ticking)
    allocated, dropped = first_fit(nodes, arrivals)
    assert (run.tasks, run.dropped) == (len(arrivals), dropped)
    assert run.curve[-1].allocated == allocated / capacity


def test_the_curve_rises_by_hundredths_and_knows_the_point_of_100_percent() -> None:
    nodes = [TraceNode(str(n), cpu_milli=1000, gpu_count=1) for n in range(200)]
    run = inflate(nodes, [TraceTask("g", 1000, 0, 1)], PlacementEngine("first_fit"), random.Random(0), ticking)
    assert [round(point.arrived, 2) for point in run.curve[:4]] == [0.0, 0.01, 0.02, 0.03]
    assert run.at(1.0).arrived == 1.0 and run.at(1.0).allocated == 1.0
    assert run.curve[-1].arrived == 1.3 and run.dropped == 60
    assert run.at(2.0) is run.curve[-1]


def test_decisions_are_timed_by_the_clock_that_was_given(
    two_nodes: list[TraceNode], mixed_tasks: list[TraceTask]
) -> None:
    ticks = count()
    run = inflate(two_nodes, mixed_tasks, PlacementEngine("best_fit"), random.Random(0), lambda: float(next(ticks)))
    assert set(run.placed_s + run.refused_s) == {1.0}
    assert (len(run.placed_s), len(run.refused_s)) == (run.tasks - run.dropped, run.dropped)
    assert next(ticks) == 2 * run.tasks


def test_progress_goes_from_nothing_to_all(two_nodes: list[TraceNode], mixed_tasks: list[TraceTask]) -> None:
    told: list[float] = []
    inflate(two_nodes, mixed_tasks, PlacementEngine("best_fit"), random.Random(0), ticking, progress=told.append)
    assert told == sorted(told) and told[0] == 0.0 and told[-1] == 1.0
