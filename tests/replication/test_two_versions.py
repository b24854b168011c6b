"""Hosts that know trees and parts of vectors beside hosts of the version before, which know neither."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from actorgrid.actors.replication.anti_entropy import AntiEntropy
from actorgrid.actors.replication.exchange import Instruction, Send
from actorgrid.actors.replication.packets import Message, VectorPart, VectorTold, encode
from actorgrid.actors.replication.peer_choice import PeerChoice
from actorgrid.errors import NotSupported
from tests.replication.gossip_rounds import NOW_US, LightHost

FAN_OUT = 3


class ChoiceBefore(PeerChoice):
    """Whom a host of the version before turned to: three others by chance, of any of its site."""

    def begin_round(self) -> list[str]:
        return self._dice.sample(self.near, FAN_OUT)

    def pass_on(self, host: str) -> list[str]:
        return self._dice.sample(self.near, FAN_OUT)


class EntropyBefore(AntiEntropy):
    """Says nothing of parts, looks at no bit that it does not know, and refuses what is no kind of its version."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.choice = ChoiceBefore(self.me[0], self._dice, self.limits)

    def _took(self, name: str, message: Message, now_us: int) -> list[Instruction]:
        if isinstance(message, VectorPart):
            raise NotSupported("kind 10")
        return super()._took(name, message, now_us)

    def _vector_told(self, name: str, told: VectorTold) -> list[Instruction]:
        return super()._vector_told(name, replace(told, reads_parts=False))

    def _told(self, *arguments: Any, **flags: bool) -> VectorTold:
        return replace(super()._told(*arguments, **flags), reads_parts=False)


class TwoVersions:
    """Half of the hosts are of the version before; a tenth of what is sent is lost."""

    def __init__(self, count: int, seed: int, before: int) -> None:
        self.dice = random.Random(seed)
        self.names = [f"host-{number:02}" for number in range(count)]
        self.seed = seed
        self.hosts: dict[str, LightHost] = {}
        for number, name in enumerate(self.names):
            self.start(name, EntropyBefore if number < before else AntiEntropy)

    def start(self, name: str, entropy: type[AntiEntropy]) -> None:
        """In the place of what ran before, with what that had on its disk."""
        old = self.hosts.get(name)
        made = LightHost(name, self.names, self.seed * 1000 + len(self.names), entropy)
        if old is not None:
            made.states = old.states
            made.tree.touch(made.states)
            made.gossip.vector.update(old.gossip.vector)
            made.gossip.me = (name, old.gossip.me[1] + 1)
        self.hosts[name] = made

    def write(self, name: str) -> None:
        host = self.hosts[name]
        host.increment("hits")
        host.do(host.gossip.committed())

    def round(self) -> None:
        wire: list[tuple[str, Send]] = []
        for name, host in self.hosts.items():
            wire += [(name, send) for send in host.do(host.gossip.push() + host.gossip.round())]
        steps = 0
        while wire:
            source, send = wire.pop(0)
            steps += 1
            assert steps < 20_000, "they talk on and on"
            if self.dice.random() < 0.1:
                continue
            host = self.hosts[send.peer]
            answers = host.do(host.gossip.receive(source, send.packet, NOW_US)) + host.do(host.gossip.committed())
            wire += [(send.peer, answer) for answer in answers + host.do(host.gossip.push())]

    def rounds_until_same(self, value: int, most: int = 40) -> int:
        for number in range(most):
            vectors = [host.gossip.vector for host in self.hosts.values()]
            if all(vector == vectors[0] for vector in vectors) and self.values() == {value}:
                return number
            self.round()
        raise AssertionError(f"after {most} rounds they hold {self.values()} of {value}")

    def values(self) -> set[int]:
        return {host.states["hits"].value if "hits" in host.states else 0 for host in self.hosts.values()}


@pytest.mark.parametrize("before", [1, 12, 23])
def test_what_either_version_writes_comes_to_all_hosts_of_both(before: int) -> None:
    town = TwoVersions(24, before, before)
    for turn in range(20):
        town.write(town.dice.choice(town.names))
        if turn % 4 == 3:
            town.round()
    town.rounds_until_same(20)
    counts = [host.gossip.counts for host in town.hosts.values()]
    assert sum(count["vectors_told"] for count in counts) > 0
    for name, host in town.hosts.items():
        assert not any(host.gossip.refused.values()), (name, "nothing was said to anybody that it could not read")


def test_hosts_that_go_to_the_next_version_one_after_the_other_and_back_again_lose_nothing() -> None:
    town = TwoVersions(12, 1, 12)
    written = 0
    for entropy in (AntiEntropy, EntropyBefore, AntiEntropy):
        for name in town.names:
            town.start(name, entropy)
            for writer in (name, town.dice.choice(town.names)):
                town.write(writer)
                written += 1
            town.round()
        town.rounds_until_same(written)
    assert sum(host.gossip.counts["vectors_in_part"] for host in town.hosts.values()) > 0


def test_the_bit_that_says_who_reads_parts_is_nothing_to_a_host_of_the_version_before() -> None:
    told = VectorTold({("a", 1): 3}, 1, ask=True)
    plain, marked = encode(told), encode(replace(told, reads_parts=True))
    assert len(plain) == len(marked)
    differing = [(one, other) for one, other in zip(plain, marked, strict=True) if one != other]
    assert differing == [(1, 9)], "one byte of flags, of which it looked at the lowest three bits"
