"""How each device of a host is, judged by what it reads, what its driver tells, and whether anybody can ask it.

No I/O and no clock: readings, events and losses come in, and each device has a state and its reason. What changes is
told as incidents. Only ``ok`` and ``degraded`` take new work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from .device import Device
from .probe_report import DeviceEvent
from .readings import Readings

INCIDENTS_MAX = 256
"""Incidents that are kept of a host; older ones are in its log."""
CLEAN_SAMPLES = 3
"""Samples without an error after which an error that passes by itself is over."""
STORM_PER_SAMPLE = 100
"""Corrected memory errors between two samples that are a storm: the memory is about to fail, and slow already."""
STORM_CLEAN_SAMPLES = 12


class HealthState(StrEnum):
    """The state of a device; the later, the worse."""

    OK = "ok"
    DEGRADED = "degraded"
    """It works, and something is not as it should be: it still takes work."""
    UNKNOWN = "unknown"
    """Nobody can say: its library hangs, is gone, or was never asked. It takes no new work."""
    FAILED = "failed"
    """It does not do its work any more: it takes none until the driver is reloaded, the device reset, or it is well."""
    LOST = "lost"
    """It is not there any more."""


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """The state of one device, and why."""

    state: HealthState = HealthState.OK
    reason: str = ""

    @property
    def takes_work(self) -> bool:
        """Whether new work may be placed on it."""
        return self.state in (HealthState.OK, HealthState.DEGRADED)


@dataclass(frozen=True, slots=True)
class HealthIncident:
    """A change of a device's state, or an event that its driver told."""

    at: float
    """Seconds since the epoch."""
    uuid: str
    kind: str
    """A HealthState for a change, else the kind of the event."""
    text: str


@dataclass(frozen=True, slots=True)
class XidMeaning:
    """What an XID of NVIDIA's driver means (NVIDIA, "XID Errors"), and what follows from it here."""

    text: str
    state: HealthState
    passes: bool = False
    """Whether it is over by itself once the device answers again without it."""


_FAILED, _DEGRADED, _OK = HealthState.FAILED, HealthState.DEGRADED, HealthState.OK
XIDS: dict[int, XidMeaning] = {
    13: XidMeaning("an exception in a program", _OK),
    31: XidMeaning("a program used memory that was not its own", _OK),
    32: XidMeaning("a program sent what is no command", _OK),
    43: XidMeaning("a program's channel was stopped", _OK),
    45: XidMeaning("a program was ended while it ran", _OK),
    48: XidMeaning("a memory error that could not be corrected", _FAILED),
    61: XidMeaning("the microcontroller halted", _FAILED),
    62: XidMeaning("the microcontroller halted", _FAILED),
    63: XidMeaning("a row of memory is to be replaced, at the next reset", _DEGRADED),
    64: XidMeaning("a row of memory could not be replaced", _FAILED),
    68: XidMeaning("the video processor failed", _DEGRADED, passes=True),
    69: XidMeaning("a graphics engine failed", _OK),
    74: XidMeaning("an NVLink failed", _DEGRADED),
    79: XidMeaning("it fell off the bus", HealthState.LOST, passes=True),
    92: XidMeaning("many memory errors, corrected", _DEGRADED, passes=True),
    94: XidMeaning("a memory error that hit one program alone", _DEGRADED, passes=True),
    95: XidMeaning("a memory error that may have hit others too: it has to be reset", _FAILED),
    109: XidMeaning("a program did not let go of the device in time", _OK),
    110: XidMeaning("a fault of its security processor", _FAILED),
    119: XidMeaning("its own processor (GSP) does not answer the driver", _FAILED),
    120: XidMeaning("its own processor (GSP) failed", _FAILED),
    136: XidMeaning("NVLink could not be trained", _DEGRADED),
    140: XidMeaning("memory errors that could not be corrected", _FAILED),
    143: XidMeaning("it could not be started", _FAILED),
    154: XidMeaning("it has to be reset, or its host restarted", _FAILED),
}
UNKNOWN_XID = XidMeaning("an error that is not known here; NVIDIA's list of XIDs says more", _DEGRADED, passes=True)
_EVENTS: dict[str, XidMeaning] = {
    "lost": XidMeaning("its driver says that it is lost", HealthState.LOST, passes=True),
    "reset_required": XidMeaning("it has to be reset, says its driver", _FAILED),
    "reset": XidMeaning("it is being reset", _FAILED, passes=True),
    "reset_done": XidMeaning("it was reset", _OK),
    "ecc_uncorrected": XidMeaning("a memory error that could not be corrected", _FAILED),
    "ecc_storm": XidMeaning("a storm of memory errors, corrected", _DEGRADED, passes=True),
    "ecc_corrected": XidMeaning("a memory error, corrected", _OK),
    "thermal": XidMeaning("it slows down because of heat", _DEGRADED, passes=True),
    "page_fault": XidMeaning("a program used memory that was not its own", _OK),
}


@dataclass(slots=True)
class _Record:
    """What is remembered of a device between samples."""

    health: DeviceHealth = field(default_factory=DeviceHealth)
    standing: DeviceHealth | None = None
    """What an event said, which lasts until the driver is loaded anew."""
    passing: DeviceHealth | None = None
    """What an event or a storm said, which is over after enough clean samples."""
    clean: int = 0
    needed: int = CLEAN_SAMPLES
    corrected: int | None = None
    uncorrected: int | None = None
    last_xid: int = 0


class HostDeviceHealth:
    """The health of all devices of one host, with what happened lately in ``incidents``, oldest first."""

    def __init__(self) -> None:
        self.incidents: deque[HealthIncident] = deque(maxlen=INCIDENTS_MAX)
        self._records: dict[str, _Record] = {}
        self._parents: dict[str, tuple[str, ...]] = {}

    def of(self, uuid: str) -> DeviceHealth:
        """How the device is; ``unknown`` for one that was never heard of."""
        record = self._records.get(uuid)
        return DeviceHealth(HealthState.UNKNOWN, "not read yet") if record is None else record.health

    def last_xid(self, uuid: str) -> int:
        """The last XID that the driver told of the device; 0 when there was none since the agent started."""
        record = self._records.get(uuid)
        return 0 if record is None else record.last_xid

    def unfit(self) -> dict[str, str]:
        """Devices that take no new work, by UUID, with the reason."""
        return {uuid: one.health.reason for uuid, one in self._records.items() if not one.health.takes_work}

    def listed(self, devices: Iterable[Device], parents: Mapping[str, str], fresh: bool = True) -> None:
        """Take the devices that a host has now; *parents*: the whole device of each part, by UUID.

        *fresh*: their library was loaded anew, so that what events said of them before does not count any more. Whether
        a device that was unknown or lost is well again, its next sample says.
        """
        found = {device.uuid for device in devices}
        for gone in self._records.keys() - found:
            del self._records[gone]
        whole: dict[str, list[str]] = {}
        for part, parent in parents.items():
            whole.setdefault(parent, []).append(part)
        self._parents = {parent: tuple(parts) for parent, parts in whole.items()}
        for uuid in found:
            record = self._records.setdefault(uuid, _Record())
            if fresh:
                record.standing = record.passing = None

    def missing(self, uuids: Iterable[str], why: str, at: float) -> list[HealthIncident]:
        """Take that the library does not list these any more: they are lost until it does."""
        return [incident for uuid in uuids for incident in self._become(uuid, DeviceHealth(HealthState.LOST, why), at)]

    def unheard(self, uuids: Iterable[str], why: str, at: float) -> list[HealthIncident]:
        """Take that nobody can be asked about these: they are unknown, if they are not known to be worse."""
        told: list[HealthIncident] = []
        for uuid in uuids:
            now = self._records.setdefault(uuid, _Record()).health
            if now.state in (HealthState.OK, HealthState.DEGRADED):
                told += self._become(uuid, DeviceHealth(HealthState.UNKNOWN, why), at)
        return told

    def read(self, readings: Mapping[str, Readings], at: float) -> list[HealthIncident]:
        """Take the next sample of some devices."""
        told: list[HealthIncident] = []
        for uuid, sample in readings.items():
            record = self._records.get(uuid)
            if record is None:
                continue
            told += self._become(uuid, self._judge(record, sample), at)
        return told

    def happened(self, events: Iterable[DeviceEvent], at: float) -> list[HealthIncident]:
        """Take what drivers told; of a whole device it is of all its parts."""
        told: list[HealthIncident] = []
        for event in events:
            meaning = XIDS.get(event.code, UNKNOWN_XID) if event.kind == "xid" else _EVENTS.get(event.kind)
            if meaning is None:
                continue
            text = f"XID {event.code}: {meaning.text}" if event.kind == "xid" else meaning.text
            text = f"{text} ({event.text})" if event.text else text
            if event.kind == "lost" and not event.uuid:
                continue  # the next sample says which
            for uuid in self._parents.get(event.uuid, (event.uuid,)):
                record = self._records.get(uuid)
                if record is None:
                    continue
                if event.kind == "xid":
                    record.last_xid = event.code
                incident = HealthIncident(at, uuid, "xid" if event.kind == "xid" else event.kind, text)
                self.incidents.append(incident)
                told.append(incident)
                told += self._become(uuid, self._after(record, meaning, text), at)
        return told

    def _after(self, record: _Record, meaning: XidMeaning, text: str) -> DeviceHealth:
        """The health of a device after an event of that *meaning*."""
        if meaning.state is HealthState.OK:
            return record.health
        health = DeviceHealth(meaning.state, text)
        if meaning.passes:
            record.passing, record.clean, record.needed = health, 0, CLEAN_SAMPLES
        else:
            record.standing = _worse(record.standing, health)
        return _worse(record.health, health)

    def _judge(self, record: _Record, sample: Readings) -> DeviceHealth:
        health = DeviceHealth()
        storm = ""
        if sample.ecc_corrected is not None:
            before, record.corrected = record.corrected, sample.ecc_corrected
            if before is not None and sample.ecc_corrected - before >= STORM_PER_SAMPLE:
                storm = f"{sample.ecc_corrected - before} memory errors since the last sample, corrected"
        if sample.ecc_uncorrected is not None:
            before, record.uncorrected = record.uncorrected, sample.ecc_uncorrected
            text = f"{sample.ecc_uncorrected} memory errors that could not be corrected"
            if before is None and sample.ecc_uncorrected:
                # Of before we looked: whoever started the agent since knows, or has had the time to.
                record.standing = _worse(record.standing, DeviceHealth(HealthState.DEGRADED, text))
            elif before is not None and sample.ecc_uncorrected > before:
                record.standing = _worse(record.standing, DeviceHealth(HealthState.FAILED, text))
            elif before is not None and sample.ecc_uncorrected < before:
                record.standing = None  # counted anew: the driver was loaded again, or the device reset
        if storm:
            record.passing = DeviceHealth(HealthState.DEGRADED, storm)
            record.clean, record.needed = 0, STORM_CLEAN_SAMPLES
        elif record.passing is not None and not sample.error and not sample.unknown:
            record.clean += 1
            if record.clean >= record.needed:
                record.passing = None
        if sample.row_remap_failed:
            health = _worse(
                health, DeviceHealth(HealthState.FAILED, "no rows of memory are left to replace broken ones")
            )
        elif sample.row_remap_pending:
            health = _worse(
                health, DeviceHealth(HealthState.DEGRADED, "a row of memory waits for a reset to be replaced")
            )
        if sample.links_down:
            health = _worse(health, DeviceHealth(HealthState.DEGRADED, f"{sample.links_down} of its links are down"))
        if sample.unknown:
            health = _worse(health, DeviceHealth(HealthState.UNKNOWN, sample.unknown))
        if sample.error:
            state = HealthState.LOST if "lost" in sample.error.lower() else HealthState.FAILED
            health = _worse(health, DeviceHealth(state, sample.error))
        # Of two that are equally bad, what the driver told says more than that a reading failed.
        return _worse(_worse(record.standing, record.passing), health)

    def _become(self, uuid: str, health: DeviceHealth, at: float) -> list[HealthIncident]:
        record = self._records.setdefault(uuid, _Record())
        before, record.health = record.health, health
        if before.state is health.state:
            return []
        text = health.reason or "it is well again"
        incident = HealthIncident(at, uuid, health.state.value, text)
        self.incidents.append(incident)
        return [incident]


_RANK = {state: place for place, state in enumerate(HealthState)}


def _worse(one: DeviceHealth | None, other: DeviceHealth | None) -> DeviceHealth:
    """The worse of two; of equals the first."""
    if one is None or other is None:
        return one or other or DeviceHealth()
    return other if _RANK[other.state] > _RANK[one.state] else one
