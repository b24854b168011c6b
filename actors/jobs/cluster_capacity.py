"""What a cluster has for a graph's steps now, as the ledger says: for allocators, and to plan with."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from actorgrid.actors.ledger.graph_records import StepRecord
from actorgrid.actors.ledger.record_types import AllocationRecord, HostRecord
from actorgrid.dag.allocators import Allocator
from actorgrid.dag.hosts import ClusterTracker, HostCapacity
from actorgrid.dag.model import Graph
from actorgrid.dag.ranks import BANDWIDTH

SLOT_MILLI = 1000
BANDWIDTH_FIGURE = "network_mb_per_s"


def hosts_up(hosts: Mapping[str, HostRecord], absent: Container[str]) -> list[HostRecord]:
    """The hosts that take work now, by id."""
    return [
        host
        for host_id, host in sorted(hosts.items())
        if host["state"] == "up" and not host.get("draining") and not host.get("unreachable") and host_id not in absent
    ]


def capacities(hosts: Iterable[HostRecord]) -> list[HostCapacity]:
    """These hosts as graphs are planned on them, each with all that it has."""
    return [
        HostCapacity(
            host["host_id"],
            host["cpu_milli"],
            host["memory_mib"],
            tuple((str(device.get("model", "")), device["memory_mib"]) for device in host["devices"]),
        )
        for host in hosts
    ]


def slots(hosts: Iterable[HostRecord]) -> int:
    """How many steps of one CPU these hosts run at once."""
    return sum(max(1, host["cpu_milli"] // SLOT_MILLI) for host in hosts)


def bandwidth(hosts: Iterable[HostRecord]) -> float:
    """Bytes a second from host to host: the median of what was measured, or what is assumed."""
    measured = sorted(
        float(figure)
        for host in hosts
        if isinstance(figure := (host.get("measured") or {}).get(BANDWIDTH_FIGURE), int | float) and figure > 0
    )
    return measured[len(measured) // 2] * 1e6 if measured else BANDWIDTH


def live_claims(
    graph: Graph,
    allocator: Allocator,
    hosts: Sequence[HostRecord],
    allocations: Iterable[AllocationRecord],
    at: Mapping[int, StepRecord],
    elapsed_s: float,
) -> Callable[[Sequence[int]], dict[int, str]]:
    """What lets *allocator* claim room beside all that is given out: by step, the host."""

    def claims(ready: Sequence[int]) -> dict[int, str]:
        tracker = ClusterTracker(graph, capacities(hosts), bandwidth=bandwidth(hosts))
        for record in allocations:
            if "behind" not in record:
                tracker.occupy(record["allocation_id"], record["host"], record)
        for number, step in at.items():
            if step["host"]:
                tracker.lies(number, step["host"])
        allocator.allocate(ready, tracker, elapsed_s)
        return dict(tracker.claimed)

    return claims
