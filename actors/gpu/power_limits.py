"""Sets the power limits of this host's devices, and puts back what they had: after a change of mind, an end or a crash.

Three put it back. The probe child that set it does when its parent hangs up, also when the agent was killed. The next
probe child's first sample shows what still differs from the journal, when the child was killed too. And so does the
next start of the agent. A limit does not outlive the driver, so no more is needed after a restart of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actorgrid.errors import DataDirUnusable
from actorgrid.supervisors.server import Server

from .device import Device
from .heat_policy import PowerRange
from .inventory import HostInventory
from .limit_journal import LimitJournal
from .readings import Readings

DIFFERS_WATTS = 1.0
"""Below that two limits are the same: drivers round."""
RETRY_S = 30.0
"""A device that refused is asked again that much later, and its reason is logged once."""


class PowerLimits:
    """Has the devices of *server*'s host draw at most what was last asked for, and no more than they did before us."""

    def __init__(self, server: Server, inventory: HostInventory) -> None:
        self._server = server
        self._inventory = inventory
        self._journal = LimitJournal(server.host.paths.power_limits_file)
        self._under_way: set[str] = set()
        self._set_since: dict[str, float] = {}
        """What was set since the last sample, which was read before that."""
        self._retry_at: dict[str, float] = {}
        self.refused: dict[str, str] = {}
        """Why a device did not take the last limit that it was given, by UUID."""
        self.set_total = 0

    def range_of(self, device: Device, sample: Readings) -> PowerRange | None:
        """What *device* may be told to draw; ``None`` where that is not known, or refused just now."""
        facts = self._inventory.facts(device)
        most = self._journal.before.get(device.uuid, self.current(device, sample))
        if facts is None or facts.power_min_watts is None or most is None or device.uuid in self.refused:
            return None
        return PowerRange(facts.power_min_watts, most) if 0 < facts.power_min_watts < most else None

    def current(self, device: Device, sample: Readings) -> float | None:
        """The limit that *device* has now, whose last sample is *sample*; ``None``: it does not tell."""
        return self._set_since.get(device.uuid, sample.power_limit_watts)

    def sampled(self, readings: Mapping[str, Readings]) -> None:
        """Take that these were read just now: a probe answers in order, so after what was set before."""
        for uuid in readings:
            self._set_since.pop(uuid, None)

    def apply(
        self, devices: Mapping[str, Device], samples: Mapping[str, Readings], limits: Mapping[str, float]
    ) -> None:
        """Have each of *devices* draw at most its watts in *limits*; one that is not there gets back what it had.

        Compares with what each reads, so that what was lost (a driver loaded anew, somebody else's hand) is set again.
        """
        for uuid, device in devices.items():
            current = self.current(device, samples[uuid]) if uuid in samples else None
            if current is None or uuid in self._under_way:
                continue
            wanted = limits.get(uuid)
            before = self._journal.before.get(uuid)
            if wanted is None:
                if before is not None:
                    self._set(device, current, before)
            elif abs(current - wanted) >= DIFFERS_WATTS:
                self._set(device, current, wanted)

    def _set(self, device: Device, current: float, watts: float) -> None:
        if self._server.runtime.monotonic() < self._retry_at.get(device.uuid, 0.0):
            return
        try:
            self._journal.keep(device.uuid, current)
            before = self._journal.before.get(device.uuid)
            if before is None:
                return  # as many as may be are changed already
            if abs(current - watts) < DIFFERS_WATTS:
                self._answered(device, watts, "")
                return
        except DataDirUnusable as error:
            self._refuse(device, f"what it had cannot be noted: {error.message}")
            return
        self._under_way.add(device.uuid)
        self._inventory.set_power_limit(device, watts, before, lambda why: self._answered(device, watts, why))

    def _answered(self, device: Device, watts: float, why: str) -> None:
        self._under_way.discard(device.uuid)
        if why:
            self._refuse(device, why)
            return
        self.refused.pop(device.uuid, None)
        self._retry_at.pop(device.uuid, None)
        self.set_total += 1
        self._set_since[device.uuid] = watts
        before = self._journal.before.get(device.uuid)
        if before is not None and abs(watts - before) < DIFFERS_WATTS:
            try:
                self._journal.forget(device.uuid)
            except DataDirUnusable as error:
                self._server.log.warning("the note of GPU %d's power limit stays: %s", device.index, error)
            self._server.log.info("GPU %d may draw %.0f W again", device.index, watts)
        else:
            self._server.log.warning("GPU %d may draw %.0f W from now on", device.index, watts)

    def _refuse(self, device: Device, why: str) -> None:
        if self.refused.get(device.uuid) != why:
            self._server.log.warning("the power limit of GPU %d cannot be set: %s", device.index, why)
        self.refused[device.uuid] = why
        self._retry_at[device.uuid] = self._server.runtime.monotonic() + RETRY_S

    def retry_due(self) -> None:
        """Ask those that refused again, when it is time: permissions and drivers change."""
        now = self._server.runtime.monotonic()
        for uuid in [uuid for uuid in self.refused if now >= self._retry_at.get(uuid, 0.0)]:
            del self.refused[uuid]

    def status(self) -> dict[str, Any]:
        """What was changed and what refused, as ``actorgrid inspect`` shows it."""
        return {"before_watts": dict(self._journal.before), "refused": dict(self.refused), "set_total": self.set_total}
