"""Which hosts enforce less than work asks for at least, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from actorgrid.actors.ledger.record_types import HostRecord, ResourcesRecord
from actorgrid.demand import Demand

from ...gpu.enforcement import enough_devices, host_lacks

ENFORCE_MORE = "cancel it and ask for less, or have a host enforce more: actorgrid doctor there says what it can"
HOSTS_SHOWN = 10


def enforce_less(resources: ResourcesRecord, hosts: Mapping[str, HostRecord], name: Callable[[str], str]) -> list[str]:
    """The hosts that enforce less than is asked for, each in words; *name*: of a host by its id."""
    demand = Demand.of(resources)
    if not demand.min_isolation:
        return []
    found = []
    for id, host in hosts.items():
        lacks = host_lacks(demand, host)
        if "kept_apart" not in host:
            lacks = ["it has not said yet what it enforces"]
        elif not lacks and demand.gpu_count and not enough_devices(demand, host["devices"]):
            lacks = ["gpu_memory: by less on all of its GPUs"]
        if lacks:
            found.append(f"{name(id)} enforces less than it asks for ({'; '.join(lacks)})")
    return found


def nowhere_enforced(resources: ResourcesRecord, hosts: list[str]) -> str:
    """The headline for work that no host enforces enough for."""
    more = f", and {len(hosts) - 1} more" if len(hosts) > 1 else ""
    return f"it runs only where {resources['min_isolation']} is enforced at least: {hosts[0]}{more}"


def enforced_note(enforced: Mapping[str, str]) -> str:
    """Who enforces what of a grant, in a line."""
    said = ", ".join(f"{name.replace('_', ' ')}: {who}" for name, who in enforced.items())
    return f"who enforces what it was granted: {said}"
