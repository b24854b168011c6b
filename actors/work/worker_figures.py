"""What each pool worker of this host has done and takes: for people who look (``actorgrid inspect worker_manager``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .core import PoolWorker
from .process_state import ProcessUse, state_and_use


@dataclass(slots=True)
class WorkerFigures:
    """Of one worker; times are of the runtime's clock, in seconds."""

    started_at: float
    leases: int = 0
    """It has served so many."""
    busy_s: float = 0.0
    """It was leased for so long, the present lease left out."""
    lent_at: float | None = None


@dataclass(slots=True)
class PoolFigures:
    """Of all workers of the pools."""

    workers: dict[str, WorkerFigures] = field(default_factory=dict)
    idle_ended_total: int = 0
    memory_ended_total: int = 0

    def lent(self, worker_id: str, now: float) -> None:
        """A worker was handed to a lease."""
        known = self.workers.setdefault(worker_id, WorkerFigures(now))
        known.leases += 1
        known.lent_at = now

    def let_go(self, worker_id: str, now: float) -> None:
        """Its lease is over."""
        known = self.workers.get(worker_id)
        if known is not None and known.lent_at is not None:
            known.busy_s += now - known.lent_at
            known.lent_at = None

    def row(self, worker: PoolWorker, pid: int | None, now: float) -> dict[str, Any]:
        """What is shown of one worker. Memory and CPU time are of its process as it is now; ``None``: it is gone."""
        known = self.workers.get(worker.worker_id, WorkerFigures(now))
        use = use_of(pid)
        busy_s = known.busy_s + (now - known.lent_at if known.lent_at is not None else 0.0)
        return {
            "worker": worker.worker_id,
            "pool": worker.pool,
            "state": worker.state,
            "pid": pid,
            "lease": worker.lease_id,
            "age_s": round(now - known.started_at, 1),
            "leases": known.leases,
            "busy_s": round(busy_s, 1),
            "cpu_s": None if use is None else round(use.cpu_s, 2),
            "memory_bytes": None if use is None else use.rss_bytes,
            "memory_most_bytes": None if use is None else use.max_rss_bytes,
        }


def use_of(pid: int | None) -> ProcessUse | None:
    """What a process takes now; ``None``: there is none."""
    found = None if pid is None else state_and_use(pid)
    return None if found is None else found[1]
