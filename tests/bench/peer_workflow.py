"""Runs in the peers' environment: ``python peer_workflow.py PACKAGE RUNS TASKS`` prints one line of JSON.

TASKS is a list of [number, seconds, numbers of the tasks before it], in an order in which those come first.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

NOOPS = 2_000
Tasks = list[tuple[int, float, list[int]]]
Add = Callable[..., Any]


def rest(seconds: float, *_before: Any) -> None:
    import time

    time.sleep(seconds)


def measured(add: Add, result: Callable[[list[Any]], Any], tasks: Tasks, runs: int) -> dict[str, Any]:
    """*add* is told (seconds, futures before it) and gives a future; *result* waits for some."""
    result([add(0.0) for _ in range(50)])  # to warm up
    took, rates = [], []
    for _ in range(runs):
        started = time.perf_counter()
        futures: dict[int, Any] = {}
        for number, seconds, before in tasks:
            futures[number] = add(seconds, *(futures[each] for each in before))
        result(list(futures.values()))
        took.append(time.perf_counter() - started)
        started = time.perf_counter()
        result([add(0.0) for _ in range(NOOPS)])
        rates.append(NOOPS / (time.perf_counter() - started))
    return {"seconds": took, "rates": rates}


def dask(tasks: Tasks, runs: int) -> dict[str, Any]:
    import distributed

    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50)
    with cluster, distributed.Client(cluster) as client:
        found = measured(lambda *call: client.submit(rest, *call, pure=False), client.gather, tasks, runs)
    return {"version": distributed.__version__, **found}


def parsl(tasks: Tasks, runs: int) -> dict[str, Any]:
    import parsl
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    executor = HighThroughputExecutor(
        label="two",
        address="127.0.0.1",
        loopback_address="127.0.0.1",
        cores_per_worker=1,
        max_workers_per_node=2,
        encrypted=False,
        provider=LocalProvider(init_blocks=1, max_blocks=1),
    )
    with tempfile.TemporaryDirectory() as folder:
        parsl.load(Config(executors=[executor], run_dir=folder, strategy="none"))
        app = parsl.python_app(rest)
        found = measured(app, lambda futures: [future.result() for future in futures], tasks, runs)
        parsl.dfk().cleanup()
    return {"version": parsl.__version__, **found}


if __name__ == "__main__":
    run = {"distributed": dask, "parsl": parsl}[sys.argv[1]]
    print(json.dumps(run(json.loads(sys.argv[3]), int(sys.argv[2]))))
