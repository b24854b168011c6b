"""Who uses the memory of a host's devices: work that took more than its grant, and processes that nobody was granted.

No I/O and no clock. The driver says which processes have memory on a device; whose work they are, WorkerManager says;
what was granted, the ledger.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from .readings import Readings

LISTED_MAX = 256
"""Processes that are told of one host as nobody's, at most."""


@dataclass(frozen=True, slots=True)
class MemoryGrant:
    """What one allocation may have of each of its devices, in MiB; ``None``: as much as there is."""

    work_id: str
    """The id of the attempt, member or lease."""
    gpu_uuids: tuple[str, ...]
    memory_mib: int | None


@dataclass(frozen=True, slots=True)
class Overdraw:
    """Work that has more memory of a device than it was granted."""

    work_id: str
    uuid: str
    used_mib: int
    granted_mib: int


@dataclass(frozen=True, slots=True)
class UngrantedProcess:
    """A process with memory on a device that its work was not granted, or that is nobody's work."""

    uuid: str
    pid: int
    memory_mib: int | None
    work_id: str = ""
    """The work that it belongs to; empty: none of this host's."""
    is_gone: bool = False
    """Whether the driver lists it, and there is no such process."""


@dataclass(slots=True)
class DeviceUsers:
    """The picture at the last sample."""

    by_work: dict[str, dict[str, int]] = field(default_factory=dict)
    """Memory in MiB that work holds, by its id and the device's UUID."""
    overdraws: list[Overdraw] = field(default_factory=list)
    ungranted: list[UngrantedProcess] = field(default_factory=list)
    gone: list[UngrantedProcess] = field(default_factory=list)
    """Processes that the driver lists and that are not there: just ended, or their memory was never freed."""
    high_water_mib: dict[str, dict[str, int]] = field(default_factory=dict)
    """The most that work that still runs has held, by its id and the device's UUID."""

    def take(
        self,
        readings: Mapping[str, Readings],
        owners: Mapping[int, str],
        grants: Iterable[MemoryGrant],
        slack_mib: int,
        own_pids: Container[int] = (),
    ) -> None:
        """Take the next sample of all devices; *owners*: the work of each process, by pid, empty for nobody's.

        A process that *owners* does not name is gone; one of *own_pids* is the agent's and passed over. One that is not
        told its memory is not counted. *slack_mib* is what work may have above its grant before it is an overdraw:
        drivers count their own share of a process too.
        """
        granted = {grant.work_id: grant for grant in grants}
        by_work: dict[str, dict[str, int]] = {}
        ungranted: list[UngrantedProcess] = []
        gone: list[UngrantedProcess] = []
        for uuid, sample in readings.items():
            for process in sample.processes or ():
                work_id = owners.get(process.pid)
                if process.pid in own_pids:
                    continue
                if work_id is None:
                    if len(gone) < LISTED_MAX:
                        gone.append(UngrantedProcess(uuid, process.pid, process.memory_mib, is_gone=True))
                    continue
                grant = granted.get(work_id)
                if (grant is None or uuid not in grant.gpu_uuids) and len(ungranted) < LISTED_MAX:
                    ungranted.append(UngrantedProcess(uuid, process.pid, process.memory_mib, work_id))
                if work_id and process.memory_mib is not None:
                    held = by_work.setdefault(work_id, {})
                    held[uuid] = held.get(uuid, 0) + process.memory_mib
        self.by_work, self.ungranted, self.gone = by_work, ungranted, gone
        self.overdraws = [
            Overdraw(work_id, uuid, used, grant.memory_mib)
            for work_id, held in by_work.items()
            if (grant := granted.get(work_id)) is not None and grant.memory_mib is not None
            for uuid, used in held.items()
            if uuid in grant.gpu_uuids and used > grant.memory_mib + slack_mib
        ]
        kept = {work_id: most for work_id, most in self.high_water_mib.items() if work_id in granted}
        for work_id, held in by_work.items():
            if work_id in granted:
                most = kept.setdefault(work_id, {})
                most.update({uuid: max(used, most.get(uuid, 0)) for uuid, used in held.items()})
        self.high_water_mib = kept


def pids_of(readings: Mapping[str, Readings]) -> tuple[int, ...]:
    """All processes that have memory on a device."""
    return tuple(sorted({process.pid for sample in readings.values() for process in sample.processes or ()}))
