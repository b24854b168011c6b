"""FaultDetector: hears every server's beats, reads the host's disk and memory, and says how it is.

Health goes to the shared state under ``health/HOST_ID`` when it changes, so that every host may read it.
"""

from __future__ import annotations

import os
from time import time
from typing import Any

import psutil

from actorgrid.supervisors.envelope import Beat
from actorgrid.supervisors.server import Server, handles

from ..consensus.messages import Applied
from ..consensus.mirror import LedgerMirror
from ..replication.messages import Mutate
from .core import Vitals
from .messages import HealthReport

EXPECTED = (
    "consensus",
    "distributed_state",
    "gpu_coordinator",
    "worker_manager",
    "cluster_manager",
    "load_balancer",
    "fault_detector",
    "gateway",
)
LOW_MEMORY_BYTES = 256 * 2**20
PAUSE_FACTOR = 3.0
"""A check this many intervals late means that the whole host (or at least we) stood still."""


class FaultDetector(Server):
    """Answers HealthReport; keeps only the latest of everything."""

    name = "fault_detector"

    async def start(self) -> None:
        """Nobody is judged before a full patience has passed."""
        self._mirror = LedgerMirror(self)
        await self._mirror.start()
        interval_s = self.host.settings.monitoring.beat_interval_s
        now_s = self.runtime.monotonic()
        self._interval_s = interval_s
        self._vitals = Vitals(EXPECTED, interval_s, now_s)
        self._last_check_s = now_s
        self._published: tuple[str, tuple[str, ...]] | None = None
        self._pauses = 0
        self.every(interval_s, self._check)

    def peer_restarted(self, name: str) -> None:
        """Follow the ledger's settings again when it comes back."""
        self._mirror.peer_restarted(name)

    @handles(Applied)
    def _applied(self, message: Applied) -> None:
        self._mirror.applied(message)

    @handles(Beat)
    def _beat(self, beat: Beat) -> None:
        self._vitals.beat(beat.name, beat.pid, beat.handled, self.runtime.monotonic())

    @handles(HealthReport)
    def _report(self, _request: HealthReport) -> dict[str, Any]:
        self._vitals.beat(self.name, os.getpid(), self.handled, self.runtime.monotonic())
        return self._vitals.report(self.runtime.monotonic())

    async def _check(self) -> None:
        now_s = self.runtime.monotonic()
        if now_s - self._last_check_s > PAUSE_FACTOR * self._interval_s:
            self._pauses += 1
            self._vitals.resume(now_s)
        self._last_check_s = now_s
        self._vitals.beat(self.name, os.getpid(), self.handled, now_s)
        self._vitals.host_problems = self._read_host()
        report = self._vitals.report(now_s)
        shown = (report["health"], tuple(report["problems"]))
        if shown == self._published:
            return
        value = {"health": shown[0], "problems": list(shown[1]), "at": time()}
        await self.call("distributed_state", Mutate(f"health/{self.host.host_id}", "lww_register", "put", value))
        self._published = shown

    def _read_host(self) -> list[str]:
        problems = []
        disk = os.statvfs(self.host.paths.data_dir)
        free = disk.f_bavail * disk.f_frsize
        floor = self.host.settings.performance.min_free_bytes
        if free < floor:
            problems.append(f"the data directory's disk has {free >> 20} MiB free, new work needs {floor >> 20} MiB")
        available = psutil.virtual_memory().available
        if available < LOW_MEMORY_BYTES:
            problems.append(f"only {available >> 20} MiB of host memory are available")
        return problems

    def metrics(self) -> dict[str, float]:
        """Counts of silent servers, restarts seen, and pauses of the host."""
        return {
            "silent_servers": len(self._vitals.silent(self.runtime.monotonic())),
            "server_restarts_total": sum(vital.restarts for vital in self._vitals.servers.values()),
            "host_pauses_total": self._pauses,
        }

    def status(self) -> dict[str, Any]:
        """The health report."""
        return self._vitals.report(self.runtime.monotonic())
