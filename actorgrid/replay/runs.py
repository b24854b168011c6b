"""One comparison: the same trace under several policies and seeds, with what came of it as plain values."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from actorgrid.actors.scheduling.policies import find_policy
from actorgrid.actors.scheduling.scheduler import Scheduler
from actorgrid.errors import BadRequest
from actorgrid.hotpath import PlacementEngine

from . import figures
from .fragments import Fragments
from .inflation import INFLATED_TO, inflate
from .simulation import RESTART_S, Immediate, Scheduling, Simulation
from .workload import (
    TraceNode,
    TraceTask,
    as_gangs,
    build_engine,
    capacity_gpu_milli,
    check_times,
    offered_load,
    typical_tasks,
    typical_tasks_for,
    with_load,
)

MODES = ("inflate", "churn", "queue")
SEEDS_MAX = 1000
NO_QUEUE = "-"
Report = Callable[[str, float], None]


@dataclass(frozen=True)
class Setup:
    """The setup of a replay. ``queues`` are scheduling policies; only the mode ``queue`` has any.

    ``estimates`` times the true duration is what the scheduler is told, ``None``: nothing. ``load`` is offered GPU-time
    over capacity; ``None`` leaves the arrivals as they are.
    """

    nodes: Sequence[TraceNode]
    tasks: Sequence[TraceTask]
    mode: str
    policies: Sequence[str]
    queues: Sequence[str] = ("fifo",)
    seeds: Sequence[int] = (0,)
    until: float = INFLATED_TO
    load: float | None = None
    estimates: float | None = 1.0
    checkpoint_s: float | None = None
    restart_s: float = RESTART_S
    grace_s: float = 0.0


@dataclass(frozen=True)
class Run:
    """One policy (and queue) with one seed. ``latency_us`` is the only part that differs from one time to the next.

    ``curve`` is the allocation over what arrived, or over time; ``jct_s`` the completion times, in ascending order.
    """

    policy: str
    queue: str
    seed: int
    figures: Mapping[str, Any]
    latency_us: Mapping[str, Mapping[str, float | int]]
    curve: Sequence[Mapping[str, float]]
    jct_s: Sequence[float] = field(default=(), repr=False)

    @property
    def label(self) -> str:
        """The run's name in tables and pictures."""
        return self.policy if self.queue == NO_QUEUE else f"{self.policy} {self.queue}"


def prepare(setup: Setup) -> Setup:
    """The setup with tasks as the cluster can take them. Raises BadRequest, UnknownPolicy or TooManyGpus."""
    if not 1 <= len(setup.seeds) <= SEEDS_MAX:
        raise BadRequest(f"{len(setup.seeds)} seeds are out of range", hint=f"1 to {SEEDS_MAX}")
    for policy in setup.policies:
        PlacementEngine(policy)
    if setup.mode == "queue":
        for queue in setup.queues:
            find_policy(queue)
    tasks = as_gangs(setup.tasks, setup.nodes)
    if setup.mode != "inflate":
        check_times(tasks)
        _check_ids(tasks)
        if setup.load is not None:
            tasks = with_load(tasks, capacity_gpu_milli(setup.nodes), setup.load)
    elif setup.load is not None:
        raise BadRequest("a load needs arrivals in time", asked="--load", hint="add --mode churn or --mode queue")
    return Setup(**{**vars(setup), "tasks": tasks})


def _check_ids(tasks: Iterable[TraceTask]) -> None:
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise BadRequest(
                f"two tasks are called {task.id!r}", asked=task.id, hint="map another column: --map COLUMN=id"
            )
        seen.add(task.id)


def combinations(setup: Setup) -> list[tuple[str, str]]:
    """Placement policies with scheduling policies, in the order they are shown."""
    queues = setup.queues if setup.mode == "queue" else (NO_QUEUE,)
    return [(policy, queue) for policy in setup.policies for queue in queues]


def replay(setup: Setup, report: Report = lambda _label, _done: None) -> Iterator[Run]:
    """Run all combinations, one after another. *setup* has been prepared. *report* is told how far a run is."""
    for policy, queue in combinations(setup):
        for seed in setup.seeds:
            label = f"{policy} {queue} seed {seed}" if queue != NO_QUEUE else f"{policy} seed {seed}"
            yield _one(setup, policy, queue, seed, lambda done, label=label: report(label, done))  # type: ignore[misc]


def _one(setup: Setup, policy: str, queue: str, seed: int, progress: Callable[[float], None]) -> Run:
    rng = random.Random(seed)
    engine = PlacementEngine(policy, random.Random(f"engine {seed}").randrange)
    if setup.mode == "inflate":
        inflated = inflate(setup.nodes, setup.tasks, engine, rng, time.perf_counter, setup.until, progress)
        return Run(
            policy,
            queue,
            seed,
            figures.inflation(inflated),
            figures.latencies({"place": inflated.placed_s, "refuse": inflated.refused_s}),
            [asdict(point) for point in inflated.curve],
        )
    typical = typical_tasks(setup.tasks)
    build_engine(setup.nodes, engine, typical_tasks_for(setup.tasks, policy))
    scheduler: Scheduling
    if setup.mode == "queue":
        scheduler = Scheduler(engine, find_policy(queue), clock_ns=time.perf_counter_ns)
    else:
        scheduler = Immediate(engine, time.perf_counter)
    simulation = Simulation(
        setup.nodes,
        setup.tasks,
        engine,
        scheduler,
        Fragments(setup.nodes, typical),
        time.perf_counter,
        estimates=setup.estimates,
        checkpoint_s=setup.checkpoint_s,
        restart_s=setup.restart_s,
        grace_s=setup.grace_s,
    )
    result = simulation.run(progress)
    return Run(
        policy,
        queue,
        seed,
        figures.replayed(result),
        figures.latencies({"place": result.places_s, "schedule": result.rounds_s}),
        [asdict(moment) for moment in result.series],
        sorted(each.ended_s - each.submitted_s for each in result.outcomes if each.ended_s is not None),
    )


def summarise(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """For each policy and queue, the mean and deviation over seeds of every figure, by dotted name."""
    grouped: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        grouped.setdefault((run.policy, run.queue), []).append(run)
    found = []
    for (policy, queue), group in grouped.items():
        values: dict[str, list[float]] = {}
        for run in group:
            for name, value in _leaves({**run.figures, "latency_us": run.latency_us}):
                values.setdefault(name, []).append(value)
        means = {name: figures.mean_and_deviation(each) for name, each in values.items()}
        found.append(
            {
                "policy": policy,
                "queue": queue,
                "label": group[0].label,
                "seeds": [run.seed for run in group],
                "mean": {name: mean for name, (mean, _) in means.items()},
                "deviation": {name: deviation for name, (_, deviation) in means.items()},
            }
        )
    return found


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        elif value is not None and math.isfinite(value):
            yield prefix + name, float(value)


def describe(setup: Setup) -> dict[str, Any]:
    """The cluster and the tasks, in figures."""
    capacity = capacity_gpu_milli(setup.nodes)
    asked = sum(task.total_gpu_milli for task in setup.tasks)
    return {
        "nodes": len(setup.nodes),
        "gpus": capacity // 1000,
        "tasks": len(setup.tasks),
        "asked_over_capacity": asked / capacity if capacity else None,
        "offered_load": None if setup.mode == "inflate" else offered_load(setup.tasks, capacity),
        "typical_shapes": len(typical_tasks(setup.tasks)),
        "mode": setup.mode,
    }
