"""Settings: keys that are read and swapped by several clients at once, a register each."""

from __future__ import annotations

from actorgrid.actors.ledger.commands import SetSetting

from .workload import Workload, WorkloadClient

KEYS = 3


class SettingsClient(WorkloadClient):
    """A client that reads, and writes values never written before; a write answers the value it replaced."""

    _number = 0

    def next_call(self) -> None:
        """Read or write, half and half, one of three keys."""
        key = f"k{self.rng.randrange(KEYS)}"
        if self.rng.random() < 0.5:
            self.read(key)
            return
        self._number += 1
        self.write(key, SetSetting(key, f"{self.name}.{self._number}", self.name, at=self.world.wall()))


class SettingsWorkload(Workload):
    """Clients of a register per key."""

    client_class = SettingsClient
