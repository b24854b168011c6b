"""Cuts this host's GPUs into MIG instances and puts them together: for the operator, and for work that waits.

Nothing of what is changed is given out meanwhile: first the ledger is told to give out nothing of it, then what it has
given out is looked at, then the driver is asked, and then the ledger is told what there is. So whoever was faster, the
grant or the cut, the other one does not happen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from time import time
from typing import Any

from actorgrid.actors.ledger.command import cluster_version
from actorgrid.actors.ledger.record_checks import PARTS_SINCE
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.demand import Demand
from actorgrid.errors import ActorGridError, BadRequest, CallTimeout, HostError, NotFound, NotSupported, WrongState
from actorgrid.models import JobState
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import Server

from ..ledger.client import LedgerClient
from .host_registration import HostRegistration
from .mig_journal import MigBefore, MigJournal
from .mig_policy import (
    WAITING_MAX,
    CutGpu,
    DropUnfinished,
    JoinInstance,
    LeaveGpu,
    OwnParts,
    WaitingForGpu,
    looked_at,
    next_change,
)
from .mig_refusals import MigRefusals
from .mig_report import MigGpu

TELL_WAIT_S = 20.0
LOOK_S = 0.05
SCANNED_MAX = 2_000
"""Jobs that wait for GPUs and are gone through for those that ask for an instance."""
RETRY_S = 30.0
"""After a refusal of the driver the policy asks it again that much later."""


class MigControl:
    """Changes what the GPUs of *server*'s host are cut into, one change at a time."""

    def __init__(self, server: Server, ledger: LedgerClient, registration: HostRegistration) -> None:
        self._server = server
        self._ledger = ledger
        self._registration = registration
        self._inventory = registration.inventory
        self._journal = MigJournal(server.host.paths.mig_gpus_file)
        self._changing = False
        self._idle_since: dict[str, float] = {}
        self._retry_at = 0.0
        self.refused = ""
        """Why the policy's last change did not come to be; empty: it did."""
        registration.joinable = self._joinable
        self._refusals = MigRefusals()
        self._driver_said = ""
        self.cut_total = 0
        self.joined_total = 0

    # -- what there is

    def listed(self) -> list[dict[str, Any]]:
        """This host's GPUs that can be cut, with who has what of them, as ``actorgrid gpus mig list`` shows it."""
        indexes = {device.uuid: device.index for device in self._inventory.devices}
        return [
            {
                "gpu": gpu.uuid,
                "index": indexes.get(gpu.uuid),
                "model": gpu.model,
                "pcie_bus_id": gpu.pcie_bus_id,
                "enabled": gpu.enabled,
                "pending": gpu.pending,
                "jobs": self.holders(gpu.uuid),
                "instances": [
                    {
                        "uuid": each.uuid,
                        "index": indexes.get(each.uuid),
                        "profile": each.profile,
                        "memory_bytes": each.memory_mib * 2**20,
                        "made_for_work": each.uuid in self._own(gpu),
                        "jobs": self.holders(each.uuid),
                    }
                    for each in gpu.instances
                ],
                "profiles": [
                    {"name": each.name, "memory_bytes": each.memory_mib * 2**20, "most": each.most, "room": each.room}
                    for each in gpu.profiles
                ],
            }
            for gpu in self._inventory.mig_gpus()
        ]

    def status(self) -> dict[str, Any]:
        """What was cut for work, as ``actorgrid inspect`` shows it."""
        before = {uuid: {"enabled": one.enabled, "kept": list(one.kept)} for uuid, one in self._journal.before.items()}
        counts = {"cut_total": self.cut_total, "joined_total": self.joined_total}
        return {"before": before, "refused": self.refused, "changing": self._changing, **counts}

    def _own(self, gpu: MigGpu) -> frozenset[str]:
        """The instances of *gpu* that were made for work."""
        before = self._journal.before.get(gpu.uuid)
        return frozenset() if before is None else before.own(gpu.instances)

    def _joinable(self) -> dict[str, MigGpu]:
        """The instances, by UUID, of GPUs in which there are none but those made for work."""
        return {
            each.uuid: gpu
            for gpu in self._inventory.mig_gpus()
            if len(self._own(gpu)) == len(gpu.instances)
            for each in gpu.instances
        }

    def holders(self, uuid: str) -> list[str]:
        """The work that has that device, or a part of it."""
        own = self._server.host.host_id
        return sorted(
            str(record["owner"].get("job_id") or record["owner"].get("lease_id") or id)
            for id, record in self._ledger.allocations.items()
            if record["host"] == own and uuid in (*record["gpu_uuids"], *record.get("gpu_parents", ()))
        )

    # -- for the operator

    async def create(self, uuid: str, profile: str) -> str:
        """Make an instance of *profile* in the GPU *uuid*; its UUID.

        Raises NotFound, BadRequest for a profile that it has not, WrongState while work is on it, NotSupported while a
        host of an earlier version is in the cluster, HostError for what the driver refuses.
        """
        gpu = self._gpu(uuid)
        _check_profile(gpu, profile)
        with self.one_at_a_time():
            before = self._journal.before.get(uuid)
            # Noted as what is made for work: whoever asked is told of a failure, and what a crash left goes again.
            self._journal.keep(uuid, self._before(gpu, profile))
            try:
                made = await self._create(gpu, profile)
            except ActorGridError:
                self._forget_untouched(uuid)
                raise
            if before is None:
                self._journal.forget(uuid)
            else:
                self._journal.keep(uuid, replace(before, kept=(*before.kept, made)))
            return made

    async def destroy(self, instance: str) -> None:
        """Take away an instance; with the last one MIG goes off, where it was not on before. Raises as ``create``."""
        found = [gpu for gpu in self._inventory.mig_gpus() if any(each.uuid == instance for each in gpu.instances)]
        if not found:
            known = [each.uuid for gpu in self._inventory.mig_gpus() for each in gpu.instances]
            raise NotFound(
                "this host has no such instance",
                asked=instance,
                found=", ".join(known[:8]) or "no instances",
                hint="actorgrid gpus mig list",
            )
        with self.one_at_a_time():
            await self._destroy(found[0], instance)

    def _gpu(self, uuid: str) -> MigGpu:
        gpus = {gpu.uuid: gpu for gpu in self._inventory.mig_gpus()}
        if uuid not in gpus:
            raise NotFound(
                "this host has no such GPU that can be cut",
                asked=uuid,
                found=", ".join(list(gpus)[:8]) or "none that has MIG",
                hint="actorgrid gpus mig list",
            )
        return gpus[uuid]

    @contextmanager
    def one_at_a_time(self) -> Iterator[None]:
        """Keep other changes of what this host's GPUs are cut into away. Raises WrongState during one."""
        if self._changing:
            raise WrongState("a GPU of this host is being cut", asked="another change", hint="ask again in a moment")
        self._changing = True
        try:
            yield
        finally:
            self._changing = False

    # -- how it is done

    async def _create(self, gpu: MigGpu, profile: str) -> str:
        _check_profile(gpu, profile)
        # Of one that is cut already nothing is given out as a whole: there is nothing to withhold.
        withheld = [] if gpu.instances else [gpu.uuid]
        await self.withhold(withheld)
        try:
            if not gpu.enabled:
                await self._ask(gpu.uuid, "mode", "on")
            try:
                made = await self._ask(gpu.uuid, "create", profile)
                await self._until_listed(made)
                return made
            except HostError:
                if not gpu.enabled and self._inventory.can_cut:  # else the next probe has it done: see ``look``
                    await self._ask(gpu.uuid, "mode", "off")
                raise
        finally:
            self.release(withheld)

    async def _destroy(self, gpu: MigGpu, instance: str) -> None:
        await self.withhold([instance])
        try:
            await self._ask(gpu.uuid, "destroy", instance)
            left = next((each for each in self._inventory.mig_gpus() if each.uuid == gpu.uuid), gpu)
            before = self._journal.before.get(gpu.uuid)
            if not left.instances and not (before is not None and before.enabled):
                await self._ask(gpu.uuid, "mode", "off")
            if before is not None and not self._own(left):
                self._journal.forget(gpu.uuid)
            elif before is not None and before.made is not None and instance in before.made:
                # Before the driver gives its UUID to another one, which somebody else makes in its place.
                self._journal.keep(
                    gpu.uuid, replace(before, made=tuple(each for each in before.made if each != instance))
                )
        finally:
            self.release([instance])

    async def withhold(self, uuids: Sequence[str]) -> None:
        """Return once the ledger gives out nothing of these, and has not.

        Raises WrongState, NotSupported, CallTimeout, HostError while the ledger does not know this host.
        """
        if cluster_version(self._ledger.members) < PARTS_SINCE:
            raise NotSupported(
                "not all hosts of the cluster know what a part of a GPU is",
                asked="a GPU to be cut",
                found=f"version {cluster_version(self._ledger.members)} of the ledger",
                hint="upgrade the others first: actorgrid hosts shows their versions",
            )
        await self._registration.until_registered(TELL_WAIT_S)  # before, the copy may lack what was granted
        try:
            self._registration.withheld.update(uuids)
            if uuids:
                self._registration.tell()
            deadline = self._server.runtime.monotonic() + TELL_WAIT_S
            while not self._is_withheld(uuids):
                if self._server.runtime.monotonic() > deadline:
                    raise CallTimeout("the ledger did not take it", asked="nothing of a GPU to be given out")
                await self._server.sleep(LOOK_S)
            # The copy has all that was granted before that, and nothing is after it.
            if holders := [holder for uuid in uuids for holder in self.holders(uuid)]:
                raise WrongState(
                    "work is on it", asked="a GPU to be cut otherwise", found=", ".join(holders[:8]), hint="wait for it"
                )
        except ActorGridError:
            self.release(uuids)
            raise

    async def _until_listed(self, made: str) -> None:
        """Return once the ledger knows what was made, or after a while: else work would have more made for it."""
        deadline = self._server.runtime.monotonic() + TELL_WAIT_S
        while self._server.runtime.monotonic() < deadline and self._server.host.settings.gpus.mig != "off":
            own = self._ledger.hosts.get(self._server.host.host_id)
            if own is not None and any(device["uuid"] == made for device in own["devices"]):
                return
            await self._server.sleep(LOOK_S)

    def _is_withheld(self, uuids: Sequence[str]) -> bool:
        own = self._ledger.hosts.get(self._server.host.host_id)
        devices = {} if own is None else {device["uuid"]: device for device in own["devices"]}
        here = {device.uuid for device in self._inventory.devices}
        # One that is not listed is not given out either: with gpus.mig=off, instances are not. But one that this host
        # lists and the ledger does not know yet can be given out before it knows that nothing of it may.
        known = all(devices[uuid].get("cut") is True if uuid in devices else uuid not in here for uuid in uuids)
        return known and not self._registration.is_telling

    def release(self, uuids: Sequence[str]) -> None:
        """Have these be given out again, those of them that there are."""
        if uuids:
            self._registration.withheld.difference_update(uuids)
            self._registration.tell()

    async def _ask(self, uuid: str, change: str, what: str) -> str:
        """Have the driver do it; the UUID of what was made. Raises HostError."""
        waiter = Waiter()
        self._inventory.set_partitions(uuid, change, what, lambda why, made: waiter.set((why, made)))
        why, made = await waiter
        if why:
            self._driver_said = why
            raise HostError(
                "the driver did not cut the GPU otherwise",
                asked=f"{change} {what} on {uuid}",
                found=why,
                hint="to cut takes root, and nothing may run on it: nvidia-smi shows what does",
            )
        return str(made)

    # -- for work that waits

    def concerns(self, job: JobRecord | None) -> bool:
        """Whether a job that changed waits for an instance, which may have to be made."""
        if job is None or job["state"] != JobState.QUEUED or self._server.host.settings.gpus.mig != "dynamic":
            return False
        return any("MIG " in model for model in job["resources"].get("gpu_models", ()))

    def look(self, leases: Sequence[WaitingForGpu] = ()) -> None:
        """See whether work waits for an instance, or an instance for work; *leases*: what waits beside jobs."""
        self._withdraw()
        gpus, now = self._inventory.mig_gpus(), self._server.runtime.monotonic()
        is_dynamic = self._server.host.settings.gpus.mig == "dynamic"
        own = frozenset(uuid for gpu in gpus for uuid in self._own(gpu))
        left = [gpu for gpu in gpus if gpu.uuid in self._journal.before and not self._own(gpu)]
        drops = [DropUnfinished(gpu.uuid, name) for gpu in gpus for name in self._left_unfinished(gpu)]
        if self._changing or not gpus or not (is_dynamic or own or left or drops) or now < self._retry_at:
            return
        if not (self._registration.registered and self._inventory.can_cut):
            return  # who has what, or how the GPUs are, is not known yet, or not any more
        if drops:
            self._server.spawn(self._carry_out(drops[0]))
            return
        free = {uuid for uuid in own if not self.holders(uuid)}
        self._idle_since = {uuid: self._idle_since.get(uuid, now) for uuid in free}
        host = self._server.host.host_id
        parts = OwnParts(
            host,
            tuple(replace(gpu, profiles=()) if gpu.uuid in self._inventory.withdrawn else gpu for gpu in gpus),
            {uuid for uuid in self._registration.sampling.unhealthy() if uuid not in self._cut_and_empty(gpus)},
            own,
            {uuid: now - since for uuid, since in self._idle_since.items()},
        )
        ledger = self._ledger
        waiting = looked_at(self._jobs_waiting(), leases)
        change = next_change(
            parts, waiting, ledger.hosts, ledger.allocations.values(), frozenset(ledger.absent), is_dynamic
        )
        if change is not None or left:
            self._server.spawn(self._carry_out(change or LeaveGpu(left[0].uuid)))

    def _withdraw(self) -> None:
        """Have the ledger be told of no profile of a GPU that the driver does not cut: other hosts are to do it."""
        withdrawn = self._refusals.withdrawn(self._server.runtime.monotonic())
        if withdrawn != self._inventory.withdrawn:
            self._inventory.withdrawn = withdrawn
            self._inventory.settings_changed()

    def _cut_and_empty(self, gpus: Sequence[MigGpu]) -> set[str]:
        return {gpu.uuid for gpu in gpus if gpu.enabled and not gpu.instances}

    def _jobs_waiting(self) -> list[WaitingForGpu]:
        """The first of those that may start: for one that waits for something else, nothing is cut or held back."""
        jobs, now = self._ledger.jobs, time()
        found = (
            WaitingForGpu(id, Demand.of(job["resources"]))
            for id, job in jobs.items()
            if job["state"] == JobState.QUEUED
            and job["resources"].get("gpu_count")
            and job["not_before"] <= now
            and not any(name in jobs for name in job["depends_on"])
        )
        first = list(islice(found, SCANNED_MAX))
        # Those that ask for an instance are looked at however many whole GPUs others ask for before them.
        wanting = [each for each in first if each.wants_instance][: WAITING_MAX // 2]
        rest = [each for each in first if not each.wants_instance][: WAITING_MAX - len(wanting)]
        return [*wanting, *rest]

    def _left_unfinished(self, gpu: MigGpu) -> list[str]:
        """What a probe that died in the middle has left of an instance that was made here: room that nobody has."""
        before = self._journal.before.get(gpu.uuid)
        if before is None or not before.making:
            return []
        return [each.uuid for each in gpu.unfinished if each.profile == before.making and each.uuid not in before.kept]

    async def _carry_out(self, change: CutGpu | JoinInstance | LeaveGpu | DropUnfinished) -> None:
        self._driver_said = ""
        try:
            with self.one_at_a_time():
                gpu = self._gpu(change.gpu)
                if isinstance(change, JoinInstance):
                    await self._destroy(gpu, change.instance)
                    self.joined_total += 1
                    self._server.log.info("instance %s was put back into its GPU: nobody has it", change.instance)
                elif isinstance(change, LeaveGpu):
                    await self._leave(gpu)
                elif isinstance(change, DropUnfinished):
                    await self._ask(gpu.uuid, "destroy", change.name)
                    self._server.log.warning("%s of GPU %s was never finished: it is gone", change.name, gpu.uuid)
                elif self._journal.keep(gpu.uuid, before := self._before(gpu, change.profile)):
                    made = await self._create(gpu, change.profile)
                    self._refusals.cut(gpu.uuid)
                    self._journal.keep(gpu.uuid, replace(before, making="", made=(*(before.made or ()), made)))
                    self.cut_total += 1
                    self._server.log.info("instance %s, %s, was made for work that waits", made, change.profile)
            self.refused = ""
        except ActorGridError as error:
            self._retry_at = self._server.runtime.monotonic() + RETRY_S
            if str(error) != self.refused:
                self._server.log.warning("%s: %s", change, error)
            self.refused = str(error)
            if isinstance(change, CutGpu) and self._driver_said:
                self._refusals.refused(change.gpu, self._driver_said, self._server.runtime.monotonic())
                self._withdraw()
            self._forget_untouched(change.gpu)

    async def _leave(self, gpu: MigGpu) -> None:
        """Have a GPU be as it was before it was cut for work, and forget that: a crash, or a refusal, came between."""
        before = self._journal.before.get(gpu.uuid)
        if before is not None and gpu.enabled and not before.enabled and not gpu.instances:
            await self.withhold([gpu.uuid])
            try:
                await self._ask(gpu.uuid, "mode", "off")
            finally:
                self.release([gpu.uuid])
        self._journal.forget(gpu.uuid)

    def _before(self, gpu: MigGpu, making: str) -> MigBefore:
        """How *gpu* was before it was first cut, without the instances that are gone: drivers give a UUID again."""
        there = tuple(each.uuid for each in (*gpu.instances, *gpu.unfinished))
        before = self._journal.before.get(gpu.uuid)
        if before is None:
            return MigBefore(gpu.enabled, there, making, ())
        own = before.own(gpu.instances)
        # Whoever made the others: they were not made for work.
        return replace(
            before, kept=tuple(each for each in there if each not in own), making=making, made=tuple(sorted(own))
        )

    def _forget_untouched(self, uuid: str) -> None:
        """Take back the note of a GPU in which nothing was made after all, as far as that is known."""
        if not self._inventory.can_cut:
            return  # its probe was lost meanwhile: what the driver did of it, the next one tells
        gpu = next((each for each in self._inventory.mig_gpus() if each.uuid == uuid), None)
        before = self._journal.before.get(uuid)
        if gpu is None or before is None:
            return
        own = self._own(gpu)
        if gpu.enabled == before.enabled and not own:
            self._journal.forget(uuid)
        elif before.making:
            # What the driver made all the same is the agent's, and what comes from now on is not.
            self._journal.keep(uuid, replace(before, making="", made=tuple(sorted(own))))


def _check_profile(gpu: MigGpu, profile: str) -> None:
    """Raises BadRequest for a profile that *gpu* has not."""
    if gpu.profile(profile) is None:
        raise BadRequest(
            "the GPU has no such profile", asked=profile, found=", ".join(each.name for each in gpu.profiles)
        )
