"""Jobs that ask for whole GPUs, for shares of one, and for MIG instances."""

from __future__ import annotations

from typing import Any

from ..simulator.agent import PART_MILLI
from .jobs import JobsClient
from .workload import Workload

SHARES = (1000, PART_MILLI, PART_MILLI, 300)


class InstancesClient(JobsClient):
    """Submits a job at a time; what it asks of a GPU fits a whole one, or an instance too."""

    def new_jobs(self) -> list[dict[str, Any]]:
        """One, of one GPU."""
        self._number += 1
        share = SHARES[self.rng.randrange(len(SHARES))]
        resources: dict[str, Any] = {"gpus": share / 1000, "gpu_count": 1, "gpu_milli": share, "cpu_milli": 500}
        return [{"job_id": f"{self.name}-{self._number}", "resources": resources, "retries_left": 3}]


class InstancesWorkload(Workload):
    """Clients that submit such jobs."""

    client_class = InstancesClient
