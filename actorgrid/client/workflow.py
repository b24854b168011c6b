"""Traced workflows (WfCommons) as graphs that run: a step for each task, which takes as long and gives as much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actorgrid.dag import wfcommons
from actorgrid.emulated_task import perform

from .dag import Dag, Step


def workflow_dag(
    document: Mapping[str, Any],
    name: str = "",
    *,
    time_scale: float = 1.0,
    bytes_scale: float = 1.0,
    busy: bool = False,
    **settings: Any,
) -> Dag:
    """A graph that does what a workflow of WfCommons was traced to do, with its times and sizes scaled.

    A step sleeps for as long as its task ran, or computes (*busy*). *settings* are those of a Dag. Raises InvalidGraph,
    CyclicGraph, MissingProducer.
    """
    graph = wfcommons.graph_of(document)
    dag = Dag(name or graph.name, **settings)
    made: dict[int, Step[bytes]] = {}
    for number in graph.order:
        step = graph.steps[number]
        runtime_s = step.cost.expected_s * time_scale
        size = int((step.cost.output_bytes or 0) * bytes_scale)
        inputs = [made[graph.number[each]] for each in step.inputs]
        adder = dag.options(id=step.id, runtime_s=runtime_s, output_bytes=size)
        made[number] = adder.add(perform, runtime_s, size, busy, *inputs)
    return dag
