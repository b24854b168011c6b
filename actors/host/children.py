"""What one host runs, in the order it starts; it stops in reverse."""

from __future__ import annotations

from actorgrid.configs.schema import Settings
from actorgrid.supervisors.child import ChildSpec, check_children

CHILDREN = check_children(
    (
        # First up and last down: the ledger is here, and all below work by it.
        ChildSpec("consensus", "actorgrid.actors.consensus.actor:Consensus", shutdown=10.0),
        ChildSpec("distributed_state", "actorgrid.actors.replication.actor:DistributedState", shutdown=10.0),
        ChildSpec("gpu_coordinator", "actorgrid.actors.gpu.coordinator:GPUCoordinator"),
        # Its stop may end all attempts, each with its grace between SIGTERM and SIGKILL.
        ChildSpec("worker_manager", "actorgrid.actors.work.manager:WorkerManager", shutdown=30.0),
        ChildSpec("cluster_manager", "actorgrid.actors.cluster.manager:ClusterManager"),
        ChildSpec("load_balancer", "actorgrid.actors.cluster.load_balancer:LoadBalancer"),
        ChildSpec("fault_detector", "actorgrid.actors.cluster.fault_detector:FaultDetector"),
        # After all that it asks: a request would otherwise come before there is anybody to serve it.
        ChildSpec("gateway", "actorgrid.actors.gateway.actor:Gateway"),
    )
)

OF_A_CLUSTER = check_children(
    (
        *CHILDREN[:-1],
        # Before the gateway, which asks it for what lies on other hosts.
        ChildSpec("links", "actorgrid.actors.links.actor:Links", shutdown=5.0),
        CHILDREN[-1],
        ChildSpec("join_server", "actorgrid.actors.security.actor:JoinServer", shutdown=5.0),
        ChildSpec("membership", "actorgrid.actors.membership.actor:Membership", shutdown=5.0),
    )
)
"""What a host of a cluster runs."""


def of_a_cluster(settings: Settings) -> tuple[ChildSpec, ...]:
    """What a host of a cluster runs with these settings."""
    off = () if settings.cluster.membership != "off" else ("membership",)
    return tuple(spec for spec in OF_A_CLUSTER if spec.id not in off)
