"""Who holds work to what it was granted of GPUs: by what was really set, resource by resource.

``hardware``: it cannot have more. ``kernel``, ``driver``: one of them refuses more. ``cooperative``: it is told what is
its own, by variables that it may change, and is ended when it is seen to have more. ``none``: it is counted, no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from actorgrid.actors.ledger.record_types import NO_HOST, AttemptRecord, DeviceRecord, HostRecord, JobRecord
from actorgrid.actors.ledger.records import DEVICE_MILLI, parent_of, share_of
from actorgrid.models import JobState

HARDWARE, COOPERATIVE, NONE = "hardware", "cooperative", "none"
GPU_COMPUTE, GPU_MEMORY = "gpu_compute", "gpu_memory"
_WEAKEST_FIRST = (NONE, COOPERATIVE, "driver", "kernel", HARDWARE)


def enforced_by(
    host_devices: Iterable[DeviceRecord],
    granted: Iterable[str],
    gpu_milli: int,
    gpu_memory_mib: int,
    memory_watch: str,
) -> dict[str, str]:
    """Who enforces each of GPU_COMPUTE and GPU_MEMORY of a grant; nothing for one without GPUs that are there.

    *gpu_milli* and *gpu_memory_mib* are of each of the *granted* devices; *memory_watch* is the setting of that name.
    """
    wanted = set(granted)
    devices = [device for device in host_devices if device["uuid"] in wanted]
    if not devices:
        return {}
    found = [_of_device(device, gpu_milli, gpu_memory_mib, memory_watch) for device in devices]
    return {
        GPU_COMPUTE: min((each[0] for each in found), key=_WEAKEST_FIRST.index),
        GPU_MEMORY: min((each[1] for each in found), key=_WEAKEST_FIRST.index),
    }


def _of_device(device: DeviceRecord, gpu_milli: int, gpu_memory_mib: int, memory_watch: str) -> tuple[str, str]:
    """Compute and memory of one device; of one that is simulated or declared there is nothing to be kept from."""
    if device.get("source") != "probed":
        return NONE, NONE
    watched = COOPERATIVE if gpu_memory_mib and memory_watch == "end" else NONE
    if gpu_milli < share_of(device):
        return NONE, watched  # others may have the rest of it
    if parent_of(device):
        return HARDWARE, HARDWARE
    # Visible devices keep it off others, and others off it; nobody shares it.
    return COOPERATIVE, watched if gpu_memory_mib else COOPERATIVE


def weakest_of(enforced: Mapping[str, str]) -> str:
    """The weakest of who enforces what, in one word."""
    return min(enforced.values(), key=_WEAKEST_FIRST.index, default=NONE)


def enforced_of_job(job: JobRecord, hosts: Mapping[str, HostRecord], memory_watch: str) -> dict[str, str]:
    """As ``enforced_by``, of a job that is placed or runs; for a gang, the weakest of its members."""
    if job["state"] not in (JobState.PLACED, JobState.RUNNING) or not job["attempts"]:
        return {}
    attempt: AttemptRecord = job["attempts"][-1]
    resources = job["resources"]
    amounts = resources.get("gpu_milli", 0) or DEVICE_MILLI, resources.get("gpu_memory_mib", 0)
    weakest: dict[str, str] = {}
    for part in attempt.get("members") or (attempt,):
        devices = hosts.get(part["host"], NO_HOST).get("devices", [])
        for name, who in enforced_by(devices, part["gpu_uuids"], *amounts, memory_watch).items():
            weakest[name] = min(weakest.get(name, who), who, key=_WEAKEST_FIRST.index)
    return weakest
