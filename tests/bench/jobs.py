"""Jobs: accepted when they are on disk; functions that share processes, and HyperQueue's processes beside them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

import actorgrid
from actorgrid.actors.work.linux import adopt_orphans
from actorgrid.client.client import Client

from .figures import Figure, latency, registry
from .peers import answer_of, python_with

ACCEPTED = 2_000
RUN, WARM = 300, 40
ONE_AT_A_TIME = 30
MUST_RUN = 300
SMALL = 0.1


@registry.add("jobs")
def jobs(runs: int) -> Iterator[Figure]:
    """How fast durable functions are accepted, and how fast small ones go through."""
    accepted, through, small, small_cpu, trips = [], [], [], [], []
    adopt_orphans()  # shims are nobody's children: so they are ours, and counted
    with actorgrid.LocalCluster(gpus=8) as cluster:
        client = cluster.client()
        for _ in range(runs):
            through.append(_through(client, RUN, 1.0))
            before = _cpu_s()
            small.append(_through(client, RUN, SMALL))
            small_cpu.append(1e3 * (_cpu_s() - before) / (WARM + RUN))
            trips.append([_trip(client, n) for n in range(ONE_AT_A_TIME)])
    for _ in range(runs):
        with actorgrid.LocalCluster(gpus=8) as cluster:
            client = cluster.client()
            blocker = client.submit_job(command=["sleep", "600"])["job_id"]
            started = time.perf_counter()
            for future in [client.submit(abs, -n, durable=True, depends_on=[blocker]) for n in range(ACCEPTED)]:
                future.accepted(120)
            accepted.append(ACCEPTED / (time.perf_counter() - started))
    yield Figure("durable functions, run to their value", "jobs/s", through, True, must=MUST_RUN, note="1 CPU each")
    yield Figure("durable functions of 0.1 CPU", "jobs/s", small, True)
    yield Figure("durable functions of 0.1 CPU, CPU time of all processes for one", "ms", small_cpu, False)
    yield latency("durable function, submit to value", trips, "ms", 1e3)
    yield Figure("durable functions, accepted on disk", "jobs/s", accepted, True, note="each waits for a running job")


@registry.add("jobs_peers")
def jobs_peers(runs: int) -> Iterator[Figure]:
    """HyperQueue's processes, and our durable functions between its runs, so that both meet the same machine."""
    python = python_with("hyperqueue")
    script = Path(__file__).with_name("peer_hyperqueue.py")
    ours, theirs, version = [], [], ""
    with actorgrid.LocalCluster() as cluster:
        client = cluster.client()
        for _ in range(runs):
            ours.append(_through(client, RUN, 1.0))
            found = answer_of("HyperQueue", [python, script, RUN])
            theirs.append(found["rate"])
            version = found["version"]
    yield Figure(f"HyperQueue {version}: processes", "jobs/s", theirs, True, note="one job of many tasks, no journal")
    yield Figure("durable functions beside it", "jobs/s", ours, True)


def _through(client: Client, count: int, cpus: float) -> float:
    """Run so many no-ops to their values; gives jobs a second. Their processes are there before the clock starts."""
    for future in [client.submit(abs, -n, durable=True, cpus=cpus) for n in range(WARM)]:
        future.result(120)
    started = time.perf_counter()
    for future in [client.submit(abs, -n, durable=True, cpus=cpus) for n in range(count)]:
        future.result(300)
    return count / (time.perf_counter() - started)


def _trip(client: Client, number: int) -> float:
    started = time.perf_counter()
    client.submit(abs, -number, durable=True).result(60)
    return time.perf_counter() - started


def _cpu_s() -> float:
    """The CPU time of this process and all below it, in seconds."""
    spent = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with suppress(psutil.Error):
            times = process.cpu_times()
            spent += times.user + times.system
    return spent
