"""Records to propose, a server that follows, a host whose Consensus can be stopped, killed and started."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any, ClassVar

from actorgrid.actors.consensus.actor import Consensus
from actorgrid.actors.host.context import HostContext
from actorgrid.actors.ledger.client import LedgerClient
from actorgrid.actors.ledger.messages import Applied, JobsWanted, Propose, Query
from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.errors import LogFailed
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.server import Server, handles

AT = 1_700_000_000.0


def host_record(host_id: str = "h1", incarnation: int = 1, gpus: int = 2, **more: Any) -> dict[str, Any]:
    devices = [
        {"uuid": f"GPU-{host_id}-{index}", "index": index, "model": "H100", "memory_mib": 80_000, "vendor": "nvidia"}
        for index in range(gpus)
    ]
    return {
        "host_id": host_id,
        "hostname": host_id,
        "incarnation": incarnation,
        "cpu_milli": 8_000,
        "memory_mib": 32_000,
        "devices": devices,
        **more,
    }


def job_record(job_id: str, **more: Any) -> dict[str, Any]:
    resources = {"gpus": 0.5, "gpu_count": 1, "gpu_milli": 500, "gpu_memory_mib": 1_000, "cpu_milli": 1_000}
    resources.update(more.pop("resources", {}))
    return {"job_id": job_id, "command": ["true"], "resources": resources, **more}


def make_context(folder: Path, boot_id: str = "boot-1", **performance: Any) -> HostContext:
    settings = Settings()
    for key, value in {"min_free_bytes": 0, "reserve_bytes": 65_536, **performance}.items():
        setattr(settings.performance, key, value)
    paths = HostPaths(folder)
    paths.ledger_dir.mkdir(parents=True, exist_ok=True)
    return HostContext(paths, settings, "h1", "h1", 1, boot_id)


class Follower(Server):
    """Any server that follows the ledger."""

    name = "follower"
    jobs: ClassVar[JobsWanted] = "all"

    async def start(self) -> None:
        self.heard: list[Applied] = []
        self.snapshots = 0
        self.ledger = LedgerClient(self, self._on_snapshot, self.heard.append, jobs=self.jobs)
        await self.ledger.start()

    def _on_snapshot(self, _snapshot: Any) -> None:
        self.snapshots += 1

    def peer_restarted(self, name: str) -> None:
        self.ledger.peer_restarted(name)

    @handles(Applied)
    def _applied(self, message: Applied) -> None:
        self.ledger.applied(message)


class Host:
    """A node with a Consensus on it that can be stopped, killed and started."""

    def __init__(self, folder: Path, **performance: Any) -> None:
        self.folder = folder
        self.context = make_context(folder, **performance)
        self.node = InlineNode()
        self.consensus: Consensus | None = None
        self._seq = itertools.count(1)
        self._session = os.urandom(6).hex()

    @property
    def live(self) -> Consensus:
        assert self.consensus is not None
        return self.consensus

    def start(self) -> Consensus:
        server = self.node.add(Consensus, self.context)
        assert isinstance(server, Consensus)
        self.consensus = server
        return server

    def kill(self) -> None:
        """Gone without a goodbye; only what the kernel closes for a dead process is closed."""
        server = self.live
        self.node.remove("consensus")
        # Its timers are still in the node's queue: a dead process has none.
        voter = server._replica
        server._failed = voter.failure = LogFailed("killed")
        server.runtime.unwatch(voter.fileno())
        voter._writer.failed = LogFailed("killed")
        voter._writer.close()
        voter.log.close()
        voter._store.close()
        self.consensus = None

    def stop(self) -> None:
        self.live.stop("test")
        self.node.remove("consensus")
        self.consensus = None

    def propose(self, command: dict[str, Any], session: str = "", seq: int | None = None) -> Any:
        return self.node.request(
            "consensus", Propose(command, session or self._session, next(self._seq) if seq is None else seq)
        )

    def query(self, kind: str, **args: Any) -> Any:
        return self.node.request("consensus", Query(kind, args))
