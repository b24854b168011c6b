"""Watches the memory of this host's devices: ends work that overdraws its ``gpu_memory``, tells of ungranted use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from time import time
from typing import Any

from actorgrid.errors import ActorGridError
from actorgrid.supervisors.server import Server

from ..ledger.client import LedgerClient
from ..work.messages import EndOverdrawn, EndUngranted, OwnersOf
from .device_users import DeviceUsers, MemoryGrant, Overdraw, pids_of
from .readings import Readings
from .ungranted_policy import EndStranger, UngrantedPolicy, Whose

OWNERS_S = 5.0
SHOWN_MAX = 32


class MemoryWatch:
    """Judges each sample of *server*'s devices: what is in ``users`` is of the last one."""

    def __init__(self, server: Server, ledger: LedgerClient) -> None:
        self.users = DeviceUsers()
        self.policy = UngrantedPolicy()
        self.ended_total = 0
        self.on_looked: Callable[[dict[str, Readings], bool], None] = lambda _readings, _known: None
        """Called with the devices of each sample once it is known whose processes are on them, and whether it is."""
        self.own_pids: Callable[[], frozenset[int]] = frozenset
        """Processes of the agent's own that have memory on devices: neither work nor strangers."""
        self._fresh: set[str] = set()
        self._server = server
        self._ledger = ledger
        self._readings: dict[str, Readings] = {}
        self._looking = False
        self._again = False
        self._told: set[tuple[str, int]] = set()

    def take(self, readings: dict[str, Readings]) -> None:
        """Look at the next sample of some devices. One that comes while the last is looked at is looked at after it."""
        self._readings.update(readings)
        self._fresh.update(readings)
        if self._server.host.settings.gpus.memory_watch == "off":
            self._looked(self._readings, known=False)
            return
        if not any(sample.processes for sample in self._readings.values()):
            self.users.take({}, {}, self._grants(), 0)
            self._take_ungranted()
            self._looked(self._readings, known=True)
            return
        self._again = True
        if not self._looking:
            self._looking = True
            self._server.spawn(self._look())

    async def _look(self) -> None:
        try:
            while self._again:
                self._again = False
                readings = dict(self._readings)
                own = self.own_pids()
                pids = tuple(pid for pid in pids_of(readings) if pid not in own)
                owners = await self._server.call("worker_manager", OwnersOf(pids), OWNERS_S)
                slack_mib = int(self._server.host.settings.gpus.memory_slack) >> 20
                self.users.take(readings, owners, self._grants(), slack_mib, own)
                self._looked(readings, known=True)
                self._take_ungranted()
                for overdraw in self.users.overdraws:
                    await self._act(overdraw)
        except ActorGridError as error:
            self._server.log.info("whose the processes on the devices are: %s", error)  # the next sample asks again
        finally:
            self._looking = False

    def _looked(self, readings: dict[str, Readings], *, known: bool) -> None:
        fresh, self._fresh = self._fresh, set()
        self.on_looked({uuid: readings[uuid] for uuid in fresh if uuid in readings}, known)

    def _grants(self) -> list[MemoryGrant]:
        own = self._server.host.host_id
        return [
            MemoryGrant(work_id, tuple(record["gpu_uuids"]), record["gpu_memory_mib"] or None)
            for work_id, record in self._ledger.allocations.items()
            if record["host"] == own and record["gpu_uuids"]
        ]

    async def _act(self, overdraw: Overdraw) -> None:
        record = self._ledger.allocations.get(overdraw.work_id)
        if record is None:
            return
        index = record["gpu_indexes"][list(record["gpu_uuids"]).index(overdraw.uuid)]
        text = f"{overdraw.work_id} has {overdraw.used_mib} MiB of GPU {index}, and was granted {overdraw.granted_mib}"
        if self._server.host.settings.gpus.memory_watch == "report":
            self._server.log.warning("%s", text)
            return
        ask = EndOverdrawn(overdraw.work_id, int(index), overdraw.used_mib, overdraw.granted_mib)
        if await self._server.call("worker_manager", ask, OWNERS_S):
            self.ended_total += 1
            self._server.log.warning("%s: ended", text)

    def _take_ungranted(self) -> None:
        """Log processes that hold a device without a grant, each once, and have those ended that are to be."""
        now = {(process.uuid, process.pid) for process in self.users.ungranted}
        for process in self.users.ungranted:
            if (process.uuid, process.pid) not in self._told:
                whose = f"of {process.work_id}, which was not granted it" if process.work_id else "nobody's work here"
                self._server.log.warning("process %d has memory on %s and is %s", process.pid, process.uuid, whose)
        self._told = now
        settings, own = self._server.host.settings.gpus, self._server.host.host_id
        live = {work_id for work_id, record in self._ledger.allocations.items() if record["host"] == own}
        seen = [*self.users.ungranted, *self.users.gone]
        now_s, grace_s = self._server.runtime.boottime(), settings.ungranted_grace_s
        for end in self.policy.take(seen, live, settings.ungranted, grace_s, now_s, time()):
            self._server.spawn(self._end_stranger(end))

    async def _end_stranger(self, end: EndStranger) -> None:
        ask = EndUngranted(end.pid, end.work_id, end.since_s, end.hard)
        try:
            why_not = str(await self._server.call("worker_manager", ask, OWNERS_S))
        except ActorGridError as error:
            why_not = f"nobody could look at it: {error.message}"
        self.policy.done(end, why_not, time())
        if why_not:
            self._server.log.warning(
                "process %d, which holds a GPU without a grant, is left alone: %s", end.pid, why_not
            )
        else:
            how = "killed" if end.hard else "told to end"
            self._server.log.warning("process %d, which holds a GPU without a grant, is %s", end.pid, how)

    def figures(self) -> dict[str, float]:
        """The figures for ``/metrics``."""
        return {
            "gpu_processes_ungranted": float(len(self.users.ungranted)),
            "gpu_processes_left_over": float(self.policy.count(Whose.ENDED_WORK)),
            "gpu_processes_gone": float(self.policy.count(Whose.GONE)),
            "gpu_ungranted_ended_total": float(self.policy.ended_total),
            "gpu_overdraws_ended_total": float(self.ended_total),
        }

    def status(self) -> dict[str, Any]:
        """Who uses the devices, as ``actorgrid inspect`` shows it."""
        return {
            "by_work_mib": dict(list(self.users.by_work.items())[:SHOWN_MAX]),
            "high_water_mib": dict(list(self.users.high_water_mib.items())[:SHOWN_MAX]),
            "ungranted": [asdict(process) for process in self.users.ungranted[:SHOWN_MAX]],
            "gone": [asdict(process) for process in self.users.gone[:SHOWN_MAX]],
            "ungranted_events": [asdict(event) for event in list(self.policy.events)[-SHOWN_MAX:]],
            "ended_total": self.ended_total,
            "ungranted_ended_total": self.policy.ended_total,
        }
