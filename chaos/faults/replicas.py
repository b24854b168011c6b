"""Faults of the replicas of services."""

from __future__ import annotations

from random import Random

from actorgrid.chaos.simulator.cluster import Cluster

from .fault import Fault


class ReplicaDies(Fault):
    """The process of a replica, or of one member of a gang, ends by itself."""

    def strike(self, cluster: Cluster, rng: Random) -> str:
        """End one now."""
        running = [(node, each) for node in cluster.up if not node.paused for each in node.agent.replicas()]
        which = rng.random()
        if not running:
            return ""
        node, attempt_id = running[int(which * len(running))]
        node.agent.dies_by_itself(attempt_id)
        return f"{attempt_id} on {node.name}"
