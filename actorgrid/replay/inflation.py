"""FGD's inflation protocol: tasks arrive one after another, none departs, and what does not fit is dropped.

Weng et al., "Beware of Fragmentation" (USENIX ATC 2023, section 6.1): the trace is shuffled, then tasks drawn at random
from it are appended until what is asked for is 130 % of the GPUs there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from actorgrid.errors import BadRequest
from actorgrid.hotpath import PlacementEngine

from .fragments import Fragments
from .workload import TraceNode, TraceTask, build_engine, capacity_gpu_milli, typical_tasks, typical_tasks_for

INFLATED_TO = 1.3
INFLATED_TO_MAX = 10.0
POINTS_PER_CAPACITY = 100


class SampleRng(Protocol):
    """The part of ``random.Random`` that is used."""

    def shuffle(self, x: list[TraceTask]) -> None:
        """Shuffle the items in place."""

    def randrange(self, start: int) -> int:
        """A number from 0 to *start* - 1."""


@dataclass(frozen=True, slots=True)
class Point:
    """The cluster when *arrived* of its GPUs had been asked for. Shares of capacity; ``fragmented`` is of the free."""

    arrived: float
    allocated: float
    fragmented: float


@dataclass(slots=True)
class Inflated:
    """One run. ``curve`` has a point for each hundredth of capacity that arrived, and the last state."""

    curve: list[Point] = field(default_factory=list)
    tasks: int = 0
    dropped: int = 0
    placed_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)

    def at(self, arrived: float) -> Point:
        """The first point at which that share of capacity had arrived (the last, when it never did)."""
        return next((point for point in self.curve if point.arrived >= arrived), self.curve[-1])


def inflated(tasks: Sequence[TraceTask], capacity: int, rng: SampleRng, until: float = INFLATED_TO) -> list[TraceTask]:
    """The protocol's arrivals for *capacity* thousandths of GPUs.

    A trace that already asks for more is cut off where it reaches *until*. Raises BadRequest for tasks that ask for no
    GPU at all (they would never get there), no capacity, or an *until* over INFLATED_TO_MAX.
    """
    if not 0 < until <= INFLATED_TO_MAX:
        raise BadRequest(
            f"arrivals of {until} times the GPUs are out of range",
            asked=f"until={until}",
            hint=f"give more than 0 and at most {INFLATED_TO_MAX:g}",
        )
    if not capacity or not any(task.total_gpu_milli for task in tasks):
        raise BadRequest(
            "inflation needs GPUs, and tasks that ask for them",
            found=f"{capacity / 1000:g} GPUs, {len(tasks)} tasks",
            hint="check the column map: --map COLUMN=gpu_count",
        )
    order = list(tasks)
    rng.shuffle(order)
    wanted = capacity * until
    asked = 0
    arrivals: list[TraceTask] = []
    for task in order:
        if asked >= wanted:
            return arrivals
        arrivals.append(task)
        asked += task.total_gpu_milli
    while asked < wanted:
        task = order[rng.randrange(len(order))]
        arrivals.append(task)
        asked += task.total_gpu_milli
    return arrivals


def inflate(
    nodes: Sequence[TraceNode],
    tasks: Sequence[TraceTask],
    engine: PlacementEngine,
    rng: SampleRng,
    clock: Callable[[], float],
    until: float = INFLATED_TO,
    progress: Callable[[float], None] = lambda _done: None,
) -> Inflated:
    """Fill *engine* (new, without nodes) with *tasks* by the protocol and say how it went.

    *clock* gives seconds and measures each decision; it changes nothing else. *progress* is told the share done, a few
    hundred times. Raises BadRequest as :func:`inflated`.
    """
    build_engine(nodes, engine, typical_tasks_for(tasks, engine.policy))
    capacity = capacity_gpu_milli(nodes)
    arrivals = inflated(tasks, capacity, rng, until)
    fragments = Fragments(nodes, typical_tasks(tasks))
    run = Inflated(tasks=len(arrivals))
    run.curve.append(Point(0.0, 0.0, fragments.share))
    arrived = 0
    for number, task in enumerate(arrivals):
        arrived += task.total_gpu_milli
        began = clock()
        placement = engine.place(
            cpu_milli=task.cpu_milli,
            memory_mib=task.memory_mib,
            gpu_count=task.gpu_count,
            gpu_milli=task.gpu_milli,
            gpu_memory_mib=task.gpu_memory_mib,
            gpu_models=task.gpu_models,
            gang=task.gang,
        )
        took = clock() - began
        if placement is None:
            run.dropped += 1
            run.refused_s.append(took)
        else:
            run.placed_s.append(took)
            fragments.placed(placement.shares, task)
        if arrived * POINTS_PER_CAPACITY >= capacity * len(run.curve):
            run.curve.append(Point(arrived / capacity, engine.allocated_gpu_milli / capacity, fragments.share))
        if number % 64 == 0:
            progress(number / len(arrivals))
    run.curve.append(Point(arrived / capacity, engine.allocated_gpu_milli / capacity, fragments.share))
    progress(1.0)
    return run
