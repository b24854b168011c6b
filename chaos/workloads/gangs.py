"""Gangs: jobs of two or three members among single ones, some of them apart, a few cancelled."""

from __future__ import annotations

from typing import Any

from .jobs import JobsClient
from .workload import Workload

SHARES = (1000, 1000, 500, 600)


class GangsClient(JobsClient):
    """Submits a gang or, every third time, a single job; cancels one in ten."""

    def new_jobs(self) -> list[dict[str, Any]]:
        """One, of several members mostly."""
        self._number += 1
        share = SHARES[self.rng.randrange(len(SHARES))]
        resources: dict[str, Any] = {"gpus": share / 1000, "gpu_count": 1, "gpu_milli": share, "cpu_milli": 500}
        if self._number % 3:
            resources["gang"] = self.rng.randrange(2, 4)
            if self.rng.random() < 0.4:
                resources["spread"] = True
        return [{"job_id": f"{self.name}-{self._number}", "resources": resources, "retries_left": 3}]


class GangsWorkload(Workload):
    """Clients that submit gangs."""

    client_class = GangsClient
