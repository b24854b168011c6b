"""Light processes of two hosts: calls to another host's process, over mutual TLS, both hosts on this machine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from actorgrid.client.light_shards import LightShards
from tests.system.cluster_host import ClusterHost
from tests.system.light_kinds import Bench, Counters

from .figures import Figure, latency, registry

CALLS = 2_000
PIPELINED = 50_000
AHEAD = 1_000
UP_S = 120.0
LOOK_S = 0.1


@registry.add("light_over_hosts")
def light_over_hosts(runs: int) -> Iterator[Figure]:
    """Two real agents, a shard on each; calls one at a time, then 1,000 ahead."""
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(ClusterHost(Path(folder) / "one", "simulated:1xH100-80GB")) as first,
        closing(ClusterHost(Path(folder) / "two", "simulated:1xH100-80GB")) as second,
    ):
        first.found()
        second.join(first, str(first.token()["token"]))
        with first.client() as client:
            shards = client.start_shards("bench", 2, Counters, 2, 2, gpus=1, cpus=0.1)
            try:
                yield from _measure(shards, runs)
            finally:
                shards.stop()


def _measure(shards: LightShards, runs: int) -> Iterator[Figure]:
    until = time.monotonic() + UP_S
    while [each["linked"] for each in shards.layout()] != [[1], [0]]:
        if time.monotonic() > until:
            raise AssertionError("the shards are not linked")
        time.sleep(LOOK_S)
    caller, called = shards.start(Bench, shard=0), shards.wait_for("counter_1").pid

    def run(count: int, ahead: int) -> Any:
        return shards.call(caller, (called, count, ahead), 120.0)

    run(CALLS, 1)
    trips = [run(CALLS, 1) for _ in range(runs)]
    yield latency("call to another host's light process", trips, "ms", 1e3, must=0.4)
    rates = [run(PIPELINED, AHEAD) for _ in range(runs)]
    yield Figure(
        "calls to another host's light process, 1,000 ahead", "/s", rates, True, must=20_000, note="mutual TLS"
    )
