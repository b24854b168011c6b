"""HEFT as published (Topcuoglu, Hariri, Wu 2002), written plainly: what plans are measured against."""

from __future__ import annotations

import bisect
import random

from actorgrid.dag.model import Cost, Graph, GraphStep
from actorgrid.dag.ranks import PlannedGraph


def heft_makespan(graph: Graph, processors: int, bandwidth: float = 125e6) -> float:
    planned = PlannedGraph.of(graph, bandwidth)
    count = len(planned.steps)
    rank = [0.0] * count
    for index in reversed(range(count)):
        ways = [seconds + rank[consumer] for consumer, seconds in planned.consumers[index]]
        rank[index] = planned.runtimes[index] + max(ways, default=0.0)
    busy: list[list[tuple[float, float]]] = [[] for _ in range(processors)]
    ended, on = [0.0] * count, [0] * count
    for index in sorted(range(count), key=lambda index: (-rank[index], index)):
        best: tuple[float, int, float] | None = None
        for processor in range(processors):
            begin = 0.0
            for producer, seconds in planned.producers[index]:
                begin = max(begin, ended[producer] + (0.0 if on[producer] == processor else seconds))
            for from_s, to_s in busy[processor]:
                if begin + planned.runtimes[index] <= from_s + 1e-12:
                    break
                begin = max(begin, to_s)
            end = begin + planned.runtimes[index]
            if best is None or end < best[0] - 1e-12:
                best = end, processor, begin
        assert best is not None
        ended[index], on[index] = best[0], best[1]
        bisect.insort(busy[best[1]], (best[2], best[0]))
    return max(ended)


def random_graph(seed: int, steps: int, communication: float) -> Graph:
    """A layered graph with skewed runtimes; *communication*: mean seconds to bring an input, by mean runtime."""
    dice = random.Random(seed)
    width = dice.choice((2, 5, 10, 20))
    found = []
    for number in range(steps):
        candidates = range(max(0, number - 2 * width), number)
        producers = sorted(dice.sample(candidates, min(len(candidates), dice.randint(0, 4))))
        found.append(
            GraphStep(
                f"s{number}",
                inputs=tuple(f"s{producer}" for producer in producers),
                input_bytes=tuple(int(2 * dice.random() * communication * 10 * 125e6) for _ in producers),
                cost=Cost(runtime_s=10 * dice.lognormvariate(0, 1)),
            )
        )
    return Graph(found)
