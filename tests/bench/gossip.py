"""The shared state over hosts: rounds among simulated ones, what a delta costs, a put seen on another agent."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from actorgrid.actors.replication.replica import StateReplica
from actorgrid.actors.replication.types import DELTAS as DELTAS_OF_TYPES
from actorgrid.actors.replication.types import MAX_DRIFT_US, Crdt, LWWRegister, ORMap, ORSet, PNCounter, Replica
from actorgrid.chaos.gossip.state_measures import spread as spread_in_time
from actorgrid.chaos.gossip.state_measures import state_traffic
from actorgrid.chaos.gossip.state_simulation import HEAD_BYTES, StateNetwork
from actorgrid.client.state import SharedState
from actorgrid.hotpath import COMPILED
from actorgrid.supervisors.gc_pause import collection_paused
from tests.processes import until
from tests.replication.gossip_rounds import spread
from tests.system.cluster_host import ClusterHost

from .figures import Figure, latency, percentile, registry

HOSTS = 1_000
CROWD = 100
WRITES = 10
LOSS = 0.05
DELTAS = 20_000
BATCH = 500
KEYS = 1_000
SENDERS = 8
AGENTS = 5
PUTS = 200
BATCHES, BATCH = 10, 500
NOW_US = 1_700_000_000_000_000


@registry.add("gossip")
def gossip(runs: int) -> Iterator[Figure]:
    found = [spread(HOSTS, seed, LOSS) for seed in range(runs)]
    rounds = [float(one.rounds) for one in found]
    note = f"{LOSS:.0%} of packets lost; passed on in the next round only"
    title = f"one write, {HOSTS:,} simulated hosts: until all have it"
    yield Figure(title, "rounds", rounds, False, p99=percentile(rounds, 0.99), must=10.0, stretch=6.0, note=note)
    size = [(one.bytes - one.idle_bytes) / HOSTS for one in found]
    yield Figure("the same: sent by a host, beyond idle rounds", "bytes", size, False, must=200.0)
    idle = [one.idle_bytes / HOSTS / one.rounds for one in found]
    yield Figure("an idle round: sent by a host", "bytes", idle, False, must=64.0)
    yield from _spread_in_time(runs)
    yield from _many_writes()
    puts = [_puts() for _ in range(runs)]
    yield Figure(
        "put, durable, 500 to a commit", "deltas/s", puts, True, must=20_000.0, note="the replica without its server"
    )
    kinds = "compiled" if COMPILED else "plain Python"
    for kind, make in MIXES.items():
        rates = [joined_rate(make) for _ in range(runs)]
        note = f"{kind}, of 1,000 keys; {kinds}, no disk"
        yield Figure("deltas checked and joined", "deltas/s", rates, True, must=200_000.0, note=note)
    taken = [_taken() for _ in range(runs)]
    note = f"a pn_counter each, of 1,000 keys; of {SENDERS} hosts, a packet of each to a commit"
    title = "deltas of other hosts checked, joined and made durable"
    yield Figure(title, "deltas/s", [one.rate for one in taken], True, must=200_000.0, note=note)
    yield Figure(
        "the same, a second of processor time", "deltas/s", [one.cpu_rate for one in taken], True, must=200_000.0
    )
    yield Figure("a delta on the wire, its key included", "bytes", [one.wire_bytes for one in taken], False, must=200.0)


def _spread_in_time(runs: int) -> Iterator[Figure]:
    """Hosts as they are: what is new is passed on at once, a round is a second."""
    for loss in (0.0, LOSS):
        found = [spread_in_time({"": HOSTS}, StateNetwork(loss=loss), seed + 1, WRITES) for seed in range(runs)]
        everywhere = [time for one in found for time in one.everywhere]
        title = f"one write, {HOSTS:,} hosts on virtual time: until all have it"
        middle = [median(one.everywhere) for one in found]
        missing = sum(one.missing for one in found)
        note = f"{loss:.0%} of packets lost; {len(everywhere)} writes, {missing} not everywhere"
        high = percentile(everywhere, 0.99)
        yield Figure(title, "s", middle, False, p99=high, must=10.0, stretch=6.0, note=note)


def _many_writes() -> Iterator[Figure]:
    """What a write costs each host where others come as well."""
    idle = state_traffic({"": CROWD}, StateNetwork(), 1, 10.0, 0.0)
    for rate in (1.0, 20.0):
        for loss in (0.0, LOSS):
            found = state_traffic({"": CROWD}, StateNetwork(loss=loss), 1, 20.0, rate)
            each = (found.host_bytes_per_s - idle.host_bytes_per_s) / rate
            note = (
                f"{CROWD} hosts, {loss:.0%} lost; values of 150 bytes, {HEAD_BYTES} for the frames of each packet; "
                f"{found.packets_per_s:.1f} packets/s a host"
            )
            yield Figure(f"{rate:g} writes a second: sent by a host for each", "bytes", [each], False, note=note)


def _counts(state: dict[str, Any], number: int, me: Replica) -> tuple[str, bytes]:
    key = f"bench/{number % KEYS}"
    return key, state.setdefault(key, PNCounter()).increment(me).to_bytes()


def _members(state: dict[str, Any], number: int, me: Replica) -> tuple[str, bytes]:
    key = f"bench/{number % KEYS}"
    return key, state.setdefault(key, ORSet()).add(me, number % 7000 // KEYS).to_bytes()


def _fields(state: dict[str, Any], number: int, me: Replica) -> tuple[str, bytes]:
    key = f"bench/{number % KEYS}"
    field = f"field{number % 7000 // KEYS}"
    return key, state.setdefault(key, ORMap()).put(me, field, number, NOW_US + number).to_bytes()


def registers(state: dict[str, Any], number: int, me: Replica) -> tuple[str, bytes]:
    key = f"bench/{number % KEYS}"
    return key, state.setdefault(key, LWWRegister()).put(me, number, NOW_US + number).to_bytes()


MIXES: dict[str, Callable[[dict[str, Any], int, Replica], tuple[str, bytes]]] = {
    "pn_counter": _counts,
    "lww_register": registers,
    "or_set of 7 elements": _members,
    "or_map of 7 fields": _fields,
}


def joined_rate(make: Callable[[dict[str, Any], int, Replica], tuple[str, bytes]]) -> float:
    """Deltas read, checked and joined into states in memory in a second of one core, in runs of 500."""
    state: dict[str, Any] = {}
    pairs = [make(state, number, ("here", 1)) for number in range(DELTAS)]
    states: dict[str, dict[str, Crdt]] = {}
    began_s = time.process_time()
    for start in range(0, DELTAS, BATCH):
        run = pairs[start : start + BATCH]
        with collection_paused():  # as the replica does
            deltas = DELTAS_OF_TYPES.decode(run, 0)
            assert DELTAS_OF_TYPES.first_later(deltas, NOW_US + DELTAS + MAX_DRIFT_US) == len(run)
            DELTAS_OF_TYPES.join(states, [key for key, _ in run], deltas)
    rate = DELTAS / (time.process_time() - began_s)
    assert all(states[key] == {one.kind: one} for key, one in state.items())
    return rate


def _puts() -> float:
    """Deltas a second made, and made durable."""
    with tempfile.TemporaryDirectory(prefix="bench-gossip-") as folder:
        here = StateReplica(Path(folder), "here", 1, random.Random(1))
        here.set_members(["here"])
        began_s = time.perf_counter()
        _put(here, DELTAS)
        rate = DELTAS / (time.perf_counter() - began_s)
        here.close()
    return rate


def _put(replica: StateReplica, count: int) -> None:
    for start in range(0, count, BATCH):
        for number in range(start, start + BATCH):
            key = f"bench/{number % KEYS}"
            state = replica.states.setdefault(key, {}).setdefault("pn_counter", PNCounter())
            assert isinstance(state, PNCounter)
            delta = state.increment(replica.me).to_bytes()
            replica.store.reserve(len(delta))
            replica.stage_local(key, delta)
        replica.commit()


@dataclass(frozen=True)
class Taken:
    """What one run of taking deltas came to."""

    rate: float
    cpu_rate: float
    wire_bytes: float


def _taken() -> Taken:
    """Several hosts' deltas taken by one, as they come: a packet of each, one commit, acknowledgements, and again."""
    with tempfile.TemporaryDirectory(prefix="bench-gossip-") as folder:
        names = [f"here{number}" for number in range(SENDERS)]
        sides = {name: StateReplica(Path(folder) / name, name, 1, random.Random(1)) for name in [*names, "there"]}
        there = sides["there"]
        for name, side in sides.items():
            side.set_members([name, "there"] if name != "there" else sides)
        for name in names:
            _put(sides[name], DELTAS)
        wire = [(name, send.packet) for name in names for send in sides[name].push()]
        took_s = cpu_s = wire_bytes = 0.0
        while wire:
            wire_bytes += sum(len(packet) for _, packet in wire)
            began_s, cpu_began_s = time.perf_counter(), time.process_time()
            acks = [ack for name, packet in wire for ack in there.receive(name, packet, NOW_US)] + there.commit()
            took_s += time.perf_counter() - began_s
            cpu_s += time.process_time() - cpu_began_s
            wire = []
            for ack in acks:
                side = sides[ack.peer]
                side.round()  # what it may send in a second is no matter here
                wire += [(ack.peer, send.packet) for send in side.receive("there", ack.packet, NOW_US) + side.commit()]
        count = DELTAS * SENDERS
        assert there.gossip.counts["deltas_taken"] == count
        for side in sides.values():
            side.close()
    return Taken(count / took_s, count / cpu_s, wire_bytes / count)


def _batches(state: SharedState) -> float:
    """Puts a second of one client that sends batch after batch."""
    began_s = time.perf_counter()
    for turn in range(BATCHES):
        batch = state.batch()
        for number in range(BATCH):
            batch.put(f"batches/{number}", [turn, number])
        state.apply(batch)
    return BATCHES * BATCH / (time.perf_counter() - began_s)


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
        batches: list[float] = []
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
            batches.append(_batches(first))
    yield Figure("puts in batches of 500, durable, through the door", "puts/s", batches, True, note="one client")
    where = f"{AGENTS} agents on this machine"
    yield latency("put on one host → watch on another", watches, "ms", 1e3, must=20.0, stretch=5.0, note=where)
    yield latency("the put alone, durable on its host", puts, "ms", 1e3, note=where)
