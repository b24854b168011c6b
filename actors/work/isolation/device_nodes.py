"""The device nodes of a host's GPUs, and which of them work is to be refused that was not granted them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from actorgrid.actors.gpu.vendors.pci import bus_id
from actorgrid.actors.ledger.record_types import DeviceRecord
from actorgrid.actors.ledger.records import parent_of

from .device_filter import NODES_MAX, Node

NVIDIA_MAJOR = 195


def denied_nodes(devices: Iterable[DeviceRecord], granted: Collection[str], root: Path = Path("/")) -> list[Node]:
    """The nodes of GPUs on this host but those of the *granted* devices, by UUID; a part's are those of its whole.

    None at all where a granted device's node is not known: it would be refused, too.
    """
    nodes = gpu_nodes(root)
    mine = [device for device in devices if device["uuid"] in granted and device.get("source") == "probed"]
    buses = {_bus(device.get("pcie_bus_id") or "") for device in mine}
    wholes = {parent_of(device) for device in mine} - {""}
    buses |= {_bus(each.get("pcie_bus_id") or "") for each in devices if each["uuid"] in wholes}
    known = {bus for _, bus in nodes}
    if (mine and not buses - {""} <= known) or "" in buses:
        return []
    return [node for node, bus in nodes if bus and bus not in buses]


def all_nodes_known(root: Path = Path("/")) -> bool:
    """Whether it is known of each GPU's node here which GPU's it is; so where there is none."""
    return all(bus for _, bus in gpu_nodes(root))


def gpu_nodes(root: Path = Path("/")) -> list[tuple[Node, str]]:
    """The nodes of GPUs that there are, with the address on the bus of each; empty where that is not known."""
    found: list[tuple[Node, str]] = []
    minors = _nvidia_minors(root)
    for path in sorted((root / "dev").glob("nvidia[0-9]*")):
        if path.name.removeprefix("nvidia").isdigit():
            minor = int(path.name.removeprefix("nvidia"))
            found.append(((NVIDIA_MAJOR, minor), minors.get(minor, "")))
    for path in sorted((root / "sys/class/drm").glob("renderD*")):
        try:
            major, minor = map(int, (path / "dev").read_text().split(":"))
            found.append(((major, minor), _bus(os.path.basename(os.path.realpath(path / "device")))))
        except (OSError, ValueError):
            continue
    return found[:NODES_MAX]


def _nvidia_minors(root: Path) -> dict[int, str]:
    """The addresses on the bus of NVIDIA's GPUs, by the minor number of their node."""
    found = {}
    for path in (root / "proc/driver/nvidia/gpus").glob("*/information"):
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() == "Device Minor" and value.strip().isdigit():
                found[int(value)] = _bus(path.parent.name)
    return found


def _bus(address: str) -> str:
    """An address of PCI in one spelling; empty for what is none."""
    found = bus_id(address)
    return found if found.count(":") == 2 else ""
