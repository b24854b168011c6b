"""Faults of disks: slow, full, a failed fsync, a flipped bit."""

from __future__ import annotations

from random import Random

from actorgrid.chaos.simulator.cluster import Cluster

from .fault import Fault, pick
from .hosts import restart_later


class SlowDisk(Fault):
    """Syncs take 5 to 60 times as long for a while."""

    def strike(self, cluster: Cluster, rng: Random) -> str:
        """Make the disk slow now, and right later."""
        node, slow = pick(cluster, rng), rng.choice((5.0, 20.0, 60.0))
        if node is None:
            return ""
        node.disk.slow = slow

        def mend() -> None:
            node.disk.slow = 1.0

        cluster.world.clock.after(self.duration_us(rng), mend)
        return f"{node.name}: {slow:g} times slower"


class FullDisk(Fault):
    """Nothing can be written for a while; the host goes down at its next write and starts when there is room."""

    def strike(self, cluster: Cluster, rng: Random) -> str:
        """Fill the disk now, and make room later."""
        node, lasts_us = pick(cluster, rng), self.duration_us(rng)
        if node is None:
            return ""
        node.disk.full = True

        def mend() -> None:
            node.disk.full = False

        cluster.world.clock.after(lasts_us, mend)
        restart_later(cluster, node, lasts_us + 1)
        return node.name


class FailedSync(Fault):
    """The next fsync fails: the host is down until it boots anew, and nobody knows what of that write is there."""

    def strike(self, cluster: Cluster, rng: Random) -> str:
        """Make the next fsync fail."""
        node, lasts_us = pick(cluster, rng), self.duration_us(rng)
        if node is None:
            return ""
        node.disk.sync_fails = True
        restart_later(cluster, node, lasts_us)
        return node.name


class FlippedBit(Fault):
    """A synced record breaks and the host loses power: it stays down until the operator replaces it.

    Never so many that a majority of the voters is gone: what they acknowledged would be lost by right.
    """

    def strike(self, cluster: Cluster, rng: Random) -> str:
        """Break a record, if enough disks are whole."""
        node = pick(cluster, rng, leader_share=0.2)
        config = cluster.config
        broken = sum(each.disk.broken for each in cluster.nodes.values())
        smallest = min(len(half) for half in (config.voters, config.voters_outgoing or config.voters))
        if node is None or 2 * (broken + 1) >= smallest or not node.disk.flip_a_bit():
            return ""
        node.crash("power off, and a bit flipped on its disk")
        return node.name
