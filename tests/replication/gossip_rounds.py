"""Many hosts of the real decisions, without disks, in rounds: how many until all hold one write.

In a round every host offers what it has newly to its neighbours and sends its digest to some, and what answers that
comes within the round; what a host got in a round it passes on in the next (as in Demers et al., section 1.3). Real
hosts pass it on at once: ``chaos.gossip.state_measures.spread`` has their time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from actorgrid.actors.replication.anti_entropy import AntiEntropy
from actorgrid.actors.replication.exchange import GossipLimits, Instruction, Send, TakeDeltas, TakeState
from actorgrid.actors.replication.key_tree import KeyTree
from actorgrid.actors.replication.packets import Digest, encode
from actorgrid.actors.replication.types import Crdt, GCounter

NOW_US = 1_700_000_000_000_000


class LightHost:
    """The decisions and states in memory; what it takes is durable at once."""

    def __init__(self, name: str, names: list[str], seed: int, entropy: type[AntiEntropy] = AntiEntropy) -> None:
        self.name = name
        self.states: dict[str, Crdt] = {}
        self.tree = KeyTree(lambda key: self.states[key].to_bytes())
        self.gossip = entropy((name, 1), {}, [], self.tree, self, random.Random(seed), GossipLimits())
        self.gossip.set_members(names)

    def encoded(self, key: str) -> list[bytes]:
        return [self.states[key].to_bytes()]

    def highest(self, key: str, kind: str, replica: tuple[str, int]) -> int:
        return self.states[key].highest(replica) if key in self.states else 0

    def increment(self, key: str) -> None:
        state = self.states.setdefault(key, GCounter())
        assert isinstance(state, GCounter)
        self.gossip.local(key, state.increment(self.gossip.me).to_bytes())
        self.tree.touch([key])

    def do(self, instructions: list[Instruction]) -> list[Send]:
        for instruction in instructions:
            if isinstance(instruction, TakeDeltas):
                for row, delta in zip(instruction.rows, instruction.deltas, strict=True):
                    self._join(row.key, delta)
            elif isinstance(instruction, TakeState):
                self._join(instruction.key, instruction.state)
        return [found for found in instructions if isinstance(found, Send)]

    def _join(self, key: str, delta: Crdt) -> None:
        self.states[key] = self.states[key].join(delta) if key in self.states else delta
        self.tree.touch([key])


@dataclass(frozen=True)
class Spread:
    """What one write took."""

    rounds: int
    packets: int
    bytes: int
    idle_bytes: int
    """Of them, what so many rounds cost where nobody has written anything."""


def spread(count: int, seed: int, loss: float, rounds_max: int = 60) -> Spread:
    """One increment on one of *count* hosts, until all have it."""
    dice = random.Random(seed)
    names = [f"host-{number:04}" for number in range(count)]
    hosts = {name: LightHost(name, names, seed * count + number) for number, name in enumerate(names)}
    first = hosts[dice.choice(names)]
    first.increment("hits")
    first.do(first.gossip.committed())
    held = 0
    for number in range(rounds_max):
        held = sum("hits" in host.states for host in hosts.values())
        if held == count:
            limits = GossipLimits()
            idle = len(encode(Digest(bytes(16), bytes(8)))) * limits.digests
            return Spread(
                number,
                sum(host.gossip.counts["sent_packets"] for host in hosts.values()),
                sum(host.gossip.counts["sent_bytes"] for host in hosts.values()),
                count * number * idle,
            )
        wire = [
            (name, send) for name, host in hosts.items() for send in host.do(host.gossip.push() + host.gossip.round())
        ]
        while wire:
            arriving, wire = wire, []
            for source, send in arriving:
                if dice.random() < loss:
                    continue
                target = hosts[send.peer]
                answers = target.do(target.gossip.receive(source, send.packet, NOW_US))
                answers += target.do(target.gossip.committed())
                wire += [(target.name, answer) for answer in answers]
    raise AssertionError(f"{count - held} of {count} hosts are without the write after {rounds_max} rounds")
