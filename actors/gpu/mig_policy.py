"""Which GPU of a host is cut for work that waits for a MIG instance, and which instance is taken away again.

No I/O and no clock. A GPU is cut only when it is free, an instance taken away only when nobody has it, and only one
that was made by this policy. All hosts of a cluster decide from the ledger's records, and come to the same host for
each piece of work, as far as they know the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from actorgrid.actors.ledger.record_types import NO_HOST, AllocationRecord, HostRecord
from actorgrid.actors.ledger.records import parent_of, profiles_of, share_of
from actorgrid.demand import Demand

from .device_words import answers_to, kind_of
from .feasibility import is_instance_for, usable_devices
from .mig_report import MigGpu

JOIN_AFTER_S = 60.0
"""An instance that nobody has is kept so long, for the next that asks for one of its kind."""
WAITING_MAX = 64
"""Pieces of work that wait for an instance and are looked at, those that came first."""


@dataclass(frozen=True, slots=True)
class CutGpu:
    """The decision to make an instance of that profile in a GPU."""

    gpu: str
    profile: str


@dataclass(frozen=True, slots=True)
class JoinInstance:
    """The decision to take away an instance, which nobody has."""

    gpu: str
    instance: str


@dataclass(frozen=True, slots=True)
class LeaveGpu:
    """The decision to leave a GPU as it was before it was cut: of what was made in it for work, nothing is there."""

    gpu: str


@dataclass(frozen=True, slots=True)
class DropUnfinished:
    """The decision to take away a GPU instance that whoever made it did not finish."""

    gpu: str
    name: str


@dataclass(frozen=True, slots=True)
class WaitingForGpu:
    """What waits to be placed: its id, what it needs."""

    id: str
    demand: Demand

    @property
    def wants_instance(self) -> bool:
        """Whether it asks for an instance by its profile."""
        return any("MIG " in model for model in self.demand.gpu_models)


@dataclass(frozen=True, slots=True)
class OwnParts:
    """What this host has: its GPUs that can be cut; by UUID those that take no work now; its own instances, idle ones
    with the seconds since somebody had them."""

    host_id: str
    gpus: tuple[MigGpu, ...]
    unfit: Collection[str]
    own: Collection[str]
    idle_s: Mapping[str, float]


def looked_at(jobs: Sequence[WaitingForGpu], leases: Sequence[WaitingForGpu]) -> list[WaitingForGpu]:
    """What is looked at of all that waits, ``WAITING_MAX`` together: leases have half of that, if they are so many."""
    of_leases = leases[: max(WAITING_MAX // 2, WAITING_MAX - len(jobs))]
    return [*jobs[: WAITING_MAX - len(of_leases)], *of_leases]


def next_change(
    parts: OwnParts,
    waiting: Iterable[WaitingForGpu],
    hosts: Mapping[str, HostRecord],
    allocations: Iterable[AllocationRecord],
    absent: Collection[str],
    is_dynamic: bool,
) -> CutGpu | JoinInstance | None:
    """The next change of this host's GPUs, one at a time; ``None``: all is well as it is."""
    held = {(record["host"], uuid) for record in allocations for uuid in _of(record)}
    there = {id: host for id, host in hosts.items() if _takes_work(host) and id not in absent}
    queue = list(waiting)[:WAITING_MAX]
    unserved = _unserved(queue, there, held)
    in_the_way = any(each.demand.gpu_count and not each.wants_instance for each in queue)
    capabilities = _capabilities(hosts.get(parts.host_id, NO_HOST))
    for each in unserved if is_dynamic else ():
        able = {id for id, host in there.items() if _may_be_on(each.demand, id) and _can_cut(each.demand, host, held)}
        mine = [
            CutGpu(gpu.uuid, profile)
            for gpu in parts.gpus
            if _may_be_on(each.demand, parts.host_id)
            and (profile := _profile_for(each.demand, gpu, capabilities.get(gpu.uuid)))
            and _is_open(parts, gpu, held)
        ]
        in_the_way = in_the_way or not (mine or able)
        if mine and parts.host_id == min(able | {parts.host_id}, key=lambda id: _order(each.id, id)):
            # One that is cut already, before another whole one goes.
            return min(mine, key=lambda cut: next(not gpu.instances for gpu in parts.gpus if gpu.uuid == cut.gpu))
    for gpu in parts.gpus:
        for instance in gpu.instances:
            idle_s = parts.idle_s.get(instance.uuid)
            if instance.uuid not in parts.own or idle_s is None or (parts.host_id, instance.uuid) in held:
                continue
            kind = gpu.model, instance.profile, capabilities.get(gpu.uuid)
            wanted = any(each.wants_instance and _is_for(each.demand, *kind) for each in queue)
            if not is_dynamic or (not wanted and (in_the_way or idle_s >= JOIN_AFTER_S)):
                return JoinInstance(gpu.uuid, instance.uuid)
    return None


def _unserved(
    queue: list[WaitingForGpu], hosts: Mapping[str, HostRecord], held: Collection[tuple[str, str]]
) -> list[WaitingForGpu]:
    """Those that no free instance of the cluster will do for, each of which serves one."""
    free = {
        (id, device["uuid"]): host
        for id, host in hosts.items()
        for device in host["devices"]
        if device.get("parent") and not device.get("unfit") and (id, device["uuid"]) not in held
    }
    found = []
    for each in queue:
        if not each.wants_instance:
            continue
        for place, host in free.items():
            usable = {device["uuid"]: share_of(device) for device in usable_devices(each.demand, host)}
            if _may_be_on(each.demand, place[0]) and usable.get(place[1], 0) >= each.demand.gpu_milli:
                del free[place]
                break
        else:
            found.append(each)
    return found


def _may_be_on(demand: Demand, host_id: str) -> bool:
    return not demand.hosts or host_id in demand.hosts


def _can_cut(demand: Demand, host: HostRecord, held: Collection[tuple[str, str]]) -> bool:
    return any(
        any(is_instance_for(demand, device, profile) for profile in profiles_of(device))
        and (host["host_id"], device["uuid"]) not in held
        and not device.get("parent")
        and (not device.get("unfit") or device.get("cut") is True)
        for device in host["devices"]
    )


def _capabilities(host: HostRecord) -> dict[str, str | None]:
    """The compute capability of each whole GPU of *host*, also of those that are listed as their instances."""
    return {parent_of(each) or each["uuid"]: kind_of(each)[1] for each in host.get("devices", ())}


def _profile_for(demand: Demand, gpu: MigGpu, compute_capability: str | None) -> str:
    """The profile of *gpu* with room that *demand* asks for; empty: none."""
    for profile in gpu.profiles:
        enough = profile.memory_mib >= demand.gpu_memory_mib and profile.room != 0
        if enough and demand.gpu_count == 1 and _is_for(demand, gpu.model, profile.name, compute_capability):
            return profile.name
    return ""


def _is_for(demand: Demand, model: str, profile: str, compute_capability: str | None) -> bool:
    kind = f"{model} MIG {profile}", 0, "nvidia", compute_capability
    return any(answers_to(one, *kind) for one in demand.gpu_models)


def _is_open(parts: OwnParts, gpu: MigGpu, held: Collection[tuple[str, str]]) -> bool:
    """Whether *gpu* may be cut now: it is cut for work already, or whole, well and free."""
    if gpu.instances:
        return any(instance.uuid in parts.own for instance in gpu.instances)
    return gpu.uuid not in parts.unfit and (parts.host_id, gpu.uuid) not in held


def _takes_work(host: HostRecord) -> bool:
    return host["state"] == "up" and not host.get("draining") and not host.get("unreachable")


def _of(record: AllocationRecord) -> list[str]:
    return [*record["gpu_uuids"], *record.get("gpu_parents", ())]


def _order(work_id: str, host_id: str) -> bytes:
    """A draw that is the same on all hosts, and another for each piece of work."""
    return blake2b(f"{work_id} {host_id}".encode(), digest_size=8).digest()
