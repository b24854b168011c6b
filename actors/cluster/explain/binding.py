"""Which resource binds: what is short for work that waits, while others lie idle. Decisions only.

One answer for ``status`` (all that waits), ``why`` (one job) and the demo's view: half of the GPUs are empty and 39
jobs wait, because the CPUs are given out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from actorgrid.actors.ledger.record_types import AllocationRecord, HostRecord, JobRecord, ResourcesRecord
from actorgrid.actors.ledger.records import share_of
from actorgrid.amounts import counted, mebibytes
from actorgrid.models import JobState


class LedgerView(Protocol):
    """The part of a host's copy of the ledger that is needed here."""

    hosts: dict[str, HostRecord]
    allocations: dict[str, AllocationRecord]
    job_counts: Mapping[str, int]


NAMES = {"gpu_milli": "GPU", "gpu_memory_mib": "GPU memory", "cpu_milli": "CPU", "memory_mib": "memory"}
"""What can be short, in the order in which ties go: a GPU is what people wait for."""
DEMANDS_MAX = 64
"""Different requests looked at; of 20,000 waiting jobs there are rarely more than a few."""


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """The amount of each resource of ``NAMES``, and how much of it is given out."""

    capacity: Mapping[str, int]
    used: Mapping[str, int]

    def free(self, name: str) -> int:
        """The amount of a resource that is left."""
        return max(0, self.capacity.get(name, 0) - self.used.get(name, 0))

    def said(self, name: str) -> str:
        """``2 of 2 CPUs given out``, ``60 GiB of 64 GiB of memory given out``."""
        capacity, used = self.capacity.get(name, 0), self.used.get(name, 0)
        if name.endswith("_mib"):
            return f"{mebibytes(used)} of {mebibytes(capacity)} of {NAMES[name]} given out"
        return f"{used / 1000:g} of {counted_milli(capacity, NAMES[name])} given out"


@dataclass(frozen=True, slots=True)
class Binding:
    """The resource of which there is room for the fewest more requests, among those that do not fit."""

    resource: str
    waiting: int
    text: str
    idle_gpus: str
    """What of the GPUs is free meanwhile, in words; empty when they are what is short."""

    def to_record(self) -> dict[str, Any]:
        """The binding as answers hold it."""
        return {"resource": self.resource, "waiting": self.waiting, "text": self.text, "idle_gpus": self.idle_gpus}


def amounts_of(resources: ResourcesRecord) -> dict[str, int]:
    """The amounts that one attempt (or each member of a gang) takes of each resource of ``NAMES``."""
    count = int(resources.get("gpu_count", 0))
    return {
        "gpu_milli": count * (int(resources.get("gpu_milli", 0)) or 1000),
        "gpu_memory_mib": count * int(resources.get("gpu_memory_mib", 0)),
        "cpu_milli": int(resources.get("cpu_milli", 0)),
        "memory_mib": int(resources.get("memory_mib", 0)),
    }


def resource_use(hosts: Iterable[HostRecord], allocations: Iterable[AllocationRecord]) -> ResourceUse:
    """The use of the resources of *hosts* together; *hosts* and allocations are records of the ledger."""
    capacity: Counter[str] = Counter()
    ids = set()
    for host in hosts:
        ids.add(host["host_id"])
        devices = host.get("devices", ())
        capacity["gpu_milli"] += sum(map(share_of, devices))
        capacity["gpu_memory_mib"] += sum(int(device["memory_mib"]) for device in devices)
        capacity["cpu_milli"] += int(host["cpu_milli"])
        capacity["memory_mib"] += int(host["memory_mib"])
    used: Counter[str] = Counter()
    for held in allocations:
        if held["host"] in ids:
            count = len(held["gpu_indexes"])
            used["gpu_milli"] += count * int(held["gpu_milli"])
            used["gpu_memory_mib"] += count * int(held["gpu_memory_mib"])
            used["cpu_milli"] += int(held["cpu_milli"])
            used["memory_mib"] += int(held["memory_mib"])
    return ResourceUse(dict(capacity), dict(used))


def binding(use: ResourceUse, waiting: Iterable[ResourcesRecord], total: int | None = None) -> Binding | None:
    """What is short for most of the requests that wait; ``None`` when nothing waits, or there would be room for each.

    *waiting*: resources of jobs; of *total* when these stand for more. A request that fits in the sum of what is free
    may still wait, for one host that has all of it; that is no shortage of a resource, and is not said here.
    """
    demands = Counter(tuple(sorted(amounts_of(one).items())) for one in waiting)
    short: Counter[str] = Counter()
    for demand, count in demands.most_common(DEMANDS_MAX):
        name = _shortest(use, dict(demand))
        if name:
            short[name] += count
    if not short:
        return None
    resource = max(NAMES, key=lambda name: short[name])
    count = short[resource]
    if total is not None and total > sum(demands.values()):
        count = count * total // sum(demands.values())
    free = use.free("gpu_milli")
    idle = ""
    if resource not in ("gpu_milli", "gpu_memory_mib") and free:
        idle = f"{free / 1000:g} of {counted_milli(use.capacity['gpu_milli'], 'GPU')} free meanwhile"
    who = f"{counted(count, 'job')} {'waits' if count == 1 else 'wait'} for it"
    return Binding(resource, count, f"{NAMES[resource]}: {use.said(resource)}, {who}", idle)


def short_for(ledger: LedgerView, queued: Sequence[JobRecord]) -> dict[str, Any] | None:
    """What is short for the jobs that wait, as the answer of ``status`` has it. *queued*: the newest of them."""
    use = resource_use(ledger.hosts.values(), ledger.allocations.values())
    found = binding(use, [job["resources"] for job in queued], ledger.job_counts.get(JobState.QUEUED, 0))
    return None if found is None else found.to_record()


def _shortest(use: ResourceUse, asked: Mapping[str, int]) -> str:
    """The resource that does not suffice for one more; of several, the one with the smallest part left."""
    lacking = {name: use.free(name) / asked[name] for name in NAMES if asked[name] > use.free(name)}
    return min(lacking, key=lambda name: lacking[name]) if lacking else ""


def counted_milli(milli: int, noun: str) -> str:
    """An amount in words: ``8 GPUs``, ``1 CPU``, ``2.5 CPUs``."""
    return f"{milli / 1000:g} {noun}{'' if milli == 1000 else 's'}"
