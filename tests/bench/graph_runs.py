"""Graphs that are run: what a step costs beside what it does, and a traced workflow against the least it could take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

import actorgrid
from actorgrid.dag.hosts import HostCapacity
from actorgrid.dag.model import Graph
from actorgrid.dag.planning import plan_graph
from actorgrid.dag.wfcommons import graph_of

from .figures import Figure, Skipped, registry
from .graph_plans import NAMES, WORKFLOWS
from .peers import answer_of, python_with

STEPS = 10_000
CORES = 2
TIME_SCALE = 0.1
TRACED_RUNS_MAX = 2
"""Each takes some 20 s."""
WAIT_S = 600.0


def nothing(_number: int) -> None:
    return None


def cpu_s(root: psutil.Process) -> float:
    """CPU time of a tree of processes, with that of those which have ended and were waited for."""
    total = 0.0
    for each in [root, *root.children(recursive=True)]:
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


@registry.add("graph_runs")
def graph_runs(runs: int) -> Iterator[Figure]:
    """No-ops as steps of one graph: steps a second, CPU of all processes for each; then Montage on two cores."""
    rates, costs, asked = [], [], []
    with actorgrid.LocalCluster() as cluster, cluster.client() as client:
        assert cluster._agent.process is not None
        root = psutil.Process(cluster._agent.process.pid)
        for count in (200, *(STEPS for _ in range(runs))):  # the first to warm up
            dag = actorgrid.Dag("no-ops")
            dag.map(nothing, range(count))
            before, started = cpu_s(root), time.perf_counter()
            run = client.dag(dag)
            accepted = time.perf_counter()
            assert run.wait(WAIT_S)["state"] == "succeeded"
            took = time.perf_counter() - started
            if count == STEPS:
                rates.append(count / took)
                costs.append((cpu_s(root) - before) / count * 1e3)
                asked.append(accepted - started)
    yield Figure(f"graph of {STEPS} no-ops, durable", "steps/s", rates, True, must=300)
    yield Figure("CPU of all processes, for each of them", "ms", costs, False, must=1.5, note="the no-op included")
    yield Figure("from the graph to its acceptance", "s", asked, False)
    graph = graph_of(json.loads((WORKFLOWS / NAMES["Montage"]).read_text()))
    bound_s = TIME_SCALE * bound_of(graph)
    parts = [_traced("Montage") / bound_s for _ in range(min(runs, TRACED_RUNS_MAX))]
    note = f"at least {bound_s:.1f} s; its tasks sleep"
    yield Figure(f"Montage run on {CORES} cores", "of bound", parts, False, must=1.15, note=note)


def bound_of(graph: Graph) -> float:
    """No way to run it on these cores is shorter: its critical path, or all its work over the cores."""
    return plan_graph(graph, [HostCapacity(f"c{number}") for number in range(CORES)]).lower_bound_s


def _traced(workflow: str) -> float:
    """Seconds from the first start of a step to the last end."""
    with actorgrid.LocalCluster() as cluster, cluster.client() as client:
        command = [sys.executable, "-m", "actorgrid", "submit", str(WORKFLOWS / NAMES[workflow])]
        scale = ["--time-scale", str(TIME_SCALE), "--bytes-scale", "0.01", "--data-dir", str(cluster.data_dir)]
        done = subprocess.run([*command, *scale], capture_output=True, text=True, check=True, timeout=WAIT_S)
        run = client.graph(done.stdout.strip())
        assert run.wait(WAIT_S)["state"] == "succeeded"
        found = client.http.get(f"/api/graphs/{run.id}/objectives")["measured"]
        return float(found["makespan_s"])


@registry.add("graph_run_peers")
def graph_run_peers(runs: int) -> Iterator[Figure]:
    """Montage, with the same sleeps, in Dask and in Parsl on two processes; no-ops as tasks."""
    graph = graph_of(json.loads((WORKFLOWS / NAMES["Montage"]).read_text()))
    bound_s = TIME_SCALE * bound_of(graph)
    steps = [[TIME_SCALE * step.cost.expected_s, list(graph.taken[n])] for n, step in enumerate(graph.steps)]
    order = [[number, *steps[number]] for number in graph.order]
    tasks = json.dumps(order)
    count = min(runs, TRACED_RUNS_MAX)
    reasons = []
    for name, package in (("Dask", "distributed"), ("Parsl", "parsl")):
        try:
            python = python_with(package)
            script = Path(__file__).with_name("peer_workflow.py")
            # Parsl starts programs of its environment by their names.
            path = {"PATH": f"{python.parent}:{os.environ.get('PATH', '')}"}
            found = answer_of(name, [python, script, package, count, tasks], WAIT_S, path)
        except Skipped as reason:
            reasons.append(str(reason))
            continue
        parts = [seconds / bound_s for seconds in found["seconds"]]
        yield Figure(f"{name} {found['version']}: Montage on {CORES} cores", "of bound", parts, False)
        yield Figure(f"{name} {found['version']}: no-op tasks", "tasks/s", found["rates"], True)
    if reasons:
        raise Skipped("; ".join(reasons))
