"""Session tasks on a real host: throughput and round trip."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import actorgrid
from actorgrid.client.client import Client

from .figures import Figure, latency, registry

TASKS = 10_000
TRIPS = 2_000


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
