"""Writes that are durable here and wait until they are so at a majority."""

from __future__ import annotations

from dataclasses import dataclass

from actorgrid.errors import NotReplicated, Overloaded
from actorgrid.supervisors.runtime import Waiter

from .anti_entropy import AntiEntropy
from .causal import Replica

MAX_MAJORITY_WAITS = 4096


def holders(gossip: AntiEntropy, origin: Replica, sequence: int) -> int:
    """How many members hold that delta durably, as far as is known; we among them."""
    here = int(gossip.vector.get(origin, 0) >= sequence)
    peers = gossip.peers
    return here + sum(peers[name].known.get(origin, 0) >= sequence for name in gossip.choice.others if name in peers)


@dataclass(eq=False, slots=True)
class MajorityWait:
    """One write, by its dot."""

    origin: Replica
    sequence: int
    waiter: Waiter


class MajorityWaits:
    """Those that wait now."""

    def __init__(self) -> None:
        self._waits: list[MajorityWait] = []
        self.not_replicated = 0

    def add(self, origin: Replica, sequence: int) -> MajorityWait:
        """A write begins to wait. Raises Overloaded."""
        if len(self._waits) >= MAX_MAJORITY_WAITS:
            raise Overloaded(
                "too many writes wait for a majority; this one is on this host's disk",
                found=str(MAX_MAJORITY_WAITS),
                hint="wait for some before writing more",
            )
        wait = MajorityWait(origin, sequence, Waiter())
        self._waits.append(wait)
        return wait

    def remove(self, wait: MajorityWait) -> None:
        """It waits no more."""
        self._waits.remove(wait)

    def late(self, wait: MajorityWait, gossip: AntiEntropy, within_s: float) -> None:
        """Its time is over."""
        self.not_replicated += 1
        held, members = holders(gossip, wait.origin, wait.sequence), len(gossip.members)
        wait.waiter.fail(
            NotReplicated(
                f"too few members have acknowledged the write in {within_s:g} s",
                asked=f"{members // 2 + 1} of {members} members",
                found=f"{held} have it on their disks",
                hint="it stays on this host and goes on to the others, so do not repeat it; see actorgrid hosts",
            )
        )

    def look(self, gossip: AntiEntropy) -> None:
        """Wake those whose writes a majority has."""
        needed = len(gossip.members) // 2 + 1
        for wait in list(self._waits):
            if holders(gossip, wait.origin, wait.sequence) >= needed:
                wait.waiter.set(None)
