"""Locks on a real host: taking and giving back a free one, and how fast the next in line has it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import actorgrid
from actorgrid.client.client import Client

from .figures import Figure, latency, registry

TURNS = 200
HANDOVERS = 50


def _uncontended(client: Client) -> list[float]:
    lock = client.lock("free")
    samples = []
    for _ in range(TURNS):
        started = time.perf_counter()
        lock.acquire()
        lock.release()
        samples.append(time.perf_counter() - started)
    return samples


def _handover(client: Client, other: Client) -> float:
    """From the holder's release to the waiter's return from acquire."""
    mine, theirs = client.lock("handed over"), other.lock("handed over")
    taken: list[float] = []

    def wait() -> None:
        with theirs:
            taken.append(time.perf_counter())

    mine.acquire()
    waiter = threading.Thread(target=wait)
    waiter.start()
    while not client.locks("handed over")[0]["waiters"]:
        time.sleep(0.001)
    started = time.perf_counter()
    mine.release()
    waiter.join()
    return taken[0] - started


@registry.add("locks")
def locks(runs: int) -> Iterator[Figure]:
    """One host, fsynced."""
    with actorgrid.LocalCluster(gpus=1) as cluster:
        client, other = cluster.client(), cluster.client()
        _uncontended(client)
        turns = [_uncontended(client) for _ in range(runs)]
        yield latency("lock, free: acquire and release", turns, "ms", 1e3)
        handed = [[_handover(client, other) for _ in range(HANDOVERS)] for _ in range(runs)]
        yield latency("lock, handed to who waits", handed, "ms", 1e3)
