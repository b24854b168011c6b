"""Faults of the network: loss, doubling, slowness, and partitions of every shape, also one-way."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from actorgrid.chaos.simulator.cluster import Cluster

from .fault import Fault, pick


def cut_for(cluster: Cluster, pairs: Sequence[tuple[str, str]], lasts_us: int) -> None:
    """Let nothing pass from the first host to the second of each pair, for a while."""
    network = cluster.world.network
    for a, b in pairs:
        network.cut(a, b)

    def mend() -> None:
        for a, b in pairs:
            network.mend(a, b)

    cluster.world.clock.after(lasts_us, mend)


class BadWeather(Fault):
    """For a while, messages get lost, come twice, come late and out of order."""

    def strike(self, cluster: Cluster, rng: Random) -> str:
        """Set new shares of loss and doubling and a new slowness, then restore the former."""
        network = cluster.world.network
        network.loss = rng.choice((0.0, 0.02, 0.1, 0.3))
        network.doubling = rng.choice((0.0, 0.05, 0.3))
        network.slow = rng.choice((1.0, 3.0, 20.0))
        cluster.world.clock.after(self.duration_us(rng), lambda: self._over(cluster))
        return f"loss {network.loss:.0%}, doubling {network.doubling:.0%}, {network.slow:g} times slower"

    def _over(self, cluster: Cluster) -> None:
        network = cluster.world.network
        network.loss, network.doubling, network.slow = 0.0, 0.0, 1.0


class Partition(Fault):
    """For a while, some hosts do not hear some others: two groups, one host alone, one direction only, or a bridge."""

    def strike(self, cluster: Cluster, rng: Random) -> str:
        """Cut the network, and mend it later."""
        shape = rng.choice(("halves", "alone", "deaf", "mute", "bridge"))
        ids = list(cluster.nodes)
        rng.shuffle(ids)
        node = pick(cluster, rng, leader_share=0.7)
        one = node.id if node is not None else ids[0]
        rest = [id for id in ids if id != one]
        half = [one, *rest[: rng.randrange(len(rest) or 1)]]
        others = [id for id in ids if id not in half]
        pairs: list[tuple[int, int]] = []
        if shape == "halves":
            pairs = [pair for a in half for b in others for pair in ((a, b), (b, a))]
        elif shape == "alone":
            pairs = [pair for b in rest for pair in ((one, b), (b, one))]
        elif shape == "deaf":
            pairs = [(b, one) for b in rest]
        elif shape == "mute":
            pairs = [(one, b) for b in rest]
        else:  # two groups that only one host sees both of
            left, right = rest[::2], rest[1::2]
            pairs = [pair for a in left for b in right for pair in ((a, b), (b, a))]
        cut_for(cluster, [(f"n{a}", f"n{b}") for a, b in pairs], self.duration_us(rng))
        return f"{shape} {half if shape == 'halves' else one}"
