"""What work holds of a host's devices and uses of them, from its grant to its end. No I/O and no clock.

*now* is seconds of CLOCK_BOOTTIME: it goes on while the machine sleeps and is never set. Whoever calls has it from one
boot; what was kept under another boot is closed before anything is counted in this one.

GPU-seconds are counted from grant to end and hang on no sample. Memory and energy are counted from sample to sample:

- Memory: what a sample shows counts since the sample before; behind the last one it goes on as it was. Of a device that
  it has whole, where the driver does not tell which process has what, work is charged with all that is in use.
- Energy: between two readings of the driver's counter a device has drawn so many joules. Of these, work is charged with
  its share of the device for the part of the time in which it held it; what is left is nobody's, so that what is
  charged is never more than was drawn, and half a device costs half of it, whatever its neighbour does. Where there is
  no counter, the reading of power times the time stands in for it, and so it does behind the last sample: for how many
  device-seconds is told.
- Where two samples are further apart than ``GAP_S``, nobody looked: of that time memory is not counted, and
  ``unsampled_s`` has it. The counter of energy ran on, so energy is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..ledger.usage_records import UsageRecord
from .messages import DeviceUse

GAP_S = 60.0
"""Twelve samples at the default ``gpus.probe_interval_s``."""
REASON_MAX = 200
NOT_SAMPLED = "it ended before its devices were sampled"
NOT_TOLD = "the driver does not say which process has what, and the device is shared"


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device that work holds."""

    uuid: str
    model: str
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class HeldWork:
    """Work and what it holds on this host: an attempt, a member of a gang, or a session's lease."""

    work_id: str
    kind: str
    """attempt or session."""
    job_id: str
    """Of a session: its id."""
    user_id: str
    share_milli: int
    """Thousandths of each device."""
    cpu_milli: int
    devices: tuple[HeldDevice, ...]
    began_at: float
    """On the wall clock, for people: nothing is measured by it."""
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class DeviceUsage:
    """What work has used of one device so far. ``None``: nothing is known yet."""

    counted_to: float
    """Until when memory and energy are counted."""
    memory_mib_s: float | None = None
    memory_high_mib: int | None = None
    energy_j: float | None = None
    energy_estimated_s: float = 0.0
    unsampled_s: float = 0.0
    last_mib: int | None = None
    last_watts: float | None = None
    no_memory: str = NOT_SAMPLED
    no_energy: str = NOT_SAMPLED


@dataclass(slots=True)
class MeteredWork:
    """Work that is not over: who, since when, and per device what it has used."""

    work: HeldWork
    began: float
    devices: dict[str, DeviceUsage]


@dataclass(frozen=True, slots=True)
class WorkUsage:
    """What work has used, until it ended or until now."""

    work: HeldWork
    held_s: float
    devices: dict[str, DeviceUsage]

    @property
    def device_gpu_s(self) -> float:
        """GPU-seconds of each of its devices."""
        return self.held_s * self.work.share_milli / 1000

    def to_record(self) -> UsageRecord:
        """It as the ledger has it: all devices together."""
        used = list(self.devices.values())
        models: dict[str, float] = {}
        for device in self.work.devices:
            models[device.model] = round(models.get(device.model, 0.0) + self.device_gpu_s, 3)
        high = [each.memory_high_mib for each in used if each.memory_high_mib is not None]
        memory, energy = _sum(each.memory_mib_s for each in used), _sum(each.energy_j for each in used)
        unsupported = {}
        if memory is None and used:
            unsupported["memory"] = next(each.no_memory for each in used if each.memory_mib_s is None)
        if energy is None and used:
            unsupported["energy"] = next(each.no_energy for each in used if each.energy_j is None)
        return {
            "held_s": round(self.held_s, 3),
            "gpu_s": round(self.device_gpu_s * len(self.work.devices), 3),
            "models": models,
            "memory_mib_s": None if memory is None else round(memory, 1),
            "memory_high_mib": max(high, default=None),
            "energy_j": None if energy is None else round(energy, 1),
            "energy_estimated_s": round(sum(each.energy_estimated_s for each in used), 1),
            "unsampled_s": round(max((each.unsampled_s for each in used), default=0.0), 1),
            "simulated": any(device.simulated for device in self.work.devices),
            "unsupported": unsupported,
        }


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum, or ``None`` where one of them is not known: a part is not told as the whole."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if known and len(known) == len(found) else None


@dataclass(frozen=True, slots=True)
class _LastReading:
    at: float
    energy_mj: int | None


class UsageMeter:
    """All work of this host that is not over. Bounded by what is granted here, and by the devices that there are."""

    def __init__(self) -> None:
        self.open: dict[str, MeteredWork] = {}
        self._last: dict[str, _LastReading] = {}

    def begin(self, work: HeldWork, began: float) -> None:
        """Count *work* from *began* on; one that is counted already goes on."""
        if work.work_id not in self.open:
            devices = {device.uuid: DeviceUsage(began) for device in work.devices}
            self.open[work.work_id] = MeteredWork(work, began, devices)

    def sample(self, readings: Iterable[DeviceUse], by_work_mib: Mapping[str, Mapping[str, int]], now: float) -> None:
        """Take a sample of some devices. *by_work_mib*: what the processes of work have, by its id and the device."""
        holders: dict[str, list[tuple[MeteredWork, DeviceUsage]]] = {}
        for each in self.open.values():
            for uuid, used in each.devices.items():
                holders.setdefault(uuid, []).append((each, used))
        for reading in readings:
            last = self._last.get(reading.uuid)
            if last is not None and now <= last.at:
                continue  # one more word of the same moment
            held = holders.get(reading.uuid, [])
            for each, used in held:
                told = by_work_mib.get(each.work.work_id, {}).get(reading.uuid)
                _take(used, each.work.share_milli / 1000, reading, last, told, len(held) == 1, now)
            self._last[reading.uuid] = _LastReading(now, reading.energy_millijoules)

    def used(self, work_id: str, now: float) -> WorkUsage | None:
        """What work that is not over has used until *now*; ``None`` for other work."""
        found = self.open.get(work_id)
        if found is None:
            return None
        share = found.work.share_milli / 1000
        devices = {uuid: _until(used, share, now) for uuid, used in found.devices.items()}
        return WorkUsage(found.work, max(0.0, now - found.began), devices)

    def end(self, work_id: str, now: float) -> WorkUsage | None:
        """What work has used until its end, *now*; it is not counted any more."""
        usage = self.used(work_id, now)
        self.open.pop(work_id, None)
        return usage

    # -- over restarts of the agent

    def to_plain(self) -> dict[str, Any]:
        """All of it in plain values, for a later agent of the same boot."""
        return {
            "open": [asdict(each) for each in self.open.values()],
            "last": {uuid: [last.at, last.energy_mj] for uuid, last in self._last.items()},
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> UsageMeter:
        """What ``to_plain`` gave. Raises TypeError, KeyError or ValueError for anything else."""
        meter = cls()
        for each in plain["open"]:
            given = dict(each["work"])
            held = tuple(HeldDevice(**device) for device in given.pop("devices"))
            work = HeldWork(devices=held, **given)
            devices = {str(uuid): DeviceUsage(**used) for uuid, used in each["devices"].items()}
            meter.open[work.work_id] = MeteredWork(work, float(each["began"]), devices)
        for uuid, (at, energy_mj) in plain["last"].items():
            meter._last[uuid] = _LastReading(float(at), energy_mj)
        return meter


def _take(
    used: DeviceUsage,
    share: float,
    reading: DeviceUse,
    last: _LastReading | None,
    told_mib: int | None,
    alone: bool,
    now: float,
) -> None:
    """Count *reading* of a device for one who holds that *share* of it."""
    elapsed_s = max(0.0, now - used.counted_to)
    if elapsed_s > GAP_S:
        used.unsampled_s += elapsed_s
    else:
        _take_memory(used, reading, told_mib, alone and share >= 1.0, elapsed_s)
    _take_energy(used, share, reading, last, elapsed_s, now)
    used.counted_to = now


def _take_memory(
    used: DeviceUsage, reading: DeviceUse, told_mib: int | None, has_it_whole: bool, elapsed_s: float
) -> None:
    mib = told_mib
    if mib is None and reading.lists_processes:
        mib = 0  # none of its processes has any
    elif mib is None and has_it_whole:
        mib = reading.memory_used_mib
    used.last_mib = mib
    if mib is None:
        used.no_memory = (reading.no_memory if reading.memory_used_mib is None else NOT_TOLD)[:REASON_MAX]
        used.unsampled_s += elapsed_s if used.memory_mib_s is not None else 0.0
        return
    used.memory_mib_s = (used.memory_mib_s or 0.0) + mib * elapsed_s
    used.memory_high_mib = max(mib, used.memory_high_mib or 0)


def _take_energy(
    used: DeviceUsage, share: float, reading: DeviceUse, last: _LastReading | None, elapsed_s: float, now: float
) -> None:
    counter = reading.energy_millijoules
    if counter is not None and last is not None and last.energy_mj is not None and counter >= last.energy_mj:
        # Work that began between two readings has had the device for a part of the time.
        joules = (counter - last.energy_mj) / 1000
        watts = joules / (now - last.at)
        used.energy_j = (used.energy_j or 0.0) + watts * share * min(elapsed_s, now - last.at)
        used.last_watts = watts
    elif reading.power_watts is not None and elapsed_s <= GAP_S:
        used.energy_j = (used.energy_j or 0.0) + reading.power_watts * share * elapsed_s
        used.energy_estimated_s += elapsed_s
        used.last_watts = reading.power_watts
    else:
        used.last_watts = None
        used.no_energy = (reading.no_energy or "the driver's counter went backwards")[:REASON_MAX]


def _until(used: DeviceUsage, share: float, now: float) -> DeviceUsage:
    """*used* at *now*, behind its last sample."""
    tail_s = max(0.0, now - used.counted_to)
    if tail_s > GAP_S:
        return replace(used, unsampled_s=used.unsampled_s + tail_s)
    found = replace(used)
    if found.memory_mib_s is not None and found.last_mib is not None:
        found.memory_mib_s += found.last_mib * tail_s
    if found.energy_j is not None and found.last_watts is not None:
        found.energy_j += found.last_watts * share * tail_s
        found.energy_estimated_s += tail_s
    return found
