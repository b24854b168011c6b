"""Light processes of two hosts: calls to another host's process, over mutual TLS, both hosts on this machine.

Beside the times, which the load of the machine makes, what a call costs whatever else goes on: CPU time, and how often
one of the processes on its way slept and was woken. And two BEAM nodes, in turn with ours, where ``erl`` is there.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from actorgrid.client.light_shards import LightShards
from tests.processes import server_below
from tests.system.cluster_host import ClusterHost
from tests.system.light_kinds import Bench, Counters

from .actor_systems import beam_nodes
from .actor_work import Work
from .figures import Figure, Skipped, latency, registry

CALLS = 2_000
PIPELINED = 50_000
AHEAD = 1_000
UP_S = 120.0
LOOK_S = 0.1
BEAM_WORK = Work(calls=CALLS, pipelined=PIPELINED, casts=40, mb1=40, mb64=1)


@dataclass(frozen=True, slots=True)
class WayCost:
    """What the processes on the way have used so far."""

    cpu_s: float
    sleeps: int


class Way:
    """The processes that a call goes through: two shards, and the links of two hosts."""

    def __init__(self, hosts: tuple[ClusterHost, ClusterHost], shards: LightShards) -> None:
        pids = [each["pid"] for each in shards.layout()]
        for host in hosts:
            if host.process is not None:
                pids.append(server_below(host.process.pid, "links"))
        self._processes = [psutil.Process(pid) for pid in pids]

    def cost(self) -> WayCost:
        """CPU time of all threads, and how often one gave up the CPU because it had nothing to do."""
        cpu_s = sum(sum(each.cpu_times()[:2]) for each in self._processes)
        return WayCost(cpu_s, sum(self._sleeps(each.pid) for each in self._processes))

    @staticmethod
    def _sleeps(pid: int) -> int:
        total = 0
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            line = next(line for line in status.read_text().splitlines() if line.startswith("voluntary"))
            total += int(line.split()[1])
        return total


@registry.add("light_over_hosts")
def light_over_hosts(runs: int) -> Iterator[Figure]:
    """Two real agents, a shard on each; calls one at a time, then 1,000 ahead. Raises Skipped last, without BEAM."""
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
                yield from _measure(shards, (first, second), runs)
            finally:
                shards.stop()


def _measure(shards: LightShards, hosts: tuple[ClusterHost, ClusterHost], runs: int) -> Iterator[Figure]:
    until = time.monotonic() + UP_S
    while [each["linked"] for each in shards.layout()] != [[1], [0]]:
        if time.monotonic() > until:
            raise AssertionError("the shards are not linked")
        time.sleep(LOOK_S)
    caller, called = shards.start(Bench, shard=0), shards.wait_for("counter_1").pid
    way = Way(hosts, shards)

    def run(count: int, ahead: int) -> tuple[Any, float, float]:
        """What it measured; CPU seconds and sleeps for each call."""
        before = way.cost()
        found = shards.call(caller, (called, count, ahead), 120.0)
        after = way.cost()
        return found, (after.cpu_s - before.cpu_s) / count, (after.sleeps - before.sleeps) / count

    beam: list[dict[str, Any]] = []
    missing = ""
    run(CALLS, 1)
    singles, ahead = [], []
    for _ in range(runs):
        singles.append(run(CALLS, 1))
        ahead.append(run(PIPELINED, AHEAD))
        if not missing:
            try:
                beam.append(beam_nodes(BEAM_WORK))
            except Skipped as reason:
                missing = str(reason)
    note = "mutual TLS"
    yield latency("call to another host's light process", [found for found, _, _ in singles], "ms", 1e3, must=0.4)
    yield Figure("the same: CPU of shards and links", "µs", [cpu * 1e6 for _, cpu, _ in singles], False, note=note)
    yield Figure("the same: sleeps of shards and links", "a call", [sleeps for _, _, sleeps in singles], False)
    rates = [found for found, _, _ in ahead]
    yield Figure("calls to another host's light process, 1,000 ahead", "/s", rates, True, must=20_000, note=note)
    yield Figure("the same: CPU of shards and links", "µs", [cpu * 1e6 for _, cpu, _ in ahead], False, note=note)
    if beam:
        title = f"BEAM {beam[0]['version']}, two nodes of this machine, no TLS"
        yield latency(f"{title}: call", [each["trips"] for each in beam], "ms", 1e3)
        yield Figure(f"{title}: calls, 64 ahead", "/s", [each["calls"] for each in beam], True)
    if missing:
        raise Skipped(f"BEAM: {missing}")
