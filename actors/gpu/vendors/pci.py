"""GPUs as the kernel lists them in sysfs: there for every vendor, without any library; absent in some containers."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..device import Device
from ..probe_report import DeviceLink, link

VENDOR_IDS = {0x10DE: "nvidia", 0x1002: "amd", 0x8086: "intel"}
_CLASSES = (0x0300, 0x0302, 0x0380, 0x1200)
"""VGA, 3D and other display controllers, processing accelerators: class and subclass of PCI."""
_ADDRESS = re.compile(r"^(?:([0-9a-f]+):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])$")
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""PCIe generations by GT/s."""
_DRIVERS = ("nvidia", "amdgpu", "xe", "i915")
DEVICES_MAX = 1024


@dataclass(frozen=True, slots=True)
class PciGpu:
    """A GPU on the bus. ``driver`` is the kernel's (nvidia, amdgpu, xe, i915, vfio-pci), empty without one."""

    bus_id: str
    vendor: str
    device_id: int
    driver: str
    numa_node: int | None
    folder: Path


def bus_id(text: str) -> str:
    """*text* as sysfs writes an address (0000:1b:00.0); NVML writes the domain with eight digits and capitals."""
    found = _ADDRESS.match(text.strip().lower())
    if found is None:
        return text.strip().lower()
    return f"{int(found[1] or '0', 16):04x}:{found[2]}:{found[3]}.{found[4]}"


def list_gpus(root: Path = Path("/")) -> list[PciGpu]:
    """All GPUs on the bus, in its order; empty where sysfs cannot be read."""
    found = []
    try:
        folders = sorted((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return []
    for folder in folders:
        vendor = VENDOR_IDS.get(_number(folder / "vendor") or 0)
        if vendor is None or (_number(folder / "class") or 0) >> 8 not in _CLASSES:
            continue
        found.append(_gpu(folder, vendor))
    return found[:DEVICES_MAX]


def bound_gpus(root: Path = Path("/")) -> frozenset[str]:
    """The addresses of the devices that GPU drivers drive now: what changes when one is added, removed or reset."""
    found: set[str] = set()
    for driver in _DRIVERS:
        with contextlib.suppress(OSError):
            names = os.listdir(root / "sys/bus/pci/drivers" / driver)
            found.update(name for name in names if _ADDRESS.match(name))
    return frozenset(found)


def numa_node(address: str | None, root: Path = Path("/")) -> int | None:
    """The NUMA node of the device at that address; ``None`` where the kernel does not say, or there is but one."""
    if address is None:
        return None
    said = _number(root / "sys/bus/pci/devices" / bus_id(address) / "numa_node")
    return said if said is not None and said >= 0 else None


def why_no_numa_node(address: str | None, root: Path = Path("/")) -> str:
    """Why ``numa_node`` says nothing of a device whose driver says nothing either."""
    devices = root / "sys/bus/pci/devices"
    if address is None:
        return "its place on the bus is not known"
    if not devices.is_dir():
        return "neither the driver nor the kernel says it: there is no sysfs here, as in some containers"
    if not (devices / bus_id(address)).exists():
        return "neither the driver nor the kernel says it: sysfs does not show the device"
    return "the kernel knows of one NUMA node alone"


def pcie_link(folder: Path) -> tuple[int | None, int | None]:
    """Generation and lanes of a device's link as it is now; each ``None`` where the kernel does not say."""
    speed, width = _text(folder / "current_link_speed"), _text(folder / "current_link_width")
    generation = None
    if speed:
        try:
            generation = _GENERATIONS.get(float(speed.split()[0]))
        except ValueError:
            generation = None
    return generation, int(width) if width.isdecimal() and int(width) > 0 else None


def common_ancestor(one: str, other: str, root: Path = Path("/")) -> str | None:
    """Where the ways of two devices meet, in nvidia-smi's words; ``None`` where sysfs does not show it."""
    paths = []
    for address in (one, other):
        folder = root / "sys/bus/pci/devices" / bus_id(address)
        if not folder.exists():
            return None
        paths.append(folder.resolve().parts)
    left, right = paths
    shared = 0
    while shared < min(len(left), len(right)) - 1 and left[shared] == right[shared]:
        shared += 1
    bridges = [part for part in left[:shared] if _ADDRESS.match(part)]
    if not any(part.startswith("pci") and ":" in part for part in left[:shared]):
        nodes = numa_node(one, root), numa_node(other, root)
        return "SYS" if None in nodes or nodes[0] != nodes[1] else "NODE"
    if not bridges:
        return "PHB"  # they share a host bridge alone
    # Below the port of the root complex they share switches; how many lie between them says how far it is.
    return "PIX" if max(len(left), len(right)) - shared <= 2 else "PXB"


def links_by_bus(devices: Iterable[Device], root: Path = Path("/")) -> list[DeviceLink]:
    """How *devices* are joined by the bus, as far as sysfs shows it; by NUMA nodes alone where it does not."""
    known = [device for device in devices if device.pcie_bus_id]
    found = []
    for place, one in enumerate(known):
        for other in known[place + 1 :]:
            if one.pcie_bus_id == other.pcie_bus_id:
                continue  # parts of one device
            word = common_ancestor(str(one.pcie_bus_id), str(other.pcie_bus_id), root)
            if word is None and one.numa_node is not None and other.numa_node is not None:
                word = "NODE" if one.numa_node == other.numa_node else "SYS"
            if word is not None:
                found.append(link(one.uuid, other.uuid, word))
    return found


def _gpu(folder: Path, vendor: str) -> PciGpu:
    driver = folder / "driver"
    node = _number(folder / "numa_node")
    return PciGpu(
        folder.name,
        vendor,
        _number(folder / "device") or 0,
        driver.resolve().name if driver.exists() else "",
        node if node is not None and node >= 0 else None,
        folder,
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    try:
        return int(_text(path), 0)
    except ValueError:
        return None
