"""Faults: a fault is a plan of injections, each with randomness of its own, so that any may be left out and the rest
stay."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from actorgrid.chaos.simulator.clock import MS
from actorgrid.chaos.simulator.cluster import Cluster, Trap
from actorgrid.chaos.simulator.node import SimulatedHost
from actorgrid.chaos.simulator.rng import stream

Strike = Callable[[Cluster, Random], str]
"""Does it, and says what it did ("" for nothing)."""


@dataclass(frozen=True, slots=True)
class Injection:
    """One planned strike of a fault, at its time."""

    at_us: int
    fault: str
    strike: Strike
    rng: Random


class Fault(ABC):
    """Strikes about every *every_ms*; what it does is ``strike``."""

    def __init__(self, every_ms: int = 2_000, lasts_ms: tuple[int, int] = (200, 3_000)) -> None:
        self.every_ms = every_ms
        self.lasts_ms = lasts_ms

    @property
    def name(self) -> str:
        """The fault's name in the trace."""
        return type(self).__name__

    def plan(self, seed: int, rng: Random, until_us: int) -> list[Injection]:
        """The strikes of a whole run."""
        found: list[Injection] = []
        at_us = rng.randrange(50, 2 * self.every_ms) * MS
        while at_us < until_us:
            own = stream(seed, f"{self.name}/{len(found)}")
            found.append(Injection(at_us, self.name, self.strike, own))
            at_us += rng.randrange(self.every_ms // 2, 2 * self.every_ms) * MS
        return found

    @abstractmethod
    def strike(self, cluster: Cluster, rng: Random) -> str:
        """Strike now, and arrange for the end."""

    def duration_us(self, rng: Random) -> int:
        """The length of this strike in microseconds."""
        return rng.randrange(*self.lasts_ms) * MS


def set_trap(cluster: Cluster, traps: list[Trap], trap: Trap, lasts_us: int) -> None:
    """Have *trap* spring for every host that does what *traps* of the cluster wait for, for a while."""
    traps.append(trap)

    def disarm() -> None:
        if trap in traps:  # the calm takes all of them away
            traps.remove(trap)

    cluster.world.clock.after(lasts_us, disarm)


def pick(cluster: Cluster, rng: Random, leader_share: float = 0.5) -> SimulatedHost | None:
    """A host that runs: the leader with that probability, else any; None when all are down."""
    chance, which = rng.random(), rng.random()
    leader = cluster.leader
    if leader is not None and chance < leader_share:
        return leader
    up = cluster.up
    return up[int(which * len(up))] if up else None
