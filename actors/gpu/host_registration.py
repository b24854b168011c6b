"""This host as the ledger knows it: its devices are found and sampled here, and registered whenever they are others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from time import time

from actorgrid.actors.ledger.command import cluster_version
from actorgrid.actors.ledger.commands import RegisterHost
from actorgrid.actors.ledger.isolation_records import KeptApartRecord
from actorgrid.actors.ledger.record_checks import PARTS_SINCE, WATCHED_SINCE
from actorgrid.actors.ledger.record_types import NO_HOST, DeviceRecord, HostFacts
from actorgrid.errors import ActorGridError, BadRequest, CallTimeout, HostError, LedgerRefused, StorageError
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import Server

from ..ledger.client import LedgerClient
from ..work.messages import IsolationAsked
from .device import Device, keep_indexes, unhealthy_in
from .device_closeness import near_in, near_texts
from .device_health import HealthIncident
from .device_listing import DeviceNow
from .device_score import HeatLimits
from .heat_watch import HeatWatch
from .host_capacity import host_cpu_milli, host_memory_mib
from .inventory import HostInventory
from .mig_report import MigGpu
from .placement_records import PlacementRecords
from .readings import Readings
from .sampling import HostSampling
from .watched_devices import WatchedDevices, dmem_in, mps_in, watched_in

RETRY_S = 1.0
ISOLATION_S = 30.0
"""For whoever runs work to try what the kernel allows: a zygote that starts on a busy machine takes long."""
WARM_BELOW_CELSIUS = 10.0
"""From so far below the first threshold on a warmer device comes after a cooler one."""
NOTHING_CUT = "MIG is on, and it is cut into no instance: actorgrid gpus mig create"
BEING_CUT = "it is being cut into MIG instances, or put together"
INDEXES_MAX = 512
"""Devices that are cut, and instances of them, whose indexes nobody else gets while the agent runs."""
STARTS_APART = 1_000
"""Registrations on their way from a process that ended; one at a time is."""
TELL_AGAIN_S = 5.0
"""A device that is unhealthy now and well then is told at most so often: each time is an entry of the ledger."""


class HostRegistration:
    """Registers the host of *server* with *ledger*, again whenever its devices change or their health does.

    *on_health* is told at once what happened to a device: what that means for new work cannot wait for a sample.

    ``problem`` says why it is not registered yet. *records* say whether it is, and what is given out of its devices.
    """

    def __init__(
        self,
        server: Server,
        ledger: LedgerClient,
        records: PlacementRecords,
        on_health: Callable[[list[HealthIncident]], None],
        on_readings: Callable[[dict[str, Readings]], None],
    ) -> None:
        host = server.host
        self.inventory = HostInventory(
            host.settings.gpus, host.host_id, server.runtime, self._changed, server.log, on_health, self._read
        )
        self._on_health = on_health
        self._on_readings = on_readings
        self.sampling = HostSampling(host.host_id, server.log, self._heat_limits)
        self.heat = HeatWatch(server, ledger, self.inventory, self._heat_changed)
        self.problem = ""
        self._server = server
        self._ledger = ledger
        self._records = records
        self._waiting: list[Waiter] = []
        self._registering = False
        self._stale = False
        self._tell_at = 0.0
        self._watched = WatchedDevices()
        self._told_version = 1
        self._told = 0
        self._indexes: dict[str, int] = {}
        self.joinable: Callable[[], Mapping[str, MigGpu]] = dict
        """The instances that are there for work alone, by UUID, with their GPUs: MigControl says it."""
        self.held_by_mps: Callable[[], frozenset[str]] = frozenset
        """The GPUs whose shares MPS holds to what they are: MpsDaemons says it."""
        self.held_by_kernel: Callable[[], frozenset[str]] = frozenset
        """Those of whose memory the kernel gives work no more than it was granted: KernelLimits says it."""
        self.withheld: set[str] = set()
        """Devices of which nothing may be given out, because they are about to be cut or put together."""
        self._kept_apart: KeptApartRecord | None = None
        self._near: dict[str, str] = {}
        self._near_of: object = None

    async def start(self) -> None:
        """Look for devices, follow the ledger, and register once both are there."""
        # Both at once: to look for devices takes its time, and so does the ledger.
        found = self.inventory.start()
        self._server.spawn(self._learn_isolation())
        await self._ledger.start()
        await found
        await self._register()

    @property
    def registered(self) -> bool:
        """Whether the ledger knows this host as it is now."""
        return self._records.registered

    @property
    def is_telling(self) -> bool:
        """Whether the ledger is being told of a change."""
        return self._registering or self._stale

    async def until_registered(self, wait_s: float) -> None:
        """Return once the ledger knows this host. Raises HostError when that takes longer."""
        if self._records.registered:
            return
        waiter = Waiter()
        self._waiting.append(waiter)
        timer = self._server.runtime.after(wait_s, lambda: waiter.set(None))
        await waiter
        timer.cancel()
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        if not self._records.registered:
            raise HostError(
                "this host's devices are not known yet",
                found=self.problem or "the device probe or the ledger is still starting",
                hint="try again in a moment; actorgrid status shows what is missing",
            )

    def take_sample(self) -> None:
        """Record what this host's devices read last, and have them read again."""
        allocated = self._records.allocated()

        def read(device: Device) -> Readings:
            milli, memory_mib, _ = allocated.get((self._server.host.host_id, device.index), (0, 0, []))
            return self.inventory.readings(device, milli, memory_mib)

        if self.inventory.has_script:
            played = self.simulated_readings()
            self.inventory.play(played)
            self.heat.take(played)
        self.sampling.take(self.inventory.devices, read, self._troubles(), time())
        unread = {
            device.uuid: readings
            for device in self.inventory.devices
            if device.source == "probed" and ((readings := read(device)).unknown or readings.error)
        }
        self._watched.take(unread, self._server.runtime.monotonic())
        self._watched.listed(frozenset(device.uuid for device in self.inventory.devices))
        self.inventory.ask()
        self.heat.look_at_budget()
        self.tell_health()

    def utilization(self) -> dict[str, float | None]:
        """How busy each device of this host was when it was last read, in percent, by its UUID."""
        allocated = self._records.allocated()
        found = {}
        for device in self.inventory.devices:
            milli, memory_mib, _ = allocated.get((self._server.host.host_id, device.index), (0, 0, []))
            found[device.uuid] = self.inventory.readings(device, milli, memory_mib).utilization_percent
        return found

    def simulated_readings(self) -> dict[str, Readings]:
        """What each simulated device of this host would read now, by its UUID."""
        allocated = self._records.allocated()
        found = {}
        for device in self.inventory.devices:
            if device.source == "simulated":
                milli, memory_mib, _ = allocated.get((self._server.host.host_id, device.index), (0, 0, []))
                found[device.uuid] = self.inventory.readings(device, milli, memory_mib)
        return found

    def now(self, device: Device, allocated_milli: int, allocated_mib: int) -> DeviceNow:
        """How *device*, one of this host's, is now, with that much of it given out."""
        health, facts = self.inventory.health_of(device), self.inventory.facts(device)
        return DeviceNow(
            self.inventory.readings(device, allocated_milli, allocated_mib),
            self.sampling.score(device.uuid),
            health.state.value,
            health.reason,
            self.inventory.health.last_xid(device.uuid) if facts and device.vendor == "nvidia" else None,
            self.inventory.links_of(device),
            None if facts is None else asdict(facts),
        )

    def own_now(self) -> Iterator[tuple[Device, DeviceNow]]:
        """This host's devices that a library reads, each as it is now."""
        for device in self.inventory.devices:
            if device.source == "probed":
                yield device, self.now(device, 0, 0)

    def take_health(self) -> None:
        """Take over at once which devices are in trouble, before the next sample."""
        self.sampling.take_problems(self.inventory.devices, self._troubles())
        self.tell_health()

    def _troubles(self) -> dict[str, str]:
        """The devices that take nothing new, by UUID, and why; of one that is in trouble and hot, its trouble."""
        cut = {device.uuid: NOTHING_CUT for device in self.inventory.devices if device.cut}
        withheld = dict.fromkeys(self.withheld, BEING_CUT)
        return {**cut, **withheld, **self.heat.drained(), **self.inventory.troubles()}

    def _read(self, readings: dict[str, Readings]) -> None:
        self._watched.take(readings, self._server.runtime.monotonic())
        self._on_readings(readings)
        self.heat.take(readings)

    def _heat_changed(self) -> None:
        self._on_health([])

    def _heat_limits(self, device: Device) -> HeatLimits:
        """From where on a warmer device comes after a cooler one, and from where on it takes nothing."""
        thresholds = self.heat.thresholds_of(device)
        return HeatLimits(thresholds.cap - WARM_BELOW_CELSIUS, thresholds.drain)

    def tell_health(self) -> None:
        """Have the ledger know which devices take nothing new, and which are watched, where it has something else."""
        # The host that leads goes by the first, whoever answers for the work on them by the second.
        now = self._server.runtime.monotonic()
        known = self._ledger.hosts.get(self._server.host.host_id)
        changed = unhealthy_in(known) != self.sampling.unhealthy()
        changed = changed or watched_in(known) != self._watched_now() or mps_in(known) != self._held_by_mps_now()
        changed = changed or dmem_in(known) != self._held_by_kernel_now() or near_in(known) != self._near_now()
        if changed and self._records.registered and now >= self._tell_at:
            self._tell_at = now + TELL_AGAIN_S
            self._server.spawn(self._register())

    def members_changed(self) -> None:
        """Tell the ledger of instances, and of what is watched, once all members know what that is."""
        version = min(cluster_version(self._ledger.members), WATCHED_SINCE)
        if (version >= PARTS_SINCE) != (self._told_version >= PARTS_SINCE):
            self._changed()
        self._told_version = version  # what is watched is told with the next sample

    def tell(self) -> None:
        """Have the ledger know of a change of ``withheld``."""
        self.sampling.take_problems(self.inventory.devices, self._troubles())
        self._changed()

    def _changed(self) -> None:
        if self._records.registered or self._registering:
            self._server.spawn(self._register())

    def _watched_now(self) -> frozenset[str]:
        """The devices on which work that overdraws is ended, as hosts may be told it."""
        if cluster_version(self._ledger.members) < WATCHED_SINCE:
            return frozenset()
        ends = self._server.host.settings.gpus.memory_watch == "end"
        return self._watched.now(self._server.runtime.monotonic(), ends=ends)

    def _held_by_mps_now(self) -> frozenset[str]:
        """The devices whose shares MPS holds, as hosts may be told it."""
        return self.held_by_mps() if cluster_version(self._ledger.members) >= WATCHED_SINCE else frozenset()

    def _held_by_kernel_now(self) -> frozenset[str]:
        """The devices of whose memory the kernel gives work no more than it was granted, as hosts may be told it."""
        return self.held_by_kernel() if cluster_version(self._ledger.members) >= WATCHED_SINCE else frozenset()

    def _near_now(self) -> dict[str, str]:
        """How close devices are, by UUID, as hosts may be told it."""
        if cluster_version(self._ledger.members) < WATCHED_SINCE:
            return {}
        of = (tuple(self.inventory.devices), self.inventory.links)
        if of != self._near_of:  # each sample looks, and it changes with the devices alone
            self._near_of, self._near = of, near_texts(self.inventory.devices, self.inventory.links_of)
        return self._near

    async def _learn_isolation(self) -> None:
        """Have the ledger know how this host keeps work apart, once who runs work has tried it."""
        pause_s = RETRY_S
        while True:
            try:
                kept: KeptApartRecord = await self._server.call("worker_manager", IsolationAsked(), ISOLATION_S)
                break
            except ActorGridError as error:
                self._server.log.debug("how work is kept apart here: %s", error)
                await self._server.sleep(pause_s)
                pause_s = min(2 * pause_s, ISOLATION_S)
        if kept != self._kept_apart:
            self._kept_apart = kept
            self._changed()

    def settings_changed(self) -> None:
        """Learn anew what follows from settings: how far work is kept apart is one that may change at any time."""
        self._server.spawn(self._learn_isolation())

    async def _register(self) -> None:
        """Tell the ledger what this host has now; goes on until it is committed."""
        self._stale = True
        if self._registering:
            return
        self._registering = True
        try:
            while self._stale:
                # Before the facts are read: what changes while they are on their way has them sent once more.
                self._stale = False
                try:
                    await self._ledger.propose(RegisterHost(self._facts()))
                    continue
                except (CallTimeout, StorageError, LedgerRefused, BadRequest) as error:
                    self._server.log.warning("registering this host: %s", error)
                    self.problem = f"this host is not registered yet: {error.message}"
                    self._stale = True
                await self._server.sleep(RETRY_S)
        finally:
            self._registering = False
        self.problem = ""
        waiting, self._waiting = self._waiting, []  # each takes itself off the list as it goes on
        for waiter in waiting:
            waiter.set(None)

    def _facts(self) -> HostFacts:
        host = self._server.host
        before = (self._ledger.hosts.get(host.host_id) or NO_HOST).get("devices", [])
        here = {device.uuid for device in self.inventory.devices}
        held = {
            index
            for allocation in self._ledger.allocations.values()
            if allocation["host"] == host.host_id
            for index in allocation["gpu_indexes"]
        }
        # An index someone still holds keeps meaning the device it meant.
        known = {d["uuid"]: d["index"] for d in before if d["uuid"] in here or d["index"] in held}
        if len(self._indexes) <= INDEXES_MAX:
            # And one that was given in this life is not given to another: a grant may be on its way.
            known = {**{uuid: at for uuid, at in self._indexes.items() if at not in known.values()}, **known}
        devices = self.inventory.devices = keep_indexes(self.inventory.devices, known)
        self._indexes |= {device.uuid: device.index for device in devices if device.parent or device.profiles}
        unhealthy, watched, mps = self.sampling.unhealthy(), self._watched_now(), self._held_by_mps_now()
        near, dmem = self._near_now(), self._held_by_kernel_now()
        cluster = host.settings.cluster
        facts: HostFacts = {
            "host_id": host.host_id,
            "hostname": host.hostname,
            "incarnation": host.incarnation,
            "boot_id": host.boot_id,
            "cpu_milli": host_cpu_milli(),
            "memory_mib": host_memory_mib(),
            "devices": [
                self._device_record(each, unhealthy.get(each.uuid), watched, mps, near, dmem) for each in devices
            ],
            "state": "up",
            "address": cluster.bind,
            "port": cluster.base_port or None,
        }
        if cluster.rack:
            facts["rack"] = cluster.rack
        if cluster_version(self._ledger.members) >= WATCHED_SINCE:
            facts["told"] = self._next_told()
            if self._kept_apart is not None:
                facts["kept_apart"] = self._kept_apart
        return facts

    def _next_told(self) -> int:
        """The number of the next registration: one that timed out may be committed later than one after it."""
        known = self._ledger.hosts.get(self._server.host.host_id, NO_HOST).get("told", 0)
        # What this server's process before it has on its way is of lower numbers, too.
        self._told = max(self._told + 1, known + 1) if self._told else known + STARTS_APART
        return self._told

    def _device_record(
        self,
        device: Device,
        trouble: str | None,
        watched: frozenset[str],
        mps: frozenset[str],
        near: Mapping[str, str],
        dmem: frozenset[str],
    ) -> DeviceRecord:
        # Hosts of an earlier version must not get what they do not know: they would answer its grants otherwise.
        with_parts = cluster_version(self._ledger.members) >= PARTS_SINCE
        if device.uuid in self.withheld:
            device = replace(device, cut=True)
        gpu = self.joinable().get(device.uuid)
        if gpu is not None:
            is_dynamic = self._server.host.settings.gpus.mig == "dynamic"
            is_offered = is_dynamic and gpu.uuid not in self.inventory.withdrawn
            profiles = tuple(each.name for each in gpu.profiles) if is_offered else ()
            device = replace(device, whole_mib=gpu.memory_mib, profiles=profiles)
        record = device.to_record(with_parts)
        if trouble is not None:
            record["unfit"] = trouble
        if device.uuid in watched:
            record["watched"] = True
        if device.uuid in mps:
            record["mps"] = True
        if device.uuid in near:
            record["near"] = near[device.uuid]
        if device.uuid in dmem:
            record["dmem"] = True
        return record
