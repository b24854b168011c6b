"""What each host has given out: the sums the ledger's guard compares with what the host has."""

from __future__ import annotations

from actorgrid.actors.ledger.record_types import AllocationRecord, DeviceRecord, HostRecord, ResourcesRecord
from actorgrid.actors.ledger.records import parent_of, share_of
from actorgrid.errors import Overcommit, WrongState


class Capacity:
    """Sums over live allocations, by host and device. Derived: never stored, rebuilt from the allocations.

    An allocation keeps its place in the sums until it is given back, also when its host comes up again with
    another incarnation or fewer devices.
    """

    def __init__(self) -> None:
        self._cpu_milli: dict[str, int] = {}
        self._memory_mib: dict[str, int] = {}
        self._device: dict[tuple[str, int], tuple[int, int]] = {}
        self._held: dict[tuple[str, str], int] = {}
        self._parts: dict[tuple[str, str], int] = {}

    def take(self, allocation: AllocationRecord) -> None:
        """Count an allocation."""
        self._add(allocation, 1)

    def give(self, allocation: AllocationRecord) -> None:
        """Stop counting an allocation."""
        self._add(allocation, -1)

    def used_cpu_milli(self, host_id: str) -> int:
        """CPU given out on a host."""
        return self._cpu_milli.get(host_id, 0)

    def used_memory_mib(self, host_id: str) -> int:
        """Memory given out on a host."""
        return self._memory_mib.get(host_id, 0)

    def used_device(self, host_id: str, index: int) -> tuple[int, int]:
        """Thousandths of a device and MiB of its memory that are given out."""
        return self._device.get((host_id, index), (0, 0))

    def check(self, host: HostRecord, gpu_indexes: list[int], resources: ResourcesRecord) -> list[DeviceRecord]:
        """The records of the devices asked for, if all fits. Raises Overcommit, or WrongState for wrong devices.

        What is asked for as zero is not counted and always fits.
        """
        host_id = host["host_id"]
        wanted = resources.get("gpu_count", 0)
        if len(gpu_indexes) != wanted:
            raise WrongState(
                "the grant names another number of devices than was asked for",
                asked=f"{wanted} device(s)",
                found=f"indexes {gpu_indexes}",
            )
        _fit(
            f"CPU of host {host_id}",
            "milli",
            self.used_cpu_milli(host_id),
            resources.get("cpu_milli", 0),
            host["cpu_milli"],
        )
        _fit(
            f"memory of host {host_id}",
            "MiB",
            self.used_memory_mib(host_id),
            resources.get("memory_mib", 0),
            host["memory_mib"],
        )
        by_index = {device["index"]: device for device in host["devices"]}
        found = []
        for index in gpu_indexes:
            device = by_index.get(index)
            if device is None:
                raise WrongState(
                    f"host {host_id} has no device {index}", asked=f"device {index}", found=f"{sorted(by_index)}"
                )
            milli, memory_mib = self.used_device(host_id, index)
            what = f"device {index} of host {host_id}"
            self._refuse_both(what, host_id, device)
            _fit(what, "milli", milli, resources.get("gpu_milli", 0), share_of(device))
            _fit(what, "MiB", memory_mib, resources.get("gpu_memory_mib", 0), device["memory_mib"])
            found.append(device)
        return found

    def _refuse_both(self, what: str, host_id: str, device: DeviceRecord) -> None:
        """Refuse a device that is being cut, and one GPU as a whole and as instances. Raises Overcommit."""
        if device.get("cut") is True:
            raise Overcommit(f"{what} is cut into instances, or is about to be", asked="a grant of it", found="cut")
        parent = parent_of(device)
        if parent and self._held.get((host_id, parent)):
            raise Overcommit(f"{what} is an instance of a GPU that is given out", asked="both", found=parent)
        if self._parts.get((host_id, device["uuid"])):
            raise Overcommit(f"instances of {what} are given out", asked="the whole of it", found=device["uuid"])

    def _add(self, allocation: AllocationRecord, sign: int) -> None:
        host_id = allocation["host"]
        self._cpu_milli[host_id] = self.used_cpu_milli(host_id) + sign * allocation["cpu_milli"]
        self._memory_mib[host_id] = self.used_memory_mib(host_id) + sign * allocation["memory_mib"]
        for index in allocation["gpu_indexes"]:
            milli, memory_mib = self.used_device(host_id, index)
            self._device[host_id, index] = (
                milli + sign * allocation["gpu_milli"],
                memory_mib + sign * allocation["gpu_memory_mib"],
            )
        for counts, uuids in ((self._held, allocation["gpu_uuids"]), (self._parts, allocation.get("gpu_parents", ()))):
            for uuid in uuids:
                left = counts.pop((host_id, uuid), 0) + sign
                if left:
                    counts[host_id, uuid] = left


def _fit(what: str, unit: str, used: int, asked: int, capacity: int) -> None:
    if asked and used + asked > capacity:
        raise Overcommit(
            f"{what} does not have that much left",
            asked=f"{asked} {unit}",
            found=f"{max(0, capacity - used)} {unit} free of {capacity}",
            hint="wait for work there to end, or place it elsewhere",
        )
