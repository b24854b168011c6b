"""Services: clients that write one each, have more or fewer replicas, exchange them for others and for broken ones."""

from __future__ import annotations

from typing import Any

from actorgrid.actors.ledger.commands import PutService, RollBackService, ScaleService
from actorgrid.chaos.simulator.agent import BROKEN

from .workload import Workload, WorkloadClient

DRAIN_S = 600.0
"""Longer than a run: nothing is ended because its time to leave is over."""


class ServicesClient(WorkloadClient):
    """Keeps one service."""

    gang = 1
    idle_s = 900.0
    _number = 0
    _most = 1

    @property
    def least(self) -> int:
        """How many replicas there are to be at least."""
        return self._most

    def next_call(self) -> None:
        """Write it at first; then mostly another number of replicas, sometimes another thing that they run."""
        at, chance = self.world.wall(), self.rng.random()
        if self._number == 0 or chance < 0.4:
            self._number += 1
            broken = self._number > 1 and self.rng.random() < 0.25
            canary = 30 if self.rng.random() < 0.3 else 0
            given = self._service(BROKEN if broken else f"serve{self._number}")
            self.write(self.name, PutService(given, True, canary, 2.0, at=at))
        elif chance < 0.5:
            self.write(self.name, RollBackService(self.name, self.name, at=at))
        else:
            self._most = self.rng.randrange(1, 4 if self.gang == 1 else 3)
            self.write(self.name, ScaleService(self.name, self.least, self._most, self.name, at=at))

    def thinking_us(self) -> int:
        """So long that something comes of it."""
        return self.rng.randrange(800_000, 5_000_000)

    def _service(self, command: str) -> dict[str, Any]:
        resources: dict[str, Any] = {"gpus": 0.5, "gpu_count": 1, "gpu_milli": 500, "cpu_milli": 500}
        if self.gang > 1:
            resources["gang"] = self.gang
        return {
            "name": self.name,
            "user_id": self.name,
            "job": {"command": [command, "{port}"], "resources": resources},
            "serving": {
                "protocol": "openai",
                "model": "m",
                "ready_path": "",
                "ready_body": "",
                "live_path": "/health",
                "start_timeout_s": 60.0,
                "preset": "",
            },
            "scale": {
                "min": self.least,
                "max": self._most,
                "concurrency": 4,
                "idle_s": self.idle_s,
                "drain_s": DRAIN_S,
                "strategy": self.rng.choice(("auto", "auto", "surge", "replace")),
            },
            "made_by": self.name,
        }


class ServicesWorkload(Workload):
    """Clients with a service each."""

    client_class = ServicesClient


class GangServicesClient(ServicesClient):
    """Keeps a service whose replicas have two members."""

    gang = 2


class GangServicesWorkload(Workload):
    """Clients with a service of gangs each."""

    client_class = GangServicesClient


class DemandServicesClient(ServicesClient):
    """Keeps a service whose number of replicas follows what is asked of it, down to none."""

    idle_s = 45.0
    _most = 2

    @property
    def least(self) -> int:
        """None, where nobody asks."""
        return 0

    def thinking_us(self) -> int:
        """So long that demand decides most of it."""
        return self.rng.randrange(20_000_000, 60_000_000)


class DemandServicesWorkload(Workload):
    """Clients with a service each, which goes to none and comes back."""

    client_class = DemandServicesClient
