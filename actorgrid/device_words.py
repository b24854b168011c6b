"""The words for devices that cross a door: whose they are, how they are known, what they do, how they are cut."""

from __future__ import annotations

from enum import StrEnum

MIG_PROFILE_PATTERN = r"^$|^[1-8]g\.[0-9]{1,4}gb(\+[a-z.]{1,12})?$"
"""The name of a MIG profile (its slices, its memory, and what else it has), or nothing."""


GPU_TOPOLOGIES = ("nvlink", "pix", "pxb", "phb", "node")
"""How close GPUs of a host can be, in nvidia-smi's words, the closest first: a direct fabric (NVLink, XGMI, Xe link),
one PCIe switch, several, one host bridge, one NUMA node. Each includes those before it."""


class GPUVendor(StrEnum):
    """Whose device it is; a simulated device says what it simulates."""

    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    APPLE = "apple"
    QUALCOMM = "qualcomm"


class GPUStatus(StrEnum):
    """What a device is doing."""

    AVAILABLE = "available"
    ALLOCATED = "allocated"
    MAINTENANCE = "maintenance"
    ERROR = "error"


class DeviceSource(StrEnum):
    """How we know of a device; only ``probed`` ones have telemetry."""

    PROBED = "probed"
    SIMULATED = "simulated"
    DECLARED = "declared"
