"""Cuts AMD's GPUs into partitions, for the operator: compute modes (SPX to CPX) and memory modes (NPS1 to NPS8).

A mode is of the whole GPU: all of its parts go, and others come. As with MIG, the ledger is told first to give out
nothing of any of them, what it has given out is looked at, and then the driver is asked (``MigControl.withhold``).
"""

from __future__ import annotations

from typing import Any

from actorgrid.errors import CallTimeout, HostError, NotFound
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import Server

from .inventory import HostInventory
from .mig_control import MigControl

LIST_WAIT_S = 60.0
"""A driver that cuts a GPU loads anew; so long its library is waited for."""


class AmdPartitions:
    """Of *server*'s host. *parts*: tells the ledger, and lets one change at a time."""

    def __init__(self, server: Server, inventory: HostInventory, parts: MigControl) -> None:
        self._server = server
        self._inventory = inventory
        self._parts = parts

    def listed(self) -> list[dict[str, Any]]:
        """The GPUs that can be cut: place on the bus, mode, and parts with who has each."""
        return [
            {
                "gpu": place,
                "model": parts[0][0].model,
                "mode": parts[0][1],
                "parts": [
                    {
                        "uuid": device.uuid,
                        "index": device.index,
                        "memory_bytes": device.memory_mib * 2**20,
                        "jobs": self._parts.holders(device.uuid),
                    }
                    for device, _ in parts
                ],
            }
            for place, parts in sorted(self._inventory.amd_gpus().items())
        ]

    async def set(self, gpu: str, change: str, mode: str) -> None:
        """Have the GPU at that place on the bus be cut by *mode*; *change*: ``compute`` or ``memory``.

        Raises NotFound, WrongState while work is on it, NotSupported while a host of an earlier version is in the
        cluster, HostError for what the driver refuses, CallTimeout when its library does not come back.
        """
        gpus = self._inventory.amd_gpus()
        if gpu not in gpus:
            raise NotFound(
                "this host has no such GPU of AMD's that can be cut",
                asked=gpu,
                found=", ".join(list(gpus)[:8]) or "none",
                hint="actorgrid gpus partitions list",
            )
        uuids = [device.uuid for device, _ in gpus[gpu]]
        with self._parts.one_at_a_time():
            await self._parts.withhold(uuids)
            try:
                await self._ask(uuids, change, mode)
            finally:
                self._parts.release(uuids)

    async def _ask(self, uuids: list[str], change: str, mode: str) -> None:
        waiter = Waiter()
        timer = self._server.runtime.after(LIST_WAIT_S, lambda: waiter.set(None))
        self._inventory.set_amd_partitions(uuids, change, mode, waiter.set)
        why: str | None = await waiter
        timer.cancel()
        if why is None:
            raise CallTimeout(
                "the driver was asked, and its library has not come back",
                asked=f"{change} partition {mode}",
                hint="actorgrid gpus partitions list, in a moment",
            )
        if why:
            raise HostError(
                "the driver did not cut the GPU otherwise",
                asked=f"{change} partition {mode}",
                found=why,
                hint="to cut takes root, and nothing may run on it: amd-smi process shows what does",
            )
