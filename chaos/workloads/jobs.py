"""Jobs: clients submit small ones, a few of them are cancelled, hosts run them."""

from __future__ import annotations

from typing import Any, cast

from actorgrid.actors.ledger.commands import CancelJob, SubmitJobs
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.chaos.simulator.agent import CPU_MILLI, RUNS_FOR

from .workload import Workload, WorkloadClient

SHARES = (1000, 1000, 500, 250, 600)
PATIENCES_S = (1.0, 2.0, 3.0, 4.0)


class JobsClient(WorkloadClient):
    """Submits one or two jobs at a time, now and then one that waits for the other; cancels one in ten."""

    _number = 0
    _last = ""

    def next_call(self) -> None:
        """Submit, or cancel what was submitted last."""
        at = self.world.wall()
        if self._last and self.rng.random() < 0.1:
            self.write(self._last, CancelJob(self._last, self.name, at=at))
            self._last = ""
            return
        jobs = self.new_jobs()
        self._last = jobs[-1]["job_id"]
        self.write(jobs[0]["job_id"], SubmitJobs(cast("list[JobRecord]", jobs), at=at))

    def new_jobs(self) -> list[dict[str, Any]]:
        """What is submitted together."""
        jobs: list[dict[str, Any]] = []
        for _ in range(self.rng.randrange(1, 3)):
            self._number += 1
            job_id = f"{self.name}-{self._number}"
            after = [jobs[0]["job_id"]] if jobs and self.rng.random() < 0.3 else []
            share = SHARES[self.rng.randrange(len(SHARES))]
            count = 2 if share == 1000 and self.rng.random() < 0.3 else 1
            resources = {"gpus": count * share / 1000, "gpu_count": count, "gpu_milli": share, "cpu_milli": 500}
            jobs.append(
                {"job_id": job_id, "resources": resources, "retries_left": 3, "depends_on": after, **self.terms()}
            )
        return jobs

    def terms(self) -> dict[str, Any]:
        """Further fields of a job that is submitted."""
        return {}

    def thinking_us(self) -> int:
        """Jobs come slower than settings are read."""
        return self.rng.randrange(100_000, 900_000)


class JobsWorkload(Workload):
    """Clients that submit jobs."""

    client_class = JobsClient


class LongJobsClient(JobsClient):
    """Its jobs run for seconds, and may go on alone for more or less time."""

    def terms(self) -> dict[str, Any]:
        """The run time and the patience of a job."""
        runs_ms = self.rng.randrange(1_000, 12_000)
        return {"max_isolation_s": self.rng.choice(PATIENCES_S), "env": {RUNS_FOR: str(runs_ms)}}

    def thinking_us(self) -> int:
        """Think so long that the hosts can run all jobs."""
        return self.rng.randrange(500_000, 2_000_000)


class CallsClient(JobsClient):
    """Submits many short calls, two of which fill a host; now and then one takes long, or goes before all others."""

    def new_jobs(self) -> list[dict[str, Any]]:
        """Several calls, and sometimes a job that needs a GPU."""
        jobs = super().new_jobs()[:1] if self.rng.random() < 0.1 else []
        for _ in range(self.rng.randrange(3, 10)):
            self._number += 1
            runs_ms = self.rng.randrange(500, 1_500) if self.rng.random() < 0.03 else self.rng.randrange(1, 25)
            jobs.append(
                {
                    "job_id": f"{self.name}-{self._number}",
                    "kind": "function",
                    "payload_digest": "0" * 64,
                    "user_id": self.rng.choice(("ann", "ann", "ann", "bob")),
                    "resources": {"gpus": 0.0, "gpu_count": 0, "gpu_milli": 0, "cpu_milli": CPU_MILLI // 2},
                    "priority": 90 if self.rng.random() < 0.05 else 50,
                    "retries_left": 3,
                    "env": {RUNS_FOR: str(runs_ms)},
                }
            )
        return jobs

    def thinking_us(self) -> int:
        """Submit more before all are done."""
        return self.rng.randrange(100_000, 600_000)


class CallsWorkload(Workload):
    """Clients that submit short calls."""

    client_class = CallsClient


class LongJobsWorkload(Workload):
    """Clients that submit jobs which hosts may be lost under."""

    client_class = LongJobsClient
