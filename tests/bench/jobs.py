"""Jobs: accepted when they are on disk, run one process each."""

from __future__ import annotations

import time
from collections.abc import Iterator

import actorgrid

from .figures import Figure, registry

ACCEPTED = 2_000
RUN = 40


@registry.add("jobs")
def jobs(runs: int) -> Iterator[Figure]:
    """How fast durable functions are accepted, and how fast small ones go through."""
    accepted, through = [], []
    with actorgrid.LocalCluster(gpus=8) as cluster:
        client = cluster.client()
        client.submit(abs, -1, durable=True).result(60)
        for _ in range(runs):
            started = time.perf_counter()
            for future in [client.submit(abs, -n, durable=True) for n in range(RUN)]:
                future.result(120)
            through.append(RUN / (time.perf_counter() - started))
    for _ in range(runs):
        with actorgrid.LocalCluster(gpus=8) as cluster:
            client = cluster.client()
            blocker = client.submit_job(command=["sleep", "600"])["job_id"]
            started = time.perf_counter()
            for future in [client.submit(abs, -n, durable=True, depends_on=[blocker]) for n in range(ACCEPTED)]:
                future.accepted(120)
            accepted.append(ACCEPTED / (time.perf_counter() - started))
    yield Figure("durable functions, run to their value", "jobs/s", through, True)
    yield Figure("durable functions, accepted on disk", "jobs/s", accepted, True, note="each waits for a running job")
