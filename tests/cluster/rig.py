"""A host's cluster servers in one process, on a clock that stands still until told, with the real servers they ask."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

from actorgrid.actors.consensus.actor import Consensus
from actorgrid.actors.gpu.coordinator import GPUCoordinator
from actorgrid.actors.host.context import HostContext
from actorgrid.actors.ledger.commands import ReleaseLease
from actorgrid.actors.ledger.messages import Propose, Query
from actorgrid.actors.replication.actor import DistributedState
from actorgrid.actors.work.messages import AttachLease, DetachLease
from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.server import Server, handles

KINDS: tuple[type[Server], ...] = (Consensus, DistributedState, GPUCoordinator)


class Workers(Server):
    """Stands for WorkerManager, whose processes are not the subject: it attaches any lease and lets go when told."""

    name = "worker_manager"

    def start(self) -> None:
        self.attached: list[str] = []
        self._seq = itertools.count(1)

    @handles(AttachLease)
    def _attach(self, request: AttachLease) -> dict[str, Any]:
        self.attached.append(request.lease_id)
        return {"lease_id": request.lease_id, "worker_id": f"worker-of-{request.lease_id}"}

    @handles(DetachLease)
    async def _detach(self, request: DetachLease) -> None:
        command = ReleaseLease(at=time.time(), lease_id=request.lease_id)
        await self.call("consensus", Propose(command, "workers", next(self._seq)))


def resources(gpus: float = 0.0, cpu_milli: int = 100) -> dict[str, Any]:
    return {
        "gpus": gpus,
        "gpu_count": 0 if not gpus else max(1, int(gpus)),
        "gpu_milli": 1000 if gpus >= 1 else round(gpus * 1000),
        "gpu_memory_mib": 0,
        "gpu_models": [],
        "gpu_affinity": [],
        "cpu_milli": cpu_milli,
        "memory_mib": 0,
    }


def job(job_id: str, gpus: float = 0.0, depends_on: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    needs = {"resources": resources(gpus), "pool": None, "depends_on": list(depends_on)}
    return {"job_id": job_id, **needs, **more}


class Rig:
    """One host with two GPUs. ``propose`` stands for every other server that changes the ledger."""

    def __init__(self, folder: Path) -> None:
        self.settings = Settings()
        self.settings.gpus.source = "simulated:2xH100-80GB"
        paths = HostPaths(folder)
        paths.make()
        self.host = HostContext(paths, self.settings, "host-a", "alpha", 1, "boot-1")
        self.node = InlineNode()
        self._seq = itertools.count(1)
        for kind in (*KINDS, Workers):
            self.node.add(kind, self.host)
        self.node.run_until(lambda: self.node.servers["gpu_coordinator"].status()["registered"], 30.0)

    def add(self, *kinds: type[Server]) -> Any:
        """Start servers; gives the last."""
        for kind in kinds:
            server = self.node.add(kind, self.host)
        self.node.settle()
        return server

    def close(self) -> None:
        for name in ("gpu_coordinator", "distributed_state", "consensus"):
            server = self.node.servers.pop(name, None)
            if server is not None:
                server.stop("test over")
        self.node._selector.close()

    def manager(self, message: Any, timeout_s: float = 60.0) -> Any:
        return self.node.request("cluster_manager", message, timeout_s)

    def balancer(self, message: Any, timeout_s: float = 60.0) -> Any:
        return self.node.request("load_balancer", message, timeout_s)

    def propose(self, kind: str, **fields: Any) -> Any:
        command = {"v": 1, "at": time.time(), "type": kind, **fields}
        return self.node.request("consensus", Propose(command, "test", next(self._seq))).result

    def job(self, job_id: str) -> dict[str, Any]:
        record: dict[str, Any] = self.node.request("consensus", Query("job", {"job_id": job_id}))
        return record

    def until_state(self, job_id: str, state: str) -> None:
        def there() -> bool:
            return bool(self.job(job_id)["state"] == state)

        for _ in range(200):
            if there():
                return
            self.node.advance(0.05)
        raise AssertionError(f"{job_id} is {self.job(job_id)['state']}, not {state}")

    def end(self, job_id: str, outcome: str = "succeeded", **more: Any) -> None:
        self.until_state(job_id, "placed")
        attempt = self.job(job_id)["attempts"][-1]
        fields = {"attempt_id": attempt["attempt_id"], "token": attempt["token"], "outcome": outcome}
        self.propose("end_attempt", **fields, **more)
        self.node.settle()

    def allocations(self) -> set[str]:
        found = self.node.request("consensus", Query("allocations"))["allocations"]
        return {record["allocation_id"] for record in found}
