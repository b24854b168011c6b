"""Replicas of the shared state in one process: real stores on disk, a network that loses, doubles and reorders, and
what was acknowledged, to hold the end against.
"""

from __future__ import annotations

import random
import shutil
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actorgrid.actors.replication.actor import ROUND_S
from actorgrid.actors.replication.exchange import GossipLimits, Send
from actorgrid.actors.replication.replica import HASH_PAUSE_S, StateReplica
from actorgrid.actors.replication.types import LWWRegister, ORSet, PNCounter, mutate, new

NOW_US = 1_700_000_000_000_000
KEPT, LOST, TRUNCATED = "kept", "lost", "truncated"


@dataclass
class Update:
    """One mutation: what the oracle knows of it."""

    host: str
    key: str
    kind: str
    what: Any
    kills: frozenset[Any] = frozenset()
    dot: tuple[Any, int] = (("", 0), 0)
    delta: Any = None
    certain: bool = False
    """On the disk of a host whose disk lives."""


@dataclass
class Host:
    name: str
    directory: Path
    replica: StateReplica
    starts: int = 1
    losses: int = 0
    pending: list[Update] = field(default_factory=list)


SLICES_A_ROUND = int(ROUND_S / HASH_PAUSE_S)
"""Of a host's tree that its server makes before the next round."""


class Town:
    """*count* hosts. ``incarnation`` stays what it was at a restart: a server's, within one start of its agent."""

    def __init__(self, directory: Path, count: int, seed: int, limits: GossipLimits | None = None) -> None:
        self.dice = random.Random(seed)
        self.directory = directory
        self.limits = limits or GossipLimits(all_at=0)
        self.loss, self.doubles, self.reorders = 0.0, 0.0, False
        self.wire: deque[tuple[str, str, bytes]] = deque()
        self.sides: dict[str, int] = {}
        self.updates: list[Update] = []
        self.sent_bytes = 0
        self.now_us = NOW_US
        self.slices_a_round = SLICES_A_ROUND
        self.clock_steps_us: dict[str, int] = {}
        """By host, how far its clock is from the others'."""
        self.names = [f"host-{number}" for number in range(count)]
        self.hosts = {name: Host(name, directory / name, self._open(name)) for name in self.names}

    def _open(self, name: str) -> StateReplica:
        replica = StateReplica(self.directory / name, name, 1, random.Random(self.dice.random()), self.limits)
        replica.set_members(self.names)
        return replica

    def close(self) -> None:
        for host in self.hosts.values():
            host.replica.close()

    def clock(self, name: str) -> int:
        """What a host takes the time for, in microseconds since 1970."""
        return self.now_us + self.clock_steps_us.get(name, 0)

    # -- what happens

    def mutate(self, name: str, key: str, kind: str, operation: str, value: Any = None) -> Any:
        host = self.hosts[name]
        replica = host.replica
        kinds = replica.states.setdefault(key, {})
        state = kinds.setdefault(kind, new(kind))
        kills: frozenset[Any] = frozenset()
        if isinstance(state, ORSet):
            kills = frozenset(dot for dot, entry in state._entries.items() if entry[0] == _head(value))
        delta = mutate(state, replica.me, operation, value, None, self.clock(name))
        if delta == new(kind):
            return state.value
        replica.store.reserve(len(delta.to_bytes()) + 4096)
        sequence = replica.stage_local(key, delta.to_bytes())
        what: Any = (operation, value)
        if isinstance(delta, ORSet):
            what = frozenset(delta._entries)
        elif isinstance(delta, LWWRegister):
            what = delta._write
        update = Update(name, key, kind, what, kills, (replica.me, sequence), delta)
        self.updates.append(update)
        host.pending.append(update)
        return state.value

    def commit(self, name: str) -> None:
        host = self.hosts[name]
        self._post(name, host.replica.commit())
        for update in host.pending:
            update.certain = True
        host.pending.clear()

    def push(self, name: str, everybody: bool = False) -> None:
        replica = self.hosts[name].replica
        if everybody and replica.me in replica.gossip.vector:
            self._post(name, replica.offer_to_all(replica.me, replica.gossip.vector[replica.me]))
        self._post(name, replica.push())

    def round(self, name: str) -> None:
        self.commit(name)
        replica = self.hosts[name].replica
        self._post(name, replica.round())
        for _ in range(self.slices_a_round):
            if not replica.hash_some():
                break

    def deliver(self, commit: bool = True) -> bool:
        """One packet, or its loss. ``commit=False``: what it brings is not durable yet."""
        if not self.wire:
            return False
        if self.reorders:
            self.wire.rotate(self.dice.randrange(len(self.wire)))
        source, target, packet = self.wire.popleft()
        if self.dice.random() < self.loss or self.sides.get(source, 0) != self.sides.get(target, 0):
            return True
        if self.dice.random() < self.doubles:
            self.wire.append((source, target, packet))
        self._post(target, self.hosts[target].replica.receive(source, packet, self.clock(target)))
        if commit:
            self.commit(target)
            self.push(target)
        return True

    def restart(self, name: str, disk: str = KEPT) -> None:
        """As after SIGKILL: what was not committed is gone; then what became of the disk."""
        host = self.hosts[name]
        host.replica.close()
        host.pending.clear()
        if disk == LOST:
            shutil.rmtree(host.directory)
        elif disk == TRUNCATED:
            for journal in host.directory.glob("journal-*"):
                data = journal.read_bytes().rstrip(b"\0")
                starts = [at for at in range(len(data)) if data.startswith(b"AGRJ", at)]
                if starts:
                    journal.write_bytes(data[: starts[len(starts) // 2]])
        if disk != KEPT:
            host.losses += 1
            for update in self.updates:
                if update.host == name:
                    update.certain = False
        host.starts += 1
        host.replica = self._open(name)

    def settle(self, rounds: int = 40) -> int:
        """Let the network be whole, and rounds pass until all hold the same: how many it took."""
        self.loss, self.doubles, self.reorders, self.sides = 0.0, 0.0, False, {}
        for name in self.names:
            self.commit(name)
        for count in range(rounds):
            if self.converged():
                return count
            for name in self.names:
                self.round(name)
            while self.deliver():
                pass
        assert self.converged(), {name: host.replica.gossip.vector for name, host in self.hosts.items()}
        return rounds

    def converged(self) -> bool:
        vectors = [host.replica.gossip.vector for host in self.hosts.values()]
        return all(vector == vectors[0] for vector in vectors) and len(self.digests()) == 1

    def digests(self) -> set[bytes]:
        return {host.replica.digest() for host in self.hosts.values()}

    def _post(self, source: str, sends: list[Send]) -> None:
        for send in sends:
            self.sent_bytes += len(send.packet)
            assert len(send.packet) <= 64 * 2**10
            self.wire.append((source, send.peer, send.packet))

    # -- what must hold

    def check_acknowledgements(self) -> None:
        """Nobody believes that a peer holds durably what its disk has not (unless that lost something since)."""
        for host in self.hosts.values():
            for name, peer in host.replica.gossip.peers.items():
                other = self.hosts[name]
                if other.losses:
                    continue
                for origin, count in peer.known.items():
                    assert count <= other.replica.gossip.vector.get(origin, 0), (host.name, name, origin)

    def check_vectors(self) -> None:
        """Whoever counts a delta as held has what it says in its states."""
        for host in self.hosts.values():
            vector, states = host.replica.gossip.vector, host.replica.states
            for update in self.updates:
                origin, sequence = update.dot
                if sequence <= vector.get(origin, 0):
                    state = states[update.key][update.kind]
                    assert state.copy().join(update.delta) == state, (host.name, update)

    def check_end(self) -> None:
        """All hold the same, and in it is all that was acknowledged by hosts whose disks live."""
        assert self.converged()
        states = self.hosts[self.names[0]].replica.states
        for key in {update.key for update in self.updates}:
            about = [update for update in self.updates if update.key == key]
            for kind in {update.kind for update in about}:
                of_kind = [update for update in about if update.kind == kind]
                state = states.get(key, {}).get(kind, new(kind))
                _CHECKS[kind](state, of_kind)


def _head(value: Any) -> bytes:
    probe = ORSet()
    probe.add(("probe", 1), value)
    [entry] = probe._entries.values()
    assert isinstance(entry[0], bytes)
    return entry[0]


def _check_set(state: Any, updates: list[Update]) -> None:
    killed = frozenset[Any]().union(*(update.kills for update in updates))
    for update in updates:
        for dot in update.what:
            if update.certain and dot not in killed:
                assert dot in state._entries, f"an addition is lost: {update}"
        if update.certain:
            assert not update.kills & state._entries.keys(), f"a removal is lost: {update}"
    assert state._entries.keys() <= frozenset[Any]().union(*(update.what for update in updates))


def _check_counter(state: Any, updates: list[Update]) -> None:
    signs = {"increment": 1, "decrement": -1}
    steps = [(signs[update.what[0]] * update.what[1], update.certain) for update in updates]
    least = sum(step for step, certain in steps if certain or step < 0)
    most = sum(step for step, certain in steps if certain or step > 0)
    assert least <= state.value <= most, (least, state.value, most)


def _check_register(state: Any, updates: list[Update]) -> None:
    writes = [update.what for update in updates]
    certain = [update.what for update in updates if update.certain]
    assert not certain or state._write >= max(certain), "a write is lost"
    assert state._write is None or state._write in writes


_CHECKS = {"or_set": _check_set, "pn_counter": _check_counter, "lww_register": _check_register}
assert PNCounter.kind in _CHECKS
OPERATIONS = (
    ("hits", "pn_counter", "increment"),
    ("hits", "pn_counter", "decrement"),
    ("tags", "or_set", "add"),
    ("tags", "or_set", "add"),
    ("tags", "or_set", "remove"),
    ("name", "lww_register", "put"),
    ("tags", "lww_register", "put"),
)


def play(town: Town, steps: int) -> None:
    """Random mutations, deliveries, rounds, restarts and partitions, from the town's seed."""
    dice = town.dice
    town.loss, town.doubles, town.reorders = dice.choice([0.0, 0.1, 0.3]), 0.1, dice.random() < 0.5
    for _ in range(steps):
        name = dice.choice(town.names)
        chance = dice.random()
        if chance < 0.35:
            town.mutate(name, *dice.choice(OPERATIONS), dice.randrange(1, 6))
        elif chance < 0.5:
            town.commit(name)
            town.push(name, everybody=dice.random() < 0.3)
        elif chance < 0.8:
            town.deliver(commit=dice.random() < 0.5)
        elif chance < 0.92:
            town.round(name)
        elif chance < 0.95:
            town.sides = {host: dice.randrange(2) for host in town.names}
        else:
            town.restart(name, dice.choice([KEPT, KEPT, LOST, TRUNCATED]))
            town.check_vectors()
        town.check_acknowledgements()
    town.check_vectors()
    town.settle()
    town.check_acknowledgements()
    town.check_vectors()
    town.check_end()
