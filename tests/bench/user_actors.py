"""Actors of the user's on a real host: round trip, pipelined calls, how many are made in a second."""

from __future__ import annotations

import time
from collections.abc import Iterator

import actorgrid

from .figures import Figure, latency, registry

CALLS = 10_000
TRIPS = 2_000
MADE = 40


@actorgrid.actor(cpus=0.02)
class Idler:
    """Does nothing, elsewhere."""

    def noop(self) -> None:
        """Nothing."""


@registry.add("user_actors")
def user_actors(runs: int) -> Iterator[Figure]:
    """Calls of one actor from its creator, and actors made until each has answered."""
    with actorgrid.LocalCluster(gpus=0) as cluster, cluster.client():
        actor = Idler.create()
        actor.ready().result()
        trips, rates, made = [], [], []
        for _ in range(runs):
            samples = []
            for _ in range(TRIPS):
                started = time.perf_counter()
                actor.noop().result()
                samples.append(time.perf_counter() - started)
            trips.append(samples)
        yield latency("user actor call", trips, "ms", 1e3, must=0.15, stretch=0.1)
        for _ in range(runs):
            started = time.perf_counter()
            for future in [actor.noop() for _ in range(CALLS)]:
                future.result()
            rates.append(CALLS / (time.perf_counter() - started))
        yield Figure("user actor calls, pipelined", "calls/s", rates, True, must=20_000, stretch=40_000)
        actor.stop()
        for _ in range(runs):
            started = time.perf_counter()
            handles = [Idler.create() for _ in range(MADE)]
            for handle in handles:
                handle.ready().result()
            made.append(MADE / (time.perf_counter() - started))
            for handle in handles:
                handle.stop()
        yield Figure("user actors made", "actors/s", made, True, must=200, stretch=500, note=f"{MADE} at a time")
