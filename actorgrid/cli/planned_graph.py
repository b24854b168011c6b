"""A graph in a file and the hosts that it is planned on, which are not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actorgrid.dag.hosts import HostCapacity
    from actorgrid.dag.model import Graph

GPU_MEMORY_MIB = 80 * 1024


def graph_of_file(file: Path) -> Graph:
    """The graph in a file, in any form that is read. Raises InvalidGraph."""
    from actorgrid.dag import wfcommons
    from actorgrid.dag.command_cache import with_command_cache
    from actorgrid.dag.command_rounds import with_rounds
    from actorgrid.dag.graph_documents import read_graph_file, request_of

    document = read_graph_file(file)
    if wfcommons.is_wfcommons(document):
        return wfcommons.graph_of(document)
    return request_of(with_command_cache(with_rounds(document), os.getcwd())).to_graph()


def host_for(graph: Graph, number: int, gpus: int) -> HostCapacity:
    """A host for planning: as many CPUs as the step has that needs most of them, and for each GPU as many again."""
    from actorgrid.dag.hosts import HostCapacity

    most = max(1000, *(step.cost.demand.cpu_milli for step in graph.steps))
    models = sorted({model for step in graph.steps for model in step.cost.demand.gpu_models})
    devices = tuple((models[0] if models else "", GPU_MEMORY_MIB) for _ in range(gpus))
    return HostCapacity(f"host-{number}", most * max(1, gpus), gpus=devices)
