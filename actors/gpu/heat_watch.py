"""HeatWatch: acts on the heat of this host's devices, and keeps them within a budget of power.

``gpus.heat_control`` says how far it goes: ``place`` gives a hot device nothing new; ``cap`` also lowers its power
limit, step by step; ``stop`` also ends what runs on it short of the temperature at which it switches itself off.
"""

from __future__ import annotations

from collections.abc import Callable
from time import time
from typing import Any

from actorgrid.errors import ActorGridError
from actorgrid.supervisors.server import Server

from ..ledger.client import LedgerClient
from ..replication.messages import Mutate, ReadPrefix
from ..replication.namespaces import cluster_key
from ..work.messages import EndOverheated
from .device import Device
from .heat_policy import CALM_CELSIUS, CALM_S, DeviceHeat, HeatStage, HeatThresholds
from .inventory import HostInventory
from .power_budget import (
    POWER_PREFIX,
    HostPower,
    PowerClaim,
    host_budget,
    is_worth_telling,
    read_power,
    share_power,
    wanted_watts,
)
from .power_limits import PowerLimits
from .readings import Readings

CALL_S = 5.0
HOSTS_MAX = 10_000
SILENT_S = 120.0
"""A host that was not heard of for so long counts with the limit that it told last: it goes on with that."""


class HeatWatch:
    """Judges each sample of *server*'s devices; *changed* is called when others than before take nothing new."""

    def __init__(
        self, server: Server, ledger: LedgerClient, inventory: HostInventory, changed: Callable[[], None]
    ) -> None:
        self.limits = PowerLimits(server, inventory)
        self.ended_total = 0
        self._server = server
        self._ledger = ledger
        self._inventory = inventory
        self._changed = changed
        self._heat: dict[str, DeviceHeat] = {}
        self._samples: dict[str, Readings] = {}
        self._shares: dict[str, float] = {}
        self._host_limit: float | None = None
        self._told: HostPower | None = None
        self._sharing = False
        self._ending: set[str] = set()
        self._note = ""

    # -- samples

    def take(self, readings: dict[str, Readings]) -> None:
        """Take the next sample of some devices, and act on it."""
        devices = self._devices()
        self._forget(devices)
        self.limits.sampled(readings)
        self.limits.retry_due()
        control, now_s = self._server.host.settings.gpus.heat_control, self._server.runtime.monotonic()
        before = self.drained()
        for uuid, sample in readings.items():
            if uuid not in devices:
                continue
            self._samples[uuid] = sample
            self._take_sample(devices[uuid], sample, control, now_s)
        self._apply(devices)
        if self.drained().keys() != before.keys():
            self._changed()
        if control == "stop":
            self._end_in_emergency(devices)

    def _take_sample(self, device: Device, sample: Readings, control: str, now_s: float) -> None:
        thresholds = self.thresholds_of(device)
        heat = self._heat.setdefault(device.uuid, DeviceHeat(thresholds))
        heat.thresholds = thresholds  # another one than before: they follow a setting, and what a driver tells
        power = self.limits.range_of(device, sample) if control != "place" else None
        stage = heat.stage
        heat.take(sample.temperature_celsius, power, now_s)
        if heat.stage is not stage:
            self._server.log.log(
                30 if heat.stage > stage else 20,
                "GPU %d is at %.0f °C: %s",
                device.index,
                heat.celsius,
                _MEANING[heat.stage],
            )

    def thresholds_of(self, device: Device) -> HeatThresholds:
        """From where on *device* is too hot for what."""
        facts = self._inventory.facts(device)
        limit = self._server.host.settings.gpus.heat_limit_celsius
        return HeatThresholds.of(
            device.vendor,
            None if facts is None else facts.slowdown_celsius,
            None if facts is None else facts.shutdown_celsius,
            limit,
        )

    def drained(self) -> dict[str, str]:
        """The devices that take nothing new because of their heat: why, by UUID."""
        return {
            uuid: f"it is at {heat.celsius:.0f} °C: nothing new until it was under "
            f"{heat.thresholds.drain - CALM_CELSIUS:.0f} °C for {CALM_S:.0f} s"
            for uuid, heat in self._heat.items()
            if heat.stage >= HeatStage.DRAINED
        }

    def _devices(self) -> dict[str, Device]:
        sources = ("probed", "simulated") if self._inventory.has_script else ("probed",)
        return {device.uuid: device for device in self._inventory.devices if device.source in sources}

    def _forget(self, devices: dict[str, Device]) -> None:
        for known in (self._heat, self._samples, self._shares):
            for uuid in known.keys() - devices.keys():
                del known[uuid]

    # -- acting

    def _apply(self, devices: dict[str, Device]) -> None:
        """Have each device draw at most what both its heat and its share of the budget allow."""
        limits: dict[str, float] = {}
        for uuid in devices:
            heat = self._heat.get(uuid)
            asked = [heat.limit_watts if heat is not None else None, self._shares.get(uuid)]
            wanted = [watts for watts in asked if watts is not None]
            if wanted:
                limits[uuid] = float(round(min(wanted)))
        self.limits.apply(devices, self._samples, limits)

    def _end_in_emergency(self, devices: dict[str, Device]) -> None:
        hot = {uuid for uuid, heat in self._heat.items() if heat.stage is HeatStage.EMERGENCY}
        held: dict[str, Device] = {}
        for work_id, record in self._ledger.allocations.items():
            if hot and record["host"] == self._server.host.host_id:
                here = hot.intersection(record["gpu_uuids"])
                if here:
                    held[work_id] = devices[min(here)]
        self._ending &= held.keys()
        for work_id in held.keys() - self._ending:
            self._ending.add(work_id)
            self._server.spawn(self._end(work_id, held[work_id]))

    async def _end(self, work_id: str, device: Device) -> None:
        celsius = round(self._heat[device.uuid].celsius or 0.0) if device.uuid in self._heat else 0
        try:
            if await self._server.call("worker_manager", EndOverheated(work_id, device.index, celsius), CALL_S):
                self.ended_total += 1
                self._server.log.warning("%s is ended: GPU %d is at %d °C", work_id, device.index, celsius)
        except ActorGridError as error:
            self._server.log.warning("%s on a device that is too hot cannot be ended: %s", work_id, error)
            self._ending.discard(work_id)  # the next sample asks again

    # -- the budget

    def look_at_budget(self) -> None:
        """Share out ``gpus.power_budget_watts`` anew; one look at a time."""
        if not self._server.host.settings.gpus.power_budget_watts:
            self._note = ""
            if self._shares:
                self._shares, self._host_limit = {}, None
                self._apply(self._devices())
        elif not self._sharing:
            self._sharing = True
            self._server.spawn(self._share())

    async def _share(self) -> None:
        try:
            budget = float(self._server.host.settings.gpus.power_budget_watts)
            claims = self._claims()
            own = PowerClaim(
                sum(one.least for one in claims.values()),
                sum(one.wanted for one in claims.values()),
                sum(one.most for one in claims.values()),
            )
            others = await self._others()
            limit = own.most if self._host_limit is None else self._host_limit
            self._host_limit = host_budget(budget, self._server.host.host_id, own, others, limit)
            devices = self._devices()
            settable = {uuid for uuid in claims if claims[uuid].least < claims[uuid].most}
            self._shares = {
                uuid: watts for uuid, watts in share_power(self._host_limit, claims).items() if uuid in settable
            }
            self._apply(devices)
            least = own.least + sum(one["least"] for one in others.values())
            self._note = (
                f"the power budget of {budget:.0f} W cannot be kept: the devices need {least:.0f} W at least"
                if least > budget
                else ""
            )
            await self._tell(own)
        except ActorGridError as error:
            self._server.log.info("the power budget: %s", error)  # the next round looks again
        finally:
            self._sharing = False

    def _claims(self) -> dict[str, PowerClaim]:
        """What each device needs, wants and could draw. One whose limit cannot be set counts with what it draws."""
        claims = {}
        for uuid, device in self._devices().items():
            sample = self._samples.get(uuid)
            if sample is None:
                continue
            power = self.limits.range_of(device, sample)
            if power is None:
                draw = self.limits.current(device, sample) or sample.power_watts or 0.0
                claims[uuid] = PowerClaim(draw, draw, draw)
            else:
                limit = self.limits.current(device, sample) or power.most
                claims[uuid] = PowerClaim(power.least, wanted_watts(sample.power_watts, limit, power.most), power.most)
        return claims

    async def _others(self) -> dict[str, HostPower]:
        """What the cluster's other hosts told last; of one that is silent, that it goes on with what it has."""
        if self._server.host.enrolment is None:
            return {}
        entries = await self._server.call("distributed_state", ReadPrefix(POWER_PREFIX, HOSTS_MAX), CALL_S)
        found: dict[str, HostPower] = {}
        for entry in entries:
            host_id, told = entry["key"].removeprefix(POWER_PREFIX), read_power(entry["value"])
            if told is None or host_id == self._server.host.host_id or host_id not in self._ledger.hosts:
                continue
            if host_id in self._ledger.absent or time() - told["at"] > SILENT_S:
                limit = told["limit"]
                told = {**told, "least": limit, "wanted": limit, "most": limit}
            found[host_id] = told
        return found

    async def _tell(self, own: PowerClaim) -> None:
        if self._server.host.enrolment is None or self._host_limit is None:
            return
        now: HostPower = {
            "at": time(),
            "least": own.least,
            "wanted": own.wanted,
            "most": own.most,
            "limit": self._host_limit,
        }
        if is_worth_telling(self._told, now):
            key = cluster_key("power", self._server.host.host_id)
            await self._server.call("distributed_state", Mutate(key, "lww_register", "put", dict(now)), CALL_S)
            self._told = now

    # -- for people

    def figures(self) -> dict[str, float]:
        """The figures for ``/metrics``."""
        stages = [heat.stage for heat in self._heat.values()]
        figures = {
            "gpus_heat_capped": float(sum(heat.limit_watts is not None for heat in self._heat.values())),
            "gpus_heat_drained": float(sum(stage >= HeatStage.DRAINED for stage in stages)),
            "gpus_heat_emergencies": float(sum(stage is HeatStage.EMERGENCY for stage in stages)),
            "gpu_overheated_ended_total": float(self.ended_total),
            "gpu_power_limits_set_total": float(self.limits.set_total),
        }
        if self._host_limit is not None:
            figures["gpus_power_share_watts"] = self._host_limit
        return figures

    def status(self) -> dict[str, Any]:
        """The heat of each device, and what was done about it, as ``actorgrid inspect`` shows it."""
        return {
            "devices": {
                uuid: {
                    "stage": heat.stage.name.lower(),
                    "celsius": heat.celsius,
                    "limit_watts": heat.limit_watts,
                    "share_watts": self._shares.get(uuid),
                    "cap_from_celsius": heat.thresholds.cap,
                    "drain_from_celsius": heat.thresholds.drain,
                    "stop_from_celsius": heat.thresholds.stop,
                }
                for uuid, heat in self._heat.items()
            },
            "host_limit_watts": self._host_limit,
            "ended_total": self.ended_total,
            "power_limits": self.limits.status(),
        }

    @property
    def note(self) -> str:
        """What people should know; ``""``: nothing."""
        return self._note


_MEANING = {
    HeatStage.NORMAL: "as it should be",
    HeatStage.CAPPED: "it should draw less",
    HeatStage.DRAINED: "it takes nothing new",
    HeatStage.EMERGENCY: "what runs on it should end",
}
