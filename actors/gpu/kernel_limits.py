"""KernelLimits: of which devices of this host the kernel holds work to its memory, as whoever begins work found out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from actorgrid.errors import ActorGridError
from actorgrid.supervisors.server import Server

from ..work.messages import LimitableDevices
from .inventory import HostInventory
from .vendors.pci import bus_id

ASK_S = 10.0


class KernelLimits:
    """Asks *server*'s worker manager once, when there is a device that may be so; *changed* is called when it is."""

    def __init__(self, server: Server, inventory: HostInventory, changed: Callable[[], None]) -> None:
        self._server = server
        self._inventory = inventory
        self._changed = changed
        self._addresses: frozenset[str] | None = None
        self._asking = False

    def look(self) -> None:
        """Ask, where that has not been answered yet; called with each sample."""
        if self._addresses is None and not self._asking and self._by_address():
            self._asking = True
            self._server.spawn(self._ask())

    async def _ask(self) -> None:
        try:
            told: list[str] | None = await self._server.call("worker_manager", LimitableDevices(), ASK_S)
            self._addresses = None if told is None else frozenset(told)
        except ActorGridError as error:
            self._server.log.info("whether the kernel limits memory of GPUs: %s", error)  # the next sample asks again
        finally:
            self._asking = False
        if self._addresses:
            self._changed()

    def now(self) -> frozenset[str]:
        """The devices of which the kernel holds work to its ``gpu_memory``."""
        known = self._addresses or frozenset()
        return frozenset(uuid for address, uuid in self._by_address().items() if address in known)

    def _by_address(self) -> dict[str, str]:
        """The UUIDs of devices that are all that there is at their address: parts of one share its memory."""
        there = [
            (bus_id(device.pcie_bus_id), device.uuid)
            for device in self._inventory.devices
            if device.source == "probed" and device.vendor in ("amd", "intel") and device.pcie_bus_id
        ]
        often = Counter(address for address, _ in there)
        return {address: uuid for address, uuid in there if often[address] == 1}
