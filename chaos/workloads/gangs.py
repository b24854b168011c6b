"""Gangs: jobs of two or three members among single ones, some of them apart, a few cancelled."""

from __future__ import annotations

from typing import Any

from actorgrid.actors.ledger.commands import CancelJob, SubmitJobs

from .workload import Workload, WorkloadClient

SHARES = (1000, 1000, 500, 600)


class GangsClient(WorkloadClient):
    """Submits a gang or, every third time, a single job; cancels one in ten."""

    _number = 0
    _last = ""

    def next_call(self) -> None:
        """Submit, or cancel what was submitted last."""
        at = self.world.wall()
        if self._last and self.rng.random() < 0.1:
            self.write(self._last, CancelJob(self._last, self.name, at=at))
            self._last = ""
            return
        self._number += 1
        self._last = f"{self.name}-{self._number}"
        share = SHARES[self.rng.randrange(len(SHARES))]
        resources: dict[str, Any] = {"gpus": share / 1000, "gpu_count": 1, "gpu_milli": share, "cpu_milli": 500}
        if self._number % 3:
            resources["gang"] = self.rng.randrange(2, 4)
            if self.rng.random() < 0.4:
                resources["spread"] = True
        job = {"job_id": self._last, "resources": resources, "retries_left": 3}
        self.write(self._last, SubmitJobs([job], at=at))

    def thinking_us(self) -> int:
        """Jobs come slower than settings are read."""
        return self.rng.randrange(100_000, 900_000)


class GangsWorkload(Workload):
    """Clients that submit gangs."""

    client_class = GangsClient
