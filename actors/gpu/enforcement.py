"""Who holds work to what it was granted: of GPUs by what was really set, of the rest by what its host keeps apart.

``hardware``: it cannot have more. ``kernel``, ``driver``: one of them refuses more. ``cooperative``: it is told what is
its own, by variables that it may change, and is ended when it is seen to have more. ``none``: it is counted, no more.

Whose word that is: the record of the device in the ledger, by the host that has it; what others are set to is nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from actorgrid.actors.ledger.kept_apart import enforced_of, enforced_of_worker, strongest_of
from actorgrid.actors.ledger.record_types import (
    NO_HOST,
    AllocationRecord,
    AttemptRecord,
    DeviceRecord,
    HostRecord,
    JobRecord,
)
from actorgrid.actors.ledger.records import DEVICE_MILLI, parent_of, share_of
from actorgrid.demand import Demand
from actorgrid.isolation_words import COOPERATIVE, DRIVER, ENFORCERS, HARDWARE, KERNEL, NONE, lacking, wanted_parts
from actorgrid.models import JobState

from .vendors.pci import bus_id

GPU_COMPUTE, GPU_MEMORY = "gpu_compute", "gpu_memory"
STATED = ("files", "processes", "memory", "disk", "cpu", "pids", "devices", GPU_COMPUTE, GPU_MEMORY, "network")
"""What a grant says of, in this order; of GPUs where it has any."""
_WEAKEST_FIRST = ENFORCERS


def enforced_by(
    host_devices: Iterable[DeviceRecord],
    granted: Iterable[str],
    gpu_milli: int,
    gpu_memory_mib: int,
    *,
    in_container: bool = False,
) -> dict[str, str]:
    """Who enforces each of GPU_COMPUTE and GPU_MEMORY of a grant; nothing for one without GPUs that are there.

    *gpu_milli* and *gpu_memory_mib* are of each of the *granted* devices. *in_container*: what begins its processes may
    put them into control groups of its own, so that the kernel's limits are not set for it.
    """
    wanted = set(granted)
    devices = [device for device in host_devices if device["uuid"] in wanted]
    if not devices:
        return {}
    found = [_of_device(device, gpu_milli, gpu_memory_mib, in_container) for device in devices]
    return {
        GPU_COMPUTE: min((each[0] for each in found), key=_WEAKEST_FIRST.index),
        GPU_MEMORY: min((each[1] for each in found), key=_WEAKEST_FIRST.index),
    }


def _of_device(
    device: DeviceRecord, gpu_milli: int, gpu_memory_mib: int, in_container: bool = False
) -> tuple[str, str]:
    """Compute and memory of one device; of one that is simulated or declared there is nothing to be kept from."""
    if device.get("source") != "probed":
        return NONE, NONE
    watched = COOPERATIVE if gpu_memory_mib and device.get("watched") is True else NONE
    if gpu_memory_mib and device.get("dmem") is True and not in_container:
        watched = KERNEL
    if gpu_milli < share_of(device):
        if device.get("mps") is True and not parent_of(device):
            return DRIVER, DRIVER if gpu_memory_mib else NONE
        return NONE, watched  # others may have the rest of it
    if parent_of(device):
        return HARDWARE, HARDWARE
    # Visible devices keep it off others, and others off it; nobody shares it.
    return COOPERATIVE, watched if gpu_memory_mib else COOPERATIVE


def kernel_limits(
    host_devices: Iterable[DeviceRecord], granted: Iterable[str], gpu_memory_mib: int, slack_bytes: int
) -> dict[str, int]:
    """What the kernel is to let a grant have of each device's memory, in bytes, by address; where it can."""
    wanted = set(granted) if gpu_memory_mib else set()
    return {
        bus_id(str(device.get("pcie_bus_id"))): gpu_memory_mib * 2**20 + slack_bytes
        for device in host_devices
        if device["uuid"] in wanted and device.get("dmem") is True
    }


def weakest_of(enforced: Mapping[str, str]) -> str:
    """The weakest of who enforces what, in one word."""
    return min(enforced.values(), key=_WEAKEST_FIRST.index, default=NONE)


def enforced_of_job(job: JobRecord, hosts: Mapping[str, HostRecord]) -> dict[str, str]:
    """As ``enforced_by``, of a job that is placed or runs; for a gang, the weakest of its members."""
    if job["state"] not in (JobState.PLACED, JobState.RUNNING) or not job["attempts"]:
        return {}
    attempt: AttemptRecord = job["attempts"][-1]
    resources = job["resources"]
    amounts = resources.get("gpu_milli", 0) or DEVICE_MILLI, resources.get("gpu_memory_mib", 0)
    weakest: dict[str, str] = {}
    for part in attempt.get("members") or (attempt,):
        host = hosts.get(part["host"], NO_HOST)
        of_gpus = enforced_by(host.get("devices", []), part["gpu_uuids"], *amounts, in_container="container" in job)
        mps = of_gpus.get(GPU_COMPUTE) == DRIVER
        for name, who in {**enforced_of(host, job, mps=mps), **of_gpus}.items():
            weakest[name] = min(weakest.get(name, who), who, key=_WEAKEST_FIRST.index)
    return stated(weakest)


def enforced_of_lease(host: HostRecord, allocation: AllocationRecord) -> tuple[dict[str, str], str]:
    """Who enforces what for a worker of sessions on *host*, and in one word the weakest of who does of its GPUs."""
    amounts = allocation["gpu_milli"], allocation["gpu_memory_mib"]
    of_gpus = enforced_by(host.get("devices", []), allocation["gpu_uuids"], *amounts)
    return stated({**enforced_of_worker(host, allocation["user_id"]), **of_gpus}), weakest_of(of_gpus)


def stated(enforced: Mapping[str, str]) -> dict[str, str]:
    """The same, in the order of STATED."""
    return {name: enforced[name] for name in STATED if name in enforced}


def enough_devices(demand: Demand, devices: Iterable[DeviceRecord]) -> list[DeviceRecord]:
    """Those on which the memory of a part is held as *demand* asks at least; all, where it asks for nothing of that."""
    wanted = wanted_parts(demand.min_isolation).get("gpu_memory", NONE) if demand.min_isolation else NONE
    if wanted == NONE:
        return list(devices)
    least = _WEAKEST_FIRST.index(wanted)
    return [
        device
        for device in devices
        if _WEAKEST_FIRST.index(_of_device(device, demand.gpu_milli, demand.gpu_memory_mib)[1]) >= least
    ]


def host_lacks(demand: Demand, host: HostRecord) -> list[str]:
    """What *host* enforces by less than *demand* asks at least, but for GPUs, each in words; a host that has not said
    enforces nothing."""
    if not demand.min_isolation:
        return []
    return lacking(demand.min_isolation, strongest_of(host), but=("gpu_memory",))


def limits_of(hosts: Iterable[HostRecord]) -> dict[str, dict[str, int]]:
    """How many devices there are by who would hold a share of them, with ``gpu_memory``, to GPU_COMPUTE and GPU_MEMORY.

    An instance of a whole device counts as all of it, as ``--gpu-profile`` takes it. One that is cut is not counted.
    """
    counts: dict[str, dict[str, int]] = {GPU_COMPUTE: {}, GPU_MEMORY: {}}
    for host in hosts:
        for device in host["devices"]:
            if device.get("cut") is True:
                continue
            milli = share_of(device) if parent_of(device) else DEVICE_MILLI // 2
            for name, who in zip(counts, _of_device(device, milli, 1), strict=True):
                counts[name][who] = counts[name].get(who, 0) + 1
    return counts


def isolation_counts(hosts: Iterable[HostRecord]) -> dict[str, dict[str, int]]:
    """By aspect, how many hosts there are by who would enforce it for work that asks for the most that they have."""
    counts: dict[str, dict[str, int]] = {}
    for host in hosts:
        for name, who in strongest_of(host).items():
            of_aspect = counts.setdefault(name, {})
            of_aspect[who] = of_aspect.get(who, 0) + 1
    return counts


def limits_told(hosts: Iterable[HostRecord]) -> dict[str, dict[str, dict[str, int]]]:
    """What a summary of the cluster says of limits: ``gpu_limits`` and ``isolation``."""
    known = list(hosts)
    return {"gpu_limits": limits_of(known), "isolation": isolation_counts(known)}
