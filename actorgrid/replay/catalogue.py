"""The traces that come with the package: by name, with the cluster, the columns and the licence of each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from actorgrid.errors import BadRequest

from .tables import read_nodes, read_tasks
from .workload import TraceNode, TraceTask

HERE = Path(__file__).parent / "traces"
OPENB_NODES = "openb_node_list_gpu_node.csv.gz"
CLUSTER = re.compile(r"(\d{1,6})x(\d{1,5})")
CHRONUS = {
    "job_id": "id",
    "user": "tenant",
    "submit_time": "submit_min",
    "duration": "duration_min",
    "expect_time_list": "allowed_min",
    "job_type": "deadline_kind",
}
GAVEL = {"job_type": "model_type", "total_steps": "steps", "arrival_s": "submit_s"}


@dataclass(frozen=True)
class WorkloadTrace:
    """One trace. ``files`` maps the files of tasks to the tenant they stand for, if any.

    ``mode`` is how it is replayed unless one says otherwise; ``cluster`` its nodes: a file or ``NODESxGPUS``.
    """

    name: str
    about: str
    licence: str
    mode: str
    cluster: str
    files: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)


def _openb(name: str, variant: str, about: str) -> WorkloadTrace:
    return WorkloadTrace(name, about, "Apache-2.0", "inflate", OPENB_NODES, {f"openb_pod_list_{variant}.csv.gz": ""})


def _philly(name: str, about: str, cluster: str, *circles: str) -> WorkloadTrace:
    files = {f"philly_gavel_vc_{circle}.csv.gz": f"vc_{circle}" for circle in circles}
    return WorkloadTrace(name, about, "MIT", "queue", cluster, files, GAVEL)


TRACES = {
    trace.name: trace
    for trace in (
        _openb("openb", "default", "8,152 tasks on 6,212 GPUs, 44 % of the GPU tasks share one"),
        _openb("openb-gpushare40", "gpushare40", "the same, more demand by sharing tasks"),
        _openb("openb-multigpu20", "multigpu20", "the same, more demand by tasks of several GPUs; no times"),
        _openb("openb-gpushare20", "gpushare20", "the same, 20 % of the demand by sharing tasks; no times"),
        _openb("openb-gpushare80", "gpushare80", "the same, 80 % of the demand by sharing tasks; no times"),
        _openb("openb-gpuspec10", "gpuspec10", "the same, 10 % of the GPU tasks name models; no times"),
        _openb("openb-gpuspec20", "gpuspec20", "the same, 20 % of the GPU tasks name models; no times"),
        _openb("openb-gpuspec25", "gpuspec25", "the same, 25 % of the GPU tasks name models; no times"),
        _openb("openb-cpu100", "cpu100", "the same, 10 % of the tasks ask for CPU alone; no times"),
        _openb("openb-cpu200", "cpu200", "the same, 20 % of the tasks ask for CPU alone; no times"),
        _philly("philly", "4,000 jobs of two virtual clusters, gangs of 1 to 64 GPUs", "40x8", "11cb48", "ee9e8c"),
        _philly("philly-11cb48", "2,000 jobs of one virtual cluster, gangs of 1 to 64 GPUs", "8x8", "11cb48"),
        _philly("philly-ee9e8c", "2,000 jobs of another, gangs of 1 to 32 GPUs", "32x8", "ee9e8c"),
        WorkloadTrace(
            "chronus",
            "30,940 jobs of eleven virtual clusters, 70 % with a strict deadline",
            "MIT",
            "queue",
            "160x8",
            {"philly_chronus_MIX1.csv.gz": ""},
            CHRONUS,
        ),
    )
}


def find(name: str) -> WorkloadTrace:
    """The trace of that name. Raises BadRequest, which lists what there is."""
    if name not in TRACES:
        raise BadRequest(
            f"there is no trace {name!r}",
            asked=name,
            found=", ".join(TRACES),
            hint="name one of those, or give files of your own: --nodes FILE --tasks FILE",
        )
    return TRACES[name]


def tasks_of(trace: WorkloadTrace) -> list[TraceTask]:
    """The tasks of a trace, by arrival where the trace tells it."""
    found: list[TraceTask] = []
    for name, tenant in trace.files.items():
        tasks = read_tasks(HERE / name, trace.columns)
        found += [replace(task, id=f"{tenant}/{task.id}", tenant=tenant) for task in tasks] if tenant else tasks
    return sorted(found, key=lambda task: task.submit_s or 0.0)


def nodes_of(cluster: str) -> list[TraceNode]:
    """The nodes that ``WorkloadTrace.cluster`` or ``--cluster`` names. Raises BadRequest."""
    if cluster == OPENB_NODES:
        return read_nodes(HERE / OPENB_NODES)
    return uniform(cluster)


def uniform(text: str) -> list[TraceNode]:
    """A cluster of equal nodes from ``NODESxGPUS``; CPU and memory without bound. Raises BadRequest."""
    match = CLUSTER.fullmatch(text)
    if not match or not int(match[1]) or not int(match[2]):
        raise BadRequest(f"{text!r} is not a cluster", asked=text, hint="NODESxGPUS, as in 16x8")
    count, gpus = int(match[1]), int(match[2])
    return [
        TraceNode(f"node-{n}", cpu_milli=1 << 40, memory_mib=1 << 40, gpu_count=gpus, gpu_model="GPU")
        for n in range(count)
    ]
