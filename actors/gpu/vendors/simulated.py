"""Simulated devices: for hosts without GPUs, demonstrations and tests. They say that they are simulated."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from actorgrid.errors import InvalidSetting

from ..device import Device
from ..readings import READINGS, Readings

_SPEC = re.compile(r"^simulated:(\d{1,4})x([A-Za-z0-9_.]+)-(\d+)GB$")
_CAPABILITY = {
    "P100": "6.0",
    "V100": "7.0",
    "T4": "7.5",
    "A100": "8.0",
    "A10": "8.6",
    "A40": "8.6",
    "L4": "8.9",
    "L40S": "8.9",
    "H100": "9.0",
    "H200": "9.0",
    "GH200": "9.0",
    "B200": "10.0",
    "B300": "10.3",
}
# Compiled when loaded, before the fork: the compiler of expressions is 40 functions that no process needs otherwise.
_VENDORS = {
    "amd": re.compile(r"mi\d|radeon|rx\d|instinct"),
    "intel": re.compile(r"max|flex|arc|gaudi"),
    "apple": re.compile(r"m\d+(pro|max|ultra)?$"),
    "qualcomm": re.compile(r"adreno|cloudai|aic\d"),
}
_POWER_W = {"T4": 70, "L4": 72, "A10": 150, "P100": 250, "V100": 300, "A40": 300, "L40S": 350, "A100": 400}
_SIMULATED = ("memory_used_mib", "utilization_percent", "temperature_celsius", "power_watts")
_NOT_SIMULATED = {name: "it is not simulated" for name in READINGS if name not in _SIMULATED}
_BASEBOARD = re.compile(r"(V100|A100|H100|H200|B200|B300|GH200|MI[23]\d\d.*|Max.*)$")
_FABRICS = {"nvidia": "NV18", "amd": "XGMI", "intel": "XL2"}
LINKED_MAX = 64
"""Devices of a host that are joined to others, those with the lowest indexes."""
BUSY_CHARS_MAX = 10_000
_IDLE_SHARE = 0.1
_FULL_POWER_W = 700
_IDLE_C, _FULL_C = 32.0, 74.0


def _scripted_percent(path: str, index: int) -> float | None:
    """What the file says of the device: it has a number for each, the last for all behind it."""
    try:
        with open(path, encoding="utf-8") as file:
            numbers = [float(word) for word in file.read(BUSY_CHARS_MAX).replace(",", " ").split()]
    except (OSError, ValueError):  # it is being written just now, or is no such file: as without it
        return None
    return min(100.0, max(0.0, numbers[min(index, len(numbers) - 1)])) if numbers else None


def vendor_of_model(model: str) -> str:
    """Whose model it is, from its name; NVIDIA's when nothing says otherwise."""
    lower = model.lower()
    return next((vendor for vendor, models in _VENDORS.items() if models.match(lower)), "nvidia")


def simulated_devices(spec: str, host_id: str) -> list[Device]:
    """The devices of ``simulated:COUNTxMODEL-MEMORYGB``; the same host gets the same UUIDs at every start.

    80GB are 80 GiB here, as on a device's label. Raises InvalidSetting.
    """
    found = _SPEC.match(spec)
    if found is None:
        raise InvalidSetting(
            f"gpus.source {spec!r} is not understood", asked=spec, hint="write it like simulated:8xH100-80GB"
        )
    count, model, memory_gb = int(found[1]), found[2], int(found[3])
    origin = hashlib.sha256(host_id.encode()).hexdigest()[:12]
    return [
        Device(
            uuid=f"GPU-sim-{origin}-{index:04d}",
            index=index,
            vendor=vendor_of_model(model),
            model=model,
            memory_mib=memory_gb * 1024,
            source="simulated",
            compute_capability=_CAPABILITY.get(model),
        )
        for index in range(count)
    ]


def simulated_links(device: Device, others: Iterable[Device]) -> dict[str, str]:
    """How *device* is joined to *others* of its host, by their UUIDs: as on the machines that its model is sold in.

    On a baseboard (HGX and its like) each has a fabric to each. Cards in slots are two on a switch, four on a socket.
    """
    found = {}
    for other in others:
        if other.uuid == device.uuid or max(device.index, other.index) >= LINKED_MAX:
            continue
        if _BASEBOARD.match(device.model) and other.model == device.model:
            found[other.uuid] = _FABRICS.get(device.vendor, "NV18")
        elif device.index // 2 == other.index // 2:
            found[other.uuid] = "PIX"
        else:
            found[other.uuid] = "NODE" if device.index // 4 == other.index // 4 else "SYS"
    return found


def simulated_readings(
    device: Device,
    allocated_milli: int,
    allocated_mib: int,
    busy_file: str = "",
    busy_percent: float | None = None,
) -> Readings:
    """Readings as if everything allocated were used to the full: a model, the same for the same allocations.

    How busy a device is, *busy_percent*, or else the *busy_file*, may say instead.
    """
    scripted = _scripted_percent(busy_file, device.index) if busy_file and busy_percent is None else busy_percent
    busy = min(1.0, allocated_milli / 1000) if scripted is None else scripted / 100
    full_w = _POWER_W.get(device.model, _FULL_POWER_W)
    used_mib = allocated_mib or round(busy * device.memory_mib)
    return Readings(
        memory_used_mib=min(used_mib, device.memory_mib),
        utilization_percent=round(100.0 * busy, 1),
        temperature_celsius=round(_IDLE_C + (_FULL_C - _IDLE_C) * busy, 1),
        power_watts=round(full_w * (_IDLE_SHARE + (1 - _IDLE_SHARE) * busy), 1),
        unsupported=_NOT_SIMULATED,
    )
