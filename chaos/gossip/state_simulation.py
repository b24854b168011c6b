"""Hosts of the shared state's real decisions on virtual time: sites, lines of some width, disks, pauses and restarts.

Each host has the real anti-entropy, CRDTs and tree of keys; its disk is what was committed, in memory. A packet takes
its time over the line between two sites and waits where that is full, as in a router with a bounded queue; inside a
site it takes a millisecond. The same seed is the same run.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from actorgrid.actors.replication.anti_entropy import AntiEntropy
from actorgrid.actors.replication.causal import Replica
from actorgrid.actors.replication.delta_log import DottedDelta
from actorgrid.actors.replication.exchange import (
    GossipLimits,
    Instruction,
    Send,
    TakeDeltas,
    TakeNewEpoch,
    TakeState,
    TakeVector,
)
from actorgrid.actors.replication.key_tree import KeyTree
from actorgrid.actors.replication.packets import compares_states
from actorgrid.actors.replication.push_pace import PushPace
from actorgrid.actors.replication.types import Crdt, decode, mutate, new
from actorgrid.actors.replication.version_vector import Vector, new_epoch
from actorgrid.chaos.simulator.rng import stream

NOW_US = 1_700_000_000_000_000
"""The wall clocks as a simulation begins, microseconds since 1970."""
ROUND_S = 1.0
SOCKET_PACKETS_MAX = 256
LINE_QUEUE_S = 2.0
"""What waits longer for a full line is dropped."""
HEAD_BYTES = 60
"""Of a packet beside its body: the frame of a link, TLS, TCP and IP, spread over what goes together."""

States = dict[str, dict[str, Crdt]]


@dataclass(slots=True)
class StateNetwork:
    """``loss`` of all packets; ``doubled``: come twice. Between two sites: half of ``far_round_trip_s`` one way, with
    up to a tenth more, over one line each way of ``far_bytes_per_s``. ``cut``: pairs of sides (``StateHost.side``)
    between which nothing passes, in that direction."""

    loss: float = 0.0
    doubled: float = 0.0
    near_delay_s: tuple[float, float] = (0.0002, 0.002)
    far_round_trip_s: float = 0.08
    far_bytes_per_s: float = inf
    host_bytes_per_s: float = inf
    cut: set[tuple[int, int]] = field(default_factory=set)


@dataclass(slots=True)
class StateDisk:
    """What a host's disk holds: states by key and type, counts, and the deltas in order."""

    states: dict[str, dict[str, bytes]] = field(default_factory=dict)
    vector: Vector = field(default_factory=dict)
    rows: list[DottedDelta] = field(default_factory=list)


class StateHost:
    """One host: its part of the shared state, and what its machine does to it. ``clock_s`` is added to its wall clock.

    ``away_from`` is the number of its losses of a disk; ``side`` is where it stands in a partition.
    """

    def __init__(self, name: str, site: str, seed: int, limits: GossipLimits, parts: StateParts) -> None:
        self.name = name
        self.site = site
        self.side = 0
        self.up = True
        self.standing_until = -inf
        self.clock_s = 0.0
        self.disk = StateDisk()
        self.starts = 0
        self.sent_packets = self.sent_bytes = self.far_bytes = 0
        self.inbox: list[tuple[str, bytes]] = []
        self.line_free_at = 0.0
        self.committing = False
        self._seed, self._limits, self._parts = seed, limits, parts
        self.states: States = {}
        self.gossip: AntiEntropy
        self.members: Sequence[str] = ()
        self.sites: Mapping[str, str] = {}
        self.start()

    # -- life

    def start(self) -> None:
        """Start on what the disk holds, as a new origin."""
        self.starts += 1
        self.up, self.standing_until = True, -inf
        self.pace, self.pushing = PushPace(), False
        self.inbox.clear()
        self.states = {
            key: {kind: decode(data) for kind, data in kinds.items()} for key, kinds in self.disk.states.items()
        }
        self._touched: dict[str, None] = {}
        self._rows: list[DottedDelta] = []
        self._vector: Vector = {}
        self.tree = KeyTree(lambda key: b"".join(self.encoded(key)))
        self.tree.touch(self.states)
        self.dice = stream(self._seed, f"{self.name}/{self.starts}")
        self.gossip = self._parts.entropy(
            self.new_origin(), self.disk.vector, self.disk.rows, self.tree, self, self.dice, self._limits
        )
        self.set_members(self.members, self.sites)

    def set_members(self, members: Sequence[str], sites: Mapping[str, str]) -> None:
        """The hosts of the cluster and their sites."""
        self.members, self.sites = members, sites
        self.gossip.set_members(members, sites)

    def new_origin(self) -> Replica:
        """What this opening of the store is called."""
        return self.name, new_epoch(1, self.dice.getrandbits(31))

    # -- for the decisions

    def encoded(self, key: str) -> list[bytes]:
        """See ``Holding``."""
        kinds = self.states.get(key, {})
        return [kinds[kind].to_bytes() for kind in sorted(kinds)]

    def highest(self, key: str, kind: str, replica: Replica) -> int:
        """See ``Holding``."""
        state = self.states.get(key, {}).get(kind)
        return 0 if state is None else state.highest(replica)

    # -- what it does

    def now_us(self, now: float) -> int:
        """The wall clock."""
        return NOW_US + round((now + self.clock_s) * 1e6)

    def write(self, key: str, kind: str, operation: str, value: Any, now: float) -> tuple[Replica, int]:
        """One mutation, not durable yet; gives its dot."""
        state = self.states.setdefault(key, {}).setdefault(kind, new(kind))
        delta = self.stamped(state, operation, value, now)
        row = self.gossip.local(key, delta.to_bytes())
        self._stage([row])
        self._touch(key)
        return row.origin, row.sequence

    def stamped(self, state: Crdt, operation: str, value: Any, now: float) -> Crdt:
        """Apply a mutator; its delta."""
        return mutate(state, self.gossip.me, operation, value, None, self.now_us(now))

    def join(self, known: Crdt, delta: Crdt) -> Crdt:
        """Join what came into what is known."""
        return known.join(delta)

    def do(self, instructions: list[Instruction]) -> list[Send]:
        """Carry out what the decisions say; gives what is to be sent."""
        sends: list[Send] = []
        for instruction in instructions:
            match instruction:
                case Send():
                    sends.append(instruction)
                case TakeDeltas(rows, deltas):
                    for row, delta in zip(rows, deltas, strict=True):
                        self._join(row.key, delta)
                    self._stage(rows)
                case TakeState(key, state):
                    self._join(key, state)
                case TakeVector(vector):
                    self._vector.update(vector)
                case TakeNewEpoch():
                    sends += self.commit()
                    self.gossip.me = self.new_origin()
        return sends

    def commit(self) -> list[Send]:
        """What is staged is on the disk from now on."""
        disk = self.disk
        for key in self._touched:
            disk.states[key] = {kind: state.to_bytes() for kind, state in self.states[key].items()}
        disk.rows += self._rows
        disk.vector.update(self._vector)
        self._touched, self._rows, self._vector = {}, [], {}
        return self.do(self.gossip.committed())

    def _join(self, key: str, delta: Crdt) -> None:
        kinds = self.states.setdefault(key, {})
        known = kinds.get(delta.kind)
        # A copy: what came is shared with whoever sent it here.
        kinds[delta.kind] = self.join(delta.copy() if known is None else known, delta)
        self._touch(key)

    def _stage(self, rows: list[DottedDelta]) -> None:
        # Counts in the order in which they came, as in a journal: a walk's may be followed by deltas in one commit.
        self._rows += rows
        self._vector.update((row.origin, row.sequence) for row in rows)

    def _touch(self, key: str) -> None:
        self.tree.touch((key,))
        self._touched[key] = None


@dataclass(frozen=True, slots=True)
class StateParts:
    """What a host is made of: the real parts, or one with a bug planted in it."""

    entropy: type[AntiEntropy] = AntiEntropy
    host: type[StateHost] = StateHost


class StateSimulation:
    """Hosts named by *sites*: how many are at each. *fsync_s*: what making durable takes; 0: it is at once.

    ``taken`` is called with host and key for each key of a host that changed by what came from others.
    """

    def __init__(
        self,
        sites: Mapping[str, int],
        seed: int,
        network: StateNetwork | None = None,
        limits: GossipLimits | None = None,
        parts: StateParts | None = None,
        fsync_s: float = 0.0,
    ) -> None:
        self.now = 0.0
        self.network = network or StateNetwork()
        self.hosts: dict[str, StateHost] = {}
        self.lost_packets = 0
        self.line_drops = 0
        self.received: Callable[[StateHost], None] | None = None
        self._limits, self._parts, self._seed = limits or GossipLimits(), parts or StateParts(), seed
        self._fsync_s = fsync_s
        self._dice = stream(seed, "network")
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0
        self._line_free_at: dict[tuple[str, str], float] = {}
        for site, count in sites.items():
            for number in range(count):
                self.add(f"{site or 'host'}-{number:04}", site, tell=False)
        self.tell_members()

    # -- what happens to hosts

    def add(self, name: str, site: str, tell: bool = True) -> StateHost:
        """A host joins."""
        host = self.hosts[name] = self._parts.host(name, site, self._seed, self._limits, self._parts)
        self.at(self.now + ROUND_S * host.dice.random(), lambda: self._round(host))
        if tell:
            self.tell_members()
        return host

    def remove(self, name: str) -> None:
        """The ledger removes a host; its machine is gone."""
        self.hosts.pop(name).up = False
        self.tell_members()

    def tell_members(self) -> None:
        """All hosts hear from the ledger who is a member, and where."""
        names = sorted(self.hosts)
        sites = {name: host.site for name, host in self.hosts.items() if host.site}
        for host in self.hosts.values():
            host.set_members(names, sites)

    def tell_away(self) -> None:
        """All hosts hear from the ledger who is away."""
        away = [name for name, host in self.hosts.items() if not host.up]
        for host in self.hosts.values():
            host.gossip.choice.set_away(away)

    def kill(self, name: str) -> None:
        """As by SIGKILL: what was not committed is gone."""
        self.hosts[name].up = False

    def restart(self, name: str, disk_lost: bool = False) -> None:
        """Start it again, with its disk or an empty one."""
        host = self.hosts[name]
        if disk_lost:
            host.disk = StateDisk()
        host.start()

    def stand_still(self, name: str, seconds: float) -> None:
        """It does nothing for so long, and reads what waited when it goes on."""
        host = self.hosts[name]
        host.standing_until = max(host.standing_until, self.now + seconds)
        self.at(host.standing_until, lambda: self._go_on(host))

    def write(self, name: str, key: str, kind: str, operation: str, value: Any = None) -> tuple[Replica, int]:
        """A mutation on one host, made durable and offered to others as there."""
        host = self.hosts[name]
        dot = host.write(key, kind, operation, value, self.now)
        self._commit_soon(host)
        return dot

    # -- time

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Call *action* then."""
        self._asked += 1
        heapq.heappush(self._queue, (when, self._asked, action))

    def run_until(self, end: float, done: Callable[[], bool] | None = None) -> bool:
        """Let happen what happens up to then, or until *done* says so after some event; whether it did."""
        queue = self._queue
        while queue and queue[0][0] <= end:
            self.now, _, action = heapq.heappop(queue)
            action()
            if done is not None and done():
                return True
        self.now = end
        return False

    def _runs(self, host: StateHost) -> bool:
        return host.up and host.standing_until <= self.now

    def _round(self, host: StateHost) -> None:
        if self.hosts.get(host.name) is not host:
            return
        self.at(self.now + ROUND_S, lambda: self._round(host))
        if self._runs(host):
            self._post(host, host.commit())
            self._post(host, host.do(host.gossip.round()))

    def _go_on(self, host: StateHost) -> None:
        if self._runs(host):
            inbox, host.inbox = host.inbox, []
            for source, packet in inbox:
                self._arrive(host, source, packet)

    def _commit_soon(self, host: StateHost) -> None:
        if not self._fsync_s:
            self._commit(host, host.starts)
        elif not host.committing:
            host.committing = True
            self.at(self.now + self._fsync_s, lambda starts=host.starts: self._commit(host, starts))  # type: ignore[misc]

    def _commit(self, host: StateHost, starts: int) -> None:
        host.committing = False
        if host.up and host.starts == starts:
            self._post(host, host.commit())
            self._push(host, starts)

    def _push(self, host: StateHost, starts: int) -> None:
        """As its server does: in a large cluster not as often as something is new."""
        if not host.up or host.starts != starts or host.pushing:
            return
        wait_s = 0.0 if host.gossip.choice.few else host.pace.wait_s(self.now)
        if wait_s > 0.0:
            host.pushing = True
            self.at(self.now + wait_s, lambda: self._push_late(host, starts))
        else:
            self._post(host, host.do(host.gossip.push()))

    def _push_late(self, host: StateHost, starts: int) -> None:
        if host.starts == starts:
            host.pushing = False
            if self._runs(host):
                self._push(host, starts)

    # -- the network

    def _post(self, host: StateHost, sends: list[Send]) -> None:
        for send in sends:
            self._send(host, send.peer, send.packet)

    def _send(self, host: StateHost, to: str, packet: bytes) -> None:
        network, size = self.network, len(packet) + HEAD_BYTES
        host.sent_packets += 1
        host.sent_bytes += size
        receiver = self.hosts.get(to)
        if receiver is None:
            return
        far = receiver.site != host.site
        if far:
            host.far_bytes += size
        if (network.loss and self._dice.random() < network.loss) or (host.side, receiver.side) in network.cut:
            self.lost_packets += 1
            return
        leaves = self.now
        if network.host_bytes_per_s != inf:
            leaves = host.line_free_at = max(leaves, host.line_free_at) + size / network.host_bytes_per_s
        if far:
            line = (host.site, receiver.site)
            if network.far_bytes_per_s != inf:
                free_at = max(leaves, self._line_free_at.get(line, 0.0))
                if free_at - self.now > LINE_QUEUE_S:
                    self.line_drops += 1
                    return
                leaves = self._line_free_at[line] = free_at + size / network.far_bytes_per_s
            delay = network.far_round_trip_s / 2 * (1.0 + 0.1 * self._dice.random())
        else:
            least, most = network.near_delay_s
            delay = least + (most - least) * self._dice.random()
        self.at(leaves + delay, lambda: self._arrive(receiver, host.name, packet))
        if network.doubled and self._dice.random() < network.doubled:
            self.at(leaves + delay + self._dice.random(), lambda: self._arrive(receiver, host.name, packet))

    def _arrive(self, host: StateHost, source: str, packet: bytes) -> None:
        if not host.up or self.hosts.get(host.name) is not host:
            return
        if host.standing_until > self.now:
            if len(host.inbox) < SOCKET_PACKETS_MAX:
                host.inbox.append((source, packet))
            return
        if compares_states(packet):
            self._post(host, host.commit())
        self._post(host, host.do(host.gossip.receive(source, packet, host.now_us(self.now))))
        self._commit_soon(host)
        if self.received is not None:
            self.received(host)

    # -- what is to be seen

    def converged(self) -> bool:
        """Whether all who are up hold the same."""
        return not self.disagreement()

    def disagreement(self) -> str:
        """Who holds something else than the first; nothing where all hold the same."""
        up = [host for host in self.hosts.values() if host.up]
        first = up[0]
        for host in up[1:]:
            if host.gossip.vector != first.gossip.vector or host.tree.root() != first.tree.root():
                return f"{host.name} and {first.name} do not hold the same"
        return ""
