"""The placement engine: place, decide and release on a full cluster, gangs, and how the cost grows with the cluster.

The cluster and the tasks are those of the openb trace, the cluster twice over: 12,424 GPUs. It is filled until 300
tasks in a row were refused; then one that runs, chosen by dice, is released, and the next task of the trace placed.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from actorgrid.hotpath import COMPILED, PlacementEngine
from actorgrid.replay import catalogue
from actorgrid.replay.workload import TraceTask, build_engine, scaled, typical_tasks_for

from .figures import Figure, latency, percentile, registry

STEPS = 20_000
REFUSED_IN_A_ROW = 300
GANGS = 300
SCALES = (0.161, 16.1)  # times the cluster of the trace: 1,000 and 100,000 GPUs


@dataclass
class Timings:
    """Seconds of each call, by what it was."""

    placed: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    released: list[float] = field(default_factory=list)
    gangs: list[float] = field(default_factory=list)


class Cluster:
    """A cluster full of the trace's tasks."""

    def __init__(self, scale: float, seed: int, policy: str) -> None:
        trace = catalogue.find("openb")
        tasks = catalogue.tasks_of(trace)
        self.dice = random.Random(seed)
        self.engine = PlacementEngine(policy)
        build_engine(scaled(catalogue.nodes_of(trace.cluster), scale), self.engine, typical_tasks_for(tasks, policy))
        self.asks = [self._ask(task) for task in tasks]
        self.held: list[Any] = []
        refused = 0
        while refused < REFUSED_IN_A_ROW:
            placed = self.engine.place(**self.dice.choice(self.asks))
            refused = refused + 1 if placed is None else 0
            if placed is not None:
                self.held.append(placed.id)

    @staticmethod
    def _ask(task: TraceTask) -> dict[str, Any]:
        return {
            "cpu_milli": task.cpu_milli,
            "memory_mib": task.memory_mib,
            "gpu_count": task.gpu_count,
            "gpu_milli": task.gpu_milli or 1000,
        }

    def _one_held(self) -> Any:
        at = self.dice.randrange(len(self.held))
        self.held[at], self.held[-1] = self.held[-1], self.held[at]
        return self.held.pop()

    def churn(self, steps: int, timings: Timings) -> None:
        """Release one, place one, again and again."""
        clock, place, release = time.perf_counter, self.engine.place, self.engine.release
        for _ in range(steps):
            victim, ask = self._one_held(), self.dice.choice(self.asks)
            began = clock()
            release(victim)
            between = clock()
            found = place(**ask)
            ended = clock()
            timings.released.append(between - began)
            (timings.refused if found is None else timings.placed).append(ended - between)
            if found is not None:
                self.held.append(found.id)

    def gangs(self, count: int, timings: Timings) -> None:
        """Gangs of 64 members of a GPU each, with room made for them before."""
        for _ in range(count):
            for _ in range(300):
                self.engine.release(self._one_held())
            began = time.perf_counter()
            found = self.engine.place(cpu_milli=1000, memory_mib=1024, gpu_count=1, gang=64)
            took = time.perf_counter() - began
            if found is not None:
                timings.gangs.append(took)
                self.engine.release(found.id)
            for _ in range(400):
                placed = self.engine.place(**self.dice.choice(self.asks))
                if placed is not None:
                    self.held.append(placed.id)


@registry.add("placement")
def placement(runs: int) -> Iterator[Figure]:
    """Successful placements, refusals, releases and gangs; then the same on clusters of other sizes."""
    note = "compiled" if COMPILED else "plain Python"
    for policy in ("completion", "fgd", "best_fit"):
        measured = [_measure(seed, policy) for seed in range(runs)]
        bars: dict[str, Any] = {"must": 3, "stretch": 2} if policy == "completion" else {}
        yield latency(
            f"place, 12,424 GPUs at saturation, {policy}", [m.placed for m in measured], "µs", 1e6, note=note, **bars
        )
        for share, must, stretch in ((0.99, 6.0, 5.0), (0.999, None, None)):
            tail = [percentile(m.placed, share) * 1e6 for m in measured]
            bars = {"must": must, "stretch": stretch} if policy == "completion" else {}
            yield Figure(f"the same, p{share * 100:g} of each run", "µs", tail, higher_is_better=False, **bars)
        if policy != "completion":
            continue
        refused = [m.refused for m in measured if m.refused]
        if refused:
            yield latency("a placement that finds no room (decide alone)", refused, "µs", 1e6)
        yield latency("release", [m.released for m in measured], "µs", 1e6)
        for share, must, stretch in ((0.99, 6.0, 5.0), (0.999, None, None)):
            tail = [percentile(m.released, share) * 1e6 for m in measured]
            yield Figure(
                f"the same, p{share * 100:g} of each run",
                "µs",
                tail,
                higher_is_better=False,
                must=must,
                stretch=stretch,
            )
        yield latency("place a gang of 64", [m.gangs for m in measured], "µs", 1e6)
        yield Figure(
            "the same, p99 of each run",
            "µs",
            [percentile(m.gangs, 0.99) * 1e6 for m in measured],
            higher_is_better=False,
            must=40,
            stretch=25,
        )
    yield from _growth(runs)


def _measure(seed: int, policy: str) -> Timings:
    cluster, timings = Cluster(2.0, seed, policy), Timings()
    gc.freeze()
    try:
        cluster.churn(STEPS, timings)
        if policy == "completion":
            cluster.gangs(GANGS, timings)
    finally:
        gc.unfreeze()
    return timings


def _growth(runs: int) -> Iterator[Figure]:
    ratios = []
    for seed in range(runs):
        medians = []
        for scale in SCALES:
            timings = Timings()
            Cluster(scale, seed, "completion").churn(STEPS // 4, timings)
            medians.append(statistics.median(timings.placed))
        ratios.append(medians[1] / medians[0])
    yield Figure(
        "place on 100,000 GPUs over place on 1,000",
        "times",
        ratios,
        higher_is_better=False,
        must=3,
        note="medians of the same run",
    )
