"""A core by itself, and words for it to hear: what the tests of its rules begin with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from actorgrid.actors.membership.core import MembershipCore
from actorgrid.actors.membership.instructions import Instruction, MemberChanged, MemberUnreachable, SendPacket
from actorgrid.actors.membership.packets import ACK, GOSSIP, PING, Packet
from actorgrid.actors.membership.profiles import PROFILES, MembershipProfile
from actorgrid.actors.membership.records import ALIVE, MemberStatus, first_incarnation

LAN = PROFILES["lan"]


def word(name: str, state: int = ALIVE, life: int = 1, refuted: int = 0, by: str = "") -> MemberStatus:
    return MemberStatus(name, f"{name}:7403", first_incarnation(life) + refuted, state, by or name)


class Alone:
    """Host ``a`` of *others*, whose network is the test: it sees what is sent, and says what comes."""

    def __init__(
        self, others: Sequence[str] = ("b", "c", "d", "e", "f"), profile: MembershipProfile = LAN, life: int = 1
    ) -> None:
        self.now = 0.0
        self.core = MembershipCore("a", "a:7403", life, profile, random.Random(1), 0.0, [word(name) for name in others])

    def hears(self, *records: MemberStatus, sender: str = "b") -> None:
        self.core.receive(Packet(GOSSIP, sender, 0, "", records), f"{sender}:7403", self.now)

    def told(self) -> list[Instruction]:
        """What the core said since the last time."""
        found = list(self.core.instructions)
        self.core.instructions.clear()
        return found

    def sent(self, kind: int) -> list[SendPacket]:
        return [each for each in self.told() if isinstance(each, SendPacket) and each.packet.kind == kind]

    def runs(self, seconds: float, answers: bool = False) -> list[Instruction]:
        """Let time go on; with *answers* every ping is answered at once."""
        end, found = self.now + seconds, self.told()
        while self.core.deadline <= end:
            self.now = max(self.now, self.core.deadline)
            self.core.wake(self.now)
            told = self.told()
            found += told
            for each in told:
                if answers and isinstance(each, SendPacket) and each.packet.kind == PING:
                    self.answers(each)
        self.now = end
        return found

    def probes(self) -> SendPacket:
        """Let time go on until a probe begins."""
        while True:
            self.now = max(self.now, self.core.deadline)
            self.core.wake(self.now)
            for each in self.told():
                if isinstance(each, SendPacket) and each.packet.kind == PING:
                    return each

    def answers(self, ping: SendPacket, after: float = 0.0) -> None:
        target = ping.packet.target
        self.now += after
        self.core.receive(Packet(ACK, target, ping.packet.sequence, "", ()), f"{target}:7403", self.now)

    def state(self, name: str) -> int:
        return self.core.table.records[name].state


def changes(told: Sequence[Instruction]) -> list[tuple[str, int]]:
    return [(each.record.name, each.record.state) for each in told if isinstance(each, MemberChanged)]


def verdicts(told: Sequence[Instruction]) -> list[MemberUnreachable]:
    return [each for each in told if isinstance(each, MemberUnreachable)]


def plain(profile: MembershipProfile = LAN) -> MembershipProfile:
    return replace(profile, lifeguard=False, forgive_stalls=False)
