"""``python peer_hyperqueue.py TASKS`` in HyperQueue's environment: a server and a worker here; prints one line of JSON.

Each task is a process, ``true``; all are of one job, which is what HyperQueue is made for. It keeps no journal then.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import chdir
from importlib.metadata import version
from tempfile import TemporaryDirectory
from typing import Any

from hyperqueue import Job, LocalCluster


def run(client: Any, tasks: int) -> float:
    """Run a job of so many processes to its end; gives seconds."""
    job = Job()
    for _ in range(tasks):
        job.program(["true"])
    started = time.perf_counter()
    client.wait_for_jobs([client.submit(job)])
    return time.perf_counter() - started


def main(tasks: int) -> None:
    """Measure one rate."""
    # Each task's output goes into files of the directory from which it was submitted.
    with TemporaryDirectory() as folder, chdir(folder), LocalCluster() as cluster:
        cluster.start_worker()
        client = cluster.client()
        run(client, 1)
        rate = tasks / run(client, tasks)
    print(json.dumps({"rate": rate, "version": version("hyperqueue")}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
