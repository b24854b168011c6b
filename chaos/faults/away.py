"""Hosts that are away for about as long as their work may go on alone, and come back at the worst moment."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from actorgrid.chaos.simulator.clock import MS
from actorgrid.chaos.simulator.cluster import Cluster, Trap
from actorgrid.chaos.simulator.node import SimulatedHost

from .fault import Fault, pick

STILL, ASKS = "stands still", "stands still as it asks, then is cut off"
WAYS = ("cut off", "deaf", "mute", STILL, STILL, ASKS, ASKS)


class HostAway(Fault):
    """The fault of a host cut off, one way or both, or standing still; one time in two it is back as it is given up."""

    def strike(self, cluster: Cluster, rng: Random) -> str:
        """Take the host away now, and bring it back later."""
        node, way, lasts_us = _pick(cluster, rng), rng.choice(WAYS), self.duration_us(rng)
        back_when_lost, late_us, still_us = (
            rng.random() < 0.5,
            rng.randrange(30 * MS),
            rng.randrange(600, 2_500) * MS,
        )
        if node is None or node.paused:
            return ""
        back = _pause(node) if way == STILL else None
        if way in ("cut off", "deaf", "mute"):
            back = _cut(cluster, node, hears=way == "mute", is_heard=way == "deaf")
        if back is None:
            _trap(cluster, cluster.lease_hooks, node, lambda: _asks(cluster, node, still_us, lasts_us))
            return f"{node.name} {way}"
        if back_when_lost:
            known = back
            _trap(cluster, cluster.loss_hooks, node, lambda: _later(cluster, late_us, known))
        _later(cluster, lasts_us, back)
        return f"{node.name} {way}"


def _pick(cluster: Cluster, rng: Random) -> SimulatedHost | None:
    """Pick a host that only runs work and is there, nine times in ten: with a voter gone, often nobody could decide."""
    voter, which = rng.random() < 0.1, rng.random()
    leader, config = cluster.leader, cluster.config
    passes = cluster.world.network.passes
    here = [node for node in cluster.up if leader is not None and passes(node.name, leader.name)]
    learners = [node for node in here if node.id in config.learners and not node.paused]
    return pick(cluster, rng, 0.0) if voter or not learners else learners[int(which * len(learners))]


def _asks(cluster: Cluster, node: SimulatedHost, still_us: int, lasts_us: int) -> None:
    """It has asked to have its lease renewed: the answer waits, and when it is read, nobody hears the host any more."""

    def stand_still() -> None:
        goes_on = _pause(node)

        def cut_off() -> None:
            back = _cut(cluster, node, hears=False, is_heard=False)
            goes_on()
            _later(cluster, lasts_us, back)

        _later(cluster, still_us, cut_off)

    _later(cluster, 2 * MS, stand_still)


def _later(cluster: Cluster, delay_us: int, action: Callable[[], None]) -> None:
    cluster.world.clock.after(delay_us, action)


def _trap(cluster: Cluster, traps: list[Trap], node: SimulatedHost, action: Callable[[], None]) -> None:
    """Act the first time that the traps spring for *node*."""

    def spring(who: SimulatedHost) -> None:
        if who is node:
            traps.remove(spring)
            action()

    traps.append(spring)


def _pause(node: SimulatedHost) -> Callable[[], None]:
    """Make the host stand still; gives the call that ends this."""
    node.pause()
    life = node.boots

    def resume() -> None:
        if node.up and node.boots == life and node.paused:
            node.resume()

    return resume


def _cut(cluster: Cluster, node: SimulatedHost, *, hears: bool, is_heard: bool) -> Callable[[], None]:
    """Cut the host off in one direction or both; gives the call that ends this, once."""
    others = [f"n{id}" for id in cluster.nodes if id != node.id]
    pairs = [] if hears else [(other, node.name) for other in others]
    pairs += [] if is_heard else [(node.name, other) for other in others]
    network = cluster.world.network
    for a, b in pairs:
        network.cut(a, b)

    def mend() -> None:
        for a, b in pairs:
            network.mend(a, b)
        pairs.clear()

    return mend
