"""The isolation of work on this host, for WorkerManager: what it can, who has which uid, how attempts are apart."""

from __future__ import annotations

import os

from actorgrid.access import tenant_of
from actorgrid.actors.ledger.client import LedgerClient
from actorgrid.actors.ledger.isolation_records import KeptApartRecord
from actorgrid.actors.ledger.kept_apart import (
    level_of,
    level_of_worker,
    wanted_level,
    wanted_of_user,
    why_worker_not_full,
)
from actorgrid.actors.ledger.record_types import AllocationRecord, JobRecord
from actorgrid.errors import IsolationNotGiven
from actorgrid.isolation_words import KERNEL
from actorgrid.supervisors.server import Server

from ..containers_apart import runtimes_apart
from ..live_attempt import LiveAttempt
from ..mps_variables import IN_CONTAINER, IN_GANG, may_join, mps_variables
from ..work_records import WorkSpec
from ..zygote_link import ZygoteLink
from .device_nodes import all_nodes_known
from .levels import CPU_AT_BASIC, DISK_WATCH, kept_apart
from .plan import keep_apart
from .probes import Means
from .uids import WorkUids

LOOK_AGAIN_S = 0.2


class WorkIsolation:
    """Of one host."""

    def __init__(self, server: Server, zygote: ZygoteLink) -> None:
        self._server, self._zygote = server, zygote
        self._uids = WorkUids(server.host.paths.data_dir)

    def is_wanted_full(self, job: JobRecord) -> bool:
        """Whether the work of *job* is to have a uid of its user's, and so no process that others had.

        Before the means are known as much is taken for possible as there may be.
        """
        asks = bool((job.get("resources") or {}).get("min_isolation"))
        return wanted_level(self._kept(self._zygote.means, with_nodes=asks), job) == "full"

    async def kept_apart(self) -> KeptApartRecord:
        """What this host says of how it keeps work apart, once that has been tried. Raises WorkerLost."""
        await self._zygote.tried()
        return self._kept(self._zygote.means)

    async def mps_of(self, job: JobRecord, allocation: AllocationRecord) -> dict[str, str]:
        """As ``mps_variables``, of an attempt of *job*. Raises IsolationNotGiven, DiskFull, WorkerLost.

        Its daemon has to have the uid that the attempt will have: that is known before it asks for one.
        """
        if not may_join(self._server, allocation):
            return {}
        if "container" in job:
            return await mps_variables(self._server, allocation, why_not=IN_CONTAINER)
        uid = 0
        if os.geteuid() == 0 and self.is_wanted_full(job):
            kept = await self.kept_apart()
            uid = self._uids.uid_of(job["user_id"]) if level_of(kept, job, mps=True) == "full" else 0
        in_gang = uid and allocation["owner"].get("rank") is not None
        return await mps_variables(self._server, allocation, uid, why_not=IN_GANG if in_gang else "")

    async def keep(self, spec: WorkSpec, job: JobRecord, *, mps: bool = False) -> None:
        """Add to the spec of an attempt how it is kept apart; *mps*: it has a share under MPS.

        Raises IsolationNotGiven, DiskFull, WorkerLost.
        """
        # Nothing waits for it that does not ask for it: a zygote that starts may take long.
        means = self._zygote.means
        kept = self._kept(means)
        if wanted_level(kept, job) == "full" or (job.get("resources") or {}).get("min_isolation"):
            await self._zygote.tried()
            if means is None:
                means = self._zygote.means
                kept = self._kept(means)
        missing = means.missing() if means is not None else []
        level = keep_apart(
            spec,
            job,
            kept,
            self._server.host.paths,
            self._uids,
            missing="; ".join(missing) or "this host cannot",
            mps=mps,
            default_cwd=not job.get("cwd") and "working_dir" not in spec,
        )
        limit = self._server.host.settings.work.cpu_limit
        if limit == "granted" or (limit == "auto" and level == "full"):
            spec["cpu_milli"] = (job.get("resources") or {}).get("cpu_milli", 0)
        if "container" in spec and kept["levels"].get(level, {}).get("cpu") != KERNEL:
            spec.pop("cpu_milli", None)  # its runtime is asked for it, and fails where it cannot

    def may_be_full(self, user: str) -> bool:
        """Whether workers of that user's sessions are to have a uid of its own, as far as that is known yet."""
        return wanted_of_user(self._kept(self._zygote.means), user) == "full"

    async def uid_of_worker(self, user: str) -> int:
        """The uid that workers of that user's sessions have from their start; 0: the agent's, they are not kept apart.

        Raises IsolationNotGiven where the setting is ``full`` and they cannot have that; DiskFull, WorkerLost.
        """
        await self._zygote.tried()
        means, kept = self._zygote.means, self._kept(self._zygote.means)
        if level_of_worker(kept, user) == "full":
            return self._uids.uid_of(user)
        if kept["setting"] == "full":
            missing = "; ".join(means.missing()) if means is not None else ""
            raise IsolationNotGiven(
                "workers of sessions cannot be kept apart here as this host keeps all work",
                asked="work.isolation = full",
                found=why_worker_not_full(kept) if "full" in kept["levels"] else missing,
                hint="run it as a job: durable=True, or client.run",
            )
        return 0

    async def until_alone(self, attempt: LiveAttempt, ledger: LedgerClient) -> None:
        """Wait until no work of another tenant that was granted before has anything here, where all have one uid.

        Returns also when its time to begin is over, or it has been taken back: whoever calls looks at that.
        """
        while (other := self._tenant_before(attempt.directory.attempt_id, ledger)) is not None:
            attempt.waits_for = f"work of tenant {other} to end: its host has one uid for all, and takes one at a time"
            if self._server.runtime.boottime() >= attempt.start_by:
                return
            await self._server.sleep(LOOK_AGAIN_S)

    def _tenant_before(self, attempt_id: str, ledger: LedgerClient) -> str | None:
        if os.geteuid() == 0 or self._server.host.settings.work.isolation not in ("auto", "full"):
            return None
        own = ledger.allocations.get(attempt_id)
        if own is None:
            return None
        tenant = tenant_of(own["user_id"])
        # Only those granted before: two that wait for each other would wait for good.
        others = (
            tenant_of(each["user_id"])
            for each in ledger.allocations.values()
            if each["host"] == own["host"] and "behind" not in each and each["token"] < own["token"]
        )
        return next((other for other in others if other != tenant), None)

    def _kept(self, means: Means | None, *, with_nodes: bool = True) -> KeptApartRecord:
        """*with_nodes*: look at the nodes of GPUs, which each host's ``/dev`` has to be read for; by what they say a
        level may give less, but whoever asks for nothing has the same level."""
        setting = self._server.host.settings.work.isolation
        if means is None:
            return kept_apart(setting, "full", {}, self._containers())
        work = self._server.host.settings.work
        held = {**means.held, DISK_WATCH: bool(work.disk_bytes_max or work.disk_free_min_bytes)}
        containment = self._zygote.containment
        if containment is None or containment.kind != "cgroup":
            held = {name: has and not name.startswith("cgroup_") for name, has in held.items()}
        if work.cpu_limit == "none":
            held = {**held, "cgroup_cpu": False}
        elif work.cpu_limit == "granted":
            held = {**held, CPU_AT_BASIC: True}
        if with_nodes and held.get("cgroup_devices") and not all_nodes_known():
            held = {**held, "cgroup_devices": False}
        return kept_apart(setting, means.best, held, self._containers())

    def _containers(self) -> tuple[str, ...]:
        """The runtimes that have containers at full: they are started by root."""
        if os.geteuid() != 0:
            return ()
        return runtimes_apart(self._server.host.settings.work.containers, os.environ.get("PATH", os.defpath))
