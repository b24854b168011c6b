"""Session tasks of a client that is no host: an API key, TLS, and the door between it and two warm workers."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import actorgrid
from actorgrid.client.client import Client
from tests.system.cluster_host import ClusterHost

from .figures import Figure, latency, registry
from .sessions import TASKS, TRIPS, _rate, _trips
from .user_actors import CALLS, Idler

BYTES = 32 * 2**20


@registry.add("sessions_afar")
def sessions_afar(runs: int) -> Iterator[Figure]:
    """Empty tasks, round trips and bytes through a host's HTTPS port, on loopback."""
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(ClusterHost(Path(folder) / "h", "simulated:1xH100-80GB")) as host,
    ):
        host.found()
        key = host.cli_json("key", "create")
        client = actorgrid.connect(
            key["url"], key["key"], ca_fingerprint=key["ca_fingerprint"], relayed=True, keep_alive_s=600.0
        )
        with client:
            yield from _measure(client, runs)
            yield from _measure_actor(client, runs)


def _measure_actor(client: Client, runs: int) -> Iterator[Figure]:
    actor = Idler.on(client).create()
    actor.ready().result()
    trips, rates = [], []
    for _ in range(runs):
        samples = []
        for _ in range(TRIPS):
            started = time.perf_counter()
            actor.noop().result()
            samples.append(time.perf_counter() - started)
        trips.append(samples)
        started = time.perf_counter()
        for future in [actor.noop() for _ in range(CALLS)]:
            future.result()
        rates.append(CALLS / (time.perf_counter() - started))
    yield latency("user actor call from afar", trips, "ms", 1e3)
    yield Figure("user actor calls from afar, pipelined", "calls/s", rates, True, must=2000, note="HTTPS, API key")
    actor.stop()


def _measure(client: Client, runs: int) -> Iterator[Figure]:
    for future in [client.submit(time.sleep, 0.5) for _ in range(2)]:
        future.result()
    _rate(client, TASKS)
    rates = [_rate(client, TASKS) for _ in range(runs)]
    yield Figure("session noop tasks from afar", "tasks/s", rates, True, must=2000, stretch=8000, note="HTTPS, API key")
    trips = [_trips(client, TRIPS) for _ in range(runs)]
    yield latency("session task round trip from afar", trips, "ms", 1e3, must=2.0, stretch=0.5)
    data, both_ways = os.urandom(BYTES), []
    for _ in range(runs):
        started = time.perf_counter()
        client.submit(bytes, data).result()
        both_ways.append(2 * BYTES / 1e6 / (time.perf_counter() - started))
    yield Figure("argument and result of 32 MiB from afar", "MB/s", both_ways, True)
