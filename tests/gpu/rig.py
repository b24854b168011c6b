"""A host's ledger and coordinator in one process, with the real Consensus on a real disk."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from actorgrid.actors.consensus.actor import Consensus
from actorgrid.actors.gpu.coordinator import GPUCoordinator
from actorgrid.actors.host.context import HostContext
from actorgrid.actors.ledger.command import Command
from actorgrid.actors.ledger.commands import EndAttempt, SubmitJobs
from actorgrid.actors.ledger.messages import Propose, Proposed, Query
from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.supervisors.inline import InlineNode


def resources(gpus: float = 0.0, cpu_milli: int = 0, **more: Any) -> dict[str, Any]:
    count = 0 if gpus == 0 else max(1, int(gpus))
    return {
        "gpus": gpus,
        "gpu_count": count,
        "gpu_milli": 1000 if gpus >= 1 else round(gpus * 1000),
        "gpu_memory_mib": 0,
        "gpu_models": [],
        "gpu_affinity": [],
        "cpu_milli": cpu_milli,
        "memory_mib": 0,
        **more,
    }


class Rig:
    """One host. ``propose`` stands for every other server that changes the ledger."""

    def __init__(self, folder: Path, source: str = "simulated:8xH100-80GB", **gpus: Any) -> None:
        settings = Settings()
        settings.gpus.source = source
        for name, value in gpus.items():
            setattr(settings.gpus, name, value)
        paths = HostPaths(folder)
        paths.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        paths.ledger_dir.mkdir(mode=0o700, exist_ok=True)
        self.host = HostContext(paths, settings, "host-a", "alpha", 1, "boot-1")
        self.node = InlineNode(real_time=True)
        self._seq = itertools.count(1)

    def up(self) -> Rig:
        self.node.add(Consensus, self.host)
        self.start_coordinator()
        self.until(lambda: self.coordinator.status()["registered"], "registration")
        return self

    def start_coordinator(self) -> None:
        self.node.add(GPUCoordinator, self.host)

    def close(self) -> None:
        for name in ("gpu_coordinator", "consensus"):
            server = self.node.servers.pop(name, None)
            if server is not None:
                server.stop("test over")
        self.node._selector.close()

    @property
    def coordinator(self) -> GPUCoordinator:
        server = self.node.servers["gpu_coordinator"]
        assert isinstance(server, GPUCoordinator)
        return server

    def until(self, condition: Callable[[], bool], what: str = "condition", timeout_s: float = 60.0) -> None:
        self.node.run_until(condition, timeout_s, what)

    def ask(self, message: Any) -> Any:
        return self.node.request("gpu_coordinator", message, timeout_s=30.0)

    def propose(self, command: Command) -> dict[str, Any]:
        stamped = replace(command, at=command.at or time.time())
        answer: Proposed = self.node.request("consensus", Propose(stamped, "test", next(self._seq)))
        return answer.result

    def submit(self, *job_ids: str, gpus: float = 0.0, **more: Any) -> None:
        needs = {name: more.pop(name) for name in list(more) if name.startswith("gpu_") or name == "cpu_milli"}
        fields = {"resources": resources(gpus, **needs), "pool": "general", **more}
        jobs = [{"job_id": id, **fields} for id in job_ids]
        self.propose(SubmitJobs(jobs=jobs))

    def job(self, job_id: str) -> dict[str, Any]:
        record: dict[str, Any] = self.node.request("consensus", Query("job", {"job_id": job_id}))
        return record

    def state(self, job_id: str) -> str:
        return str(self.job(job_id)["state"])

    def wait_placed(self, *job_ids: str) -> None:
        self.until(lambda: all(self.state(id) == "placed" for id in job_ids), f"{job_ids} to be placed")

    def settle(self) -> None:
        """Until nobody has anything to do and nothing is being proposed."""
        self.until(lambda: not self.node.step() and not self.coordinator._core.proposals.grants, "quiet")

    def end(self, job_id: str, outcome: str = "succeeded", **more: Any) -> None:
        attempt = self.job(job_id)["attempts"][-1]
        self.propose(EndAttempt(attempt_id=attempt["attempt_id"], token=attempt["token"], outcome=outcome, **more))

    def allocations(self) -> dict[str, dict[str, Any]]:
        found = self.node.request("consensus", Query("allocations", {}))
        return {record["allocation_id"]: record for record in found["allocations"]}
