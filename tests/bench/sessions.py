"""Session tasks on a real host: throughput and round trip."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil

import actorgrid
from actorgrid.client.client import Client

from .figures import Figure, latency, registry

TASKS = 10_000
TRIPS = 2_000
QUEUED = 99_000
"""A little less than a client takes before it waits."""
KILLS = 10


def noop() -> None:
    """Nothing, elsewhere."""


def warm_client(cluster: actorgrid.LocalCluster, **options: float) -> Client:
    """A client that holds two workers."""
    client = cluster.client(keep_alive_s=600.0)
    for future in [client.submit(time.sleep, 0.5, **options) for _ in range(2)]:
        future.result()
    return client


def _rate(client: Client, tasks: int, **options: float) -> float:
    started = time.perf_counter()
    for future in [client.submit(noop, **options) for _ in range(tasks)]:
        future.result()
    return tasks / (time.perf_counter() - started)


def _trips(client: Client, trips: int, **options: float) -> list[float]:
    samples = []
    for _ in range(trips):
        started = time.perf_counter()
        client.submit(noop, **options).result()
        samples.append(time.perf_counter() - started)
    return samples


@registry.add("sessions")
def sessions(runs: int) -> Iterator[Figure]:
    """Empty tasks on two warm workers."""
    with actorgrid.LocalCluster(gpus=8) as cluster:
        client = warm_client(cluster)
        _rate(client, TASKS)
        note = f"{client._session.figures()['workers']} workers" if client._session else ""
        rates = [_rate(client, TASKS) for _ in range(runs)]
        yield Figure("session noop tasks", "tasks/s", rates, True, must=8000, stretch=15000, note=note)
        trips = [_trips(client, TRIPS) for _ in range(runs)]
        yield latency("session task round trip", trips, "ms", 1e3, must=0.4, stretch=0.25)
        mapped = []
        for _ in range(runs):
            started = time.perf_counter()
            count = sum(1 for _ in client.map(abs, range(100_000), chunksize=1000))
            mapped.append(count / (time.perf_counter() - started))
        yield Figure("map in chunks of 1,000", "items/s", mapped, True)


def hold(seconds: float) -> None:
    """Keep a worker busy."""
    time.sleep(seconds)


@registry.add("queued_tasks")
def queued_tasks(runs: int) -> Iterator[Figure]:
    """What a client holds for as many tasks as it takes at once, while its workers are busy."""
    sizes = []
    with actorgrid.LocalCluster(gpus=8) as cluster:
        for _ in range(runs):
            client = warm_client(cluster)
            holds = [client.submit(hold, 600.0) for _ in range(2)]
            client.submit(noop)  # what is loaded at the first that has to wait
            before = psutil.Process().memory_full_info().uss
            futures = [client.submit(noop) for _ in range(QUEUED)]
            sizes.append((psutil.Process().memory_full_info().uss - before) / 1e6)
            for future in futures:
                future.cancel()
            for future in holds:
                client.cancel(future, force=True)
            client.close()
            del futures, client
            gc.collect()
    yield Figure(f"{QUEUED:,} queued session tasks, in the client", "MB", sizes, False, must=200, note="private memory")


def first_is_killed(path: str) -> float:
    """Wait to be killed the first time; the time at which it runs again."""
    with open(path, "a", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")
    if len(Path(path).read_text().splitlines()) == 1:
        time.sleep(600)
    return time.time()


@registry.add("worker_killed")
def worker_killed(runs: int) -> Iterator[Figure]:
    """From SIGKILL of a worker to the next run of its task, on another worker that is idle."""
    samples = []
    with actorgrid.LocalCluster(gpus=8) as cluster, tempfile.TemporaryDirectory() as folder:
        client = warm_client(cluster)
        for run in range(runs):
            taken = []
            for number in range(KILLS):
                for future in [client.submit(time.sleep, 0.2) for _ in range(2)]:
                    future.result()
                path = Path(folder) / f"{run}-{number}"
                again = client.submit(first_is_killed, str(path))
                while not path.exists() or not path.read_text().endswith("\n"):
                    time.sleep(0.002)
                killed_at = time.time()
                os.kill(int(path.read_text()), signal.SIGKILL)
                taken.append(again.result() - killed_at)
            samples.append(taken)
        client.close()
    yield latency("a killed worker's task runs again", samples, "ms", 1e3, must=100)


@registry.add("gpu_sessions")
def gpu_sessions(runs: int) -> Iterator[Figure]:
    """Empty tasks on a quarter of a GPU each."""
    with actorgrid.LocalCluster(gpus=8) as cluster:
        client = warm_client(cluster, gpus=0.25)
        _rate(client, TASKS, gpus=0.25)
        rates = [_rate(client, TASKS, gpus=0.25) for _ in range(runs)]
        yield Figure("0.25-GPU session tasks", "tasks/s", rates, True, must=2000, stretch=8000)


@registry.add("process_pool")
def process_pool(runs: int) -> Iterator[Figure]:
    """The same tasks through the standard library's pool of two processes."""
    with ProcessPoolExecutor(2) as pool:
        pool.submit(noop).result()
        rates, trips = [], []
        for _ in range(runs):
            started = time.perf_counter()
            for future in [pool.submit(noop) for _ in range(TASKS)]:
                future.result()
            rates.append(TASKS / (time.perf_counter() - started))
        for _ in range(runs):
            samples = []
            for _ in range(TRIPS):
                started = time.perf_counter()
                pool.submit(noop).result()
                samples.append(time.perf_counter() - started)
            trips.append(samples)
    yield Figure("ProcessPoolExecutor: noop tasks", "tasks/s", rates, True)
    yield latency("ProcessPoolExecutor: round trip", trips, "ms", 1e3)
