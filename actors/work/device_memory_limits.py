"""The kernel's limits of what work has of a GPU's memory: cgroup v2's ``dmem``, since Linux 6.14.

Drivers charge memory of their devices to the group of the process that asked for it: ``amdgpu`` and ``xe`` do. A region
is called ``drm/`` and the device's address on the bus, ``/vram`` and a number. NVIDIA's driver has no region there.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from .groups import PROBE, FreezerGroup, KillGroup

CONTROLLER = "dmem"
_FILE = "dmem.max"
_REGION = re.compile(r"drm/([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])/vram\d*")
_BYTES_MAX = 2**16


def limit_device_memory(group: Path, limits: Mapping[str, int]) -> None:
    """Have the kernel hold all that is in *group* to so many bytes of each device, by its address on the bus.

    Raises OSError also where the kernel did not take it, or knows no memory of such a device.
    """
    for address, n_bytes in limits.items():
        names = [name for name in _limits_in(group) if _address_of(name) == address]
        if not names:
            raise OSError(errno.ENODEV, f"the kernel limits no memory of {address}")
        for name in names:
            _write(group, name, str(n_bytes))
            said = _limits_in(group).get(name, "")
            if not said.isdecimal() or int(said) > n_bytes:
                raise OSError(errno.EINVAL, f"the limit of {name} is {said or 'not there'}, and not {n_bytes}")


def lift_device_limits(group: Path, addresses: Iterable[str]) -> None:
    """Take the limits of these devices away. Raises OSError."""
    wanted = set(addresses)
    for name in [name for name in _limits_in(group) if _address_of(name) in wanted]:
        _write(group, name, "max")


class DeviceLimits:
    """The limits of a pool's worker, which are those of the lease that it serves and of no lease before."""

    def __init__(self) -> None:
        self._limits: dict[str, int] = {}

    def change(self, group: KillGroup | FreezerGroup | None, said: Sequence[object]) -> bool:
        """Have *group* held to what is *said*, a map like that of ``limit_device_memory`` or nothing; whether it is."""
        first = said[0] if said else None
        before, self._limits = self._limits, first if isinstance(first, dict) else {}
        if not (before or self._limits):
            return True
        if group is None:
            return False
        try:
            lift_device_limits(group.path, before.keys() - self._limits.keys())
            limit_device_memory(group.path, self._limits)
        except OSError:
            return False
        return True


def limitable_devices(folder: Path) -> frozenset[str]:
    """The devices, by address, of which the kernel limits the memory of groups that are made in *folder*: tried out."""
    group = KillGroup(folder / f"{PROBE}{os.getpid()}")
    try:
        if CONTROLLER not in (folder / "cgroup.controllers").read_text().split():
            return frozenset()
        handed_down = folder / "cgroup.subtree_control"
        if CONTROLLER not in handed_down.read_text().split():
            handed_down.write_text(f"+{CONTROLLER}")  # nobody else does: service managers do not know it yet
        group.make()
    except OSError:
        return frozenset()
    found = set()
    for address in {address for name in _limits_in(group.path) if (address := _address_of(name))}:
        with suppress(OSError):
            limit_device_memory(group.path, {address: 2**20})
            found.add(address)
    group.remove()
    return frozenset(found)


def _address_of(region: str) -> str:
    found = _REGION.fullmatch(region)
    return found[1] if found else ""


def _limits_in(group: Path) -> dict[str, str]:
    """The limit of each region of *group*; nothing without the controller."""
    try:
        with open(group / _FILE, encoding="utf-8") as file:
            lines = [line.split() for line in file.read(_BYTES_MAX).splitlines()]
    except (OSError, ValueError):
        return {}
    return {words[0]: words[1] for words in lines if len(words) == 2}


def _write(group: Path, region: str, limit: str) -> None:
    (group / _FILE).write_text(f"{region} {limit}\n")
