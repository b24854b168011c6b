"""Ends work of this host that leaves its devices idle for longer than it said it may (``stop_when_idle_s``)."""

from __future__ import annotations

from collections.abc import Mapping

from actorgrid.errors import ActorGridError
from actorgrid.supervisors.server import Server

from ..ledger.client import LedgerClient
from ..work.messages import EndIdle
from .idle_tracker import IdleTerms, IdleTracker

END_S = 5.0


class IdleWatch:
    """Judges each sample of *server*'s devices."""

    def __init__(self, server: Server, ledger: LedgerClient) -> None:
        self.ended_total = 0
        self._server = server
        self._ledger = ledger
        self._tracker = IdleTracker()

    def take(self, utilization: Mapping[str, float | None]) -> None:
        """Look at the next sample: how busy each device is, in percent."""
        for idle in self._tracker.take(self._terms(), utilization, self._server.runtime.boottime()):
            self._server.spawn(self._end(idle.work_id, idle.idle_s))

    def _terms(self) -> list[IdleTerms]:
        own = self._server.host.host_id
        found = []
        for work_id, record in self._ledger.allocations.items():
            if record["host"] != own or not record["gpu_uuids"]:
                continue
            job = self._ledger.jobs.get(str(record["owner"].get("job_id") or ""))
            limit_s = None if job is None else job.get("stop_when_idle_s")
            if isinstance(limit_s, int | float) and limit_s > 0:
                found.append(IdleTerms(work_id, tuple(record["gpu_uuids"]), float(limit_s)))
        return found

    async def _end(self, work_id: str, idle_s: float) -> None:
        try:
            if await self._server.call("worker_manager", EndIdle(work_id, idle_s), END_S):
                self.ended_total += 1
                self._server.log.warning("%s is ended: its GPUs were idle for %.0f s", work_id, idle_s)
        except ActorGridError as error:
            self._server.log.info("cannot end %s, which is idle: %s", work_id, error)  # the next sample asks again
