"""How urgent each step of a graph is, and how long the graph takes at least.

A step's upward rank is the time from its start to the end of the graph along its longest way, when what it hands on
crosses from host to host (Topcuoglu, Hariri and Wu, "Performance-Effective and Low-Complexity Task Scheduling for
Heterogeneous Computing", 2002). Its downward rank is the longest way that leads to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .model import Graph

BANDWIDTH = 125e6
"""Bytes a second between two hosts when nobody has measured: 1 Gb/s."""


@dataclass(frozen=True, slots=True)
class PlannedGraph:
    """A graph as planning looks at it: only what runs, times in seconds. ``steps`` are numbers in the graph.

    ``producers`` and ``consumers`` have, beside each other step's place in ``steps``, how long it takes to bring what
    is handed on to another host.
    """

    steps: tuple[int, ...]
    runtimes: list[float]
    producers: list[list[tuple[int, float]]]
    consumers: list[list[tuple[int, float]]]

    @classmethod
    def of(cls, graph: Graph, bandwidth: float = BANDWIDTH) -> PlannedGraph:
        """*graph*, where *bandwidth* bytes a second pass from a host to any other."""
        steps = tuple(graph.running)
        place = {number: index for index, number in enumerate(steps)}
        producers: list[list[tuple[int, float]]] = []
        consumers: list[list[tuple[int, float]]] = [[] for _ in steps]
        for index, number in enumerate(steps):
            step = graph.steps[number]
            own = step.input_bytes and {
                graph.number[id]: size for id, size in zip(step.inputs, step.input_bytes, strict=True)
            }
            taken = frozenset(graph.taken[number])
            found = []
            for producer in graph.producers[number]:
                if producer in own:
                    size = own[producer]
                else:
                    size = graph.steps[producer].cost.output_bytes or 0 if producer in taken else 0
                found.append((place[producer], size / bandwidth))
                consumers[place[producer]].append((index, size / bandwidth))
            producers.append(found)
        runtimes = [graph.steps[number].cost.expected_s for number in steps]
        return cls(steps, runtimes, producers, consumers)


def upward_ranks(planned: PlannedGraph, transfers: float = 1.0) -> list[float]:
    """The upward rank of each, its transfers counted *transfers* times."""
    ranks = [0.0] * len(planned.steps)
    for index in range(len(ranks) - 1, -1, -1):  # producers come before consumers
        longest = 0.0
        for consumer, transfer_s in planned.consumers[index]:
            way = transfers * transfer_s + ranks[consumer]
            longest = max(longest, way)
        ranks[index] = planned.runtimes[index] + longest
    return ranks


def downward_ranks(planned: PlannedGraph) -> list[float]:
    """The downward rank of each."""
    ranks = [0.0] * len(planned.steps)
    for index, producers in enumerate(planned.producers):
        for producer, transfer_s in producers:
            ranks[index] = max(ranks[index], ranks[producer] + planned.runtimes[producer] + transfer_s)
    return ranks


def critical_path_s(planned: PlannedGraph) -> float:
    """How long the graph takes on any number of processors, if nothing has to be brought anywhere."""
    return max(upward_ranks(planned, transfers=0.0), default=0.0)


def lower_bound_s(planned: PlannedGraph, speeds: Sequence[float]) -> float:
    """How long the graph takes at least on processors of these *speeds*, one step at a time on each."""
    return max(critical_path_s(planned) / max(speeds), sum(planned.runtimes) / sum(speeds))
