"""The shared state over hosts: rounds among simulated ones, what a delta costs, a put seen on another agent."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from actorgrid.actors.replication.packets import Digest, encode
from actorgrid.actors.replication.replica import StateReplica
from actorgrid.actors.replication.types import PNCounter
from tests.processes import until
from tests.replication.gossip_rounds import spread
from tests.system.cluster_host import ClusterHost

from .figures import Figure, latency, percentile, registry

HOSTS = 1_000
LOSS = 0.05
DELTAS = 20_000
BATCH = 500
AGENTS = 5
PUTS = 200
NOW_US = 1_700_000_000_000_000


@registry.add("gossip")
def gossip(runs: int) -> Iterator[Figure]:
    found = [spread(HOSTS, seed, LOSS) for seed in range(runs)]
    rounds = [float(one.rounds) for one in found]
    note = f"{LOSS:.0%} of packets lost, fan-out 3; answers within a round"
    title = f"one write, {HOSTS:,} simulated hosts: until all have it"
    yield Figure(title, "rounds", rounds, False, p99=percentile(rounds, 0.99), must=10.0, stretch=6.0, note=note)
    size = [one.bytes / HOSTS for one in found]
    yield Figure("the same: sent by a host, digests of idle rounds included", "bytes", size, False)
    yield Figure("a round between equals", "bytes", [float(len(encode(Digest(bytes(16), bytes(8)))))], False, must=64.0)
    rates = [_rates() for _ in range(runs)]
    yield Figure(
        "put, durable, 500 to a commit",
        "deltas/s",
        [one[0] for one in rates],
        True,
        must=20_000.0,
        note="the replica without its server",
    )
    yield Figure(
        "deltas of another host checked, joined and made durable",
        "deltas/s",
        [one[1] for one in rates],
        True,
        must=200_000.0,
        note="a pn_counter each, of 1,000 keys",
    )
    sizes = [one[2] for one in rates]
    yield Figure("a delta on the wire, its key included", "bytes", sizes, False, must=200.0)


def _rates() -> tuple[float, float, float]:
    """Deltas a second put here, taken there, and the bytes of one."""
    with tempfile.TemporaryDirectory(prefix="bench-gossip-") as folder:
        sides = {name: StateReplica(Path(folder) / name, name, 1, random.Random(1)) for name in ("here", "there")}
        here, there = sides["here"], sides["there"]
        for side in sides.values():
            side.set_members(sides)
        states = [PNCounter() for _ in range(1000)]
        packets: list[bytes] = []
        put_s = take_s = 0.0
        for start in range(0, DELTAS, BATCH):
            began_s = time.perf_counter()
            for number in range(start, start + BATCH):
                key = f"bench/{number % 1000}"
                state = states[number % 1000]
                delta = state.increment(here.me).to_bytes()
                here.states[key] = {"pn_counter": state}
                here.store.reserve(len(delta))
                here.stage_local(key, delta)
            here.commit()
            put_s += time.perf_counter() - began_s
            wire = [send.packet for send in here.push()]
            while wire:
                packets += wire
                began_s = time.perf_counter()
                acks = [ack for packet in wire for ack in there.receive("here", packet, NOW_US)] + there.commit()
                take_s += time.perf_counter() - began_s
                wire = [
                    send.packet for ack in acks for send in here.receive("there", ack.packet, NOW_US) + here.commit()
                ]
        assert there.gossip.counts["deltas_taken"] == DELTAS
        for side in sides.values():
            side.close()
    return DELTAS / put_s, DELTAS / take_s, sum(map(len, packets)) / DELTAS


@registry.add("state_watch")
def state_watch(runs: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="bench-watch-") as folder, ExitStack() as stack:
        agents = [
            stack.enter_context(closing(ClusterHost(Path(folder) / f"h{number}", "simulated:1xH100-80GB")))
            for number in range(AGENTS)
        ]
        agents[0].found()
        for agent in agents[1:]:
            agent.join(agents[0], agents[0].token()["token"])
        first, last = agents[0].client().state, agents[-1].client().state
        first.put("bench/watched", -1)
        until(lambda: last.get("bench/watched", None) == -1, "the state is shared")
        seen = last.watch("bench/", initial=True)
        next(seen)
        puts: list[list[float]] = []
        watches: list[list[float]] = []
        for run in range(runs):
            puts.append([])
            watches.append([])
            for number in range(PUTS):
                began_s = time.perf_counter()
                value: Any = [run, number]
                first.put("bench/watched", value)
                puts[-1].append(time.perf_counter() - began_s)
                while next(seen)["value"] != value:
                    pass
                watches[-1].append(time.perf_counter() - began_s)
    where = f"{AGENTS} agents on this machine"
    yield latency("put on one host → watch on another", watches, "ms", 1e3, must=20.0, stretch=5.0, note=where)
    yield latency("the put alone, durable on its host", puts, "ms", 1e3, note=where)
