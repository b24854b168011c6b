"""Tells WorkerManager, which counts what work uses, what each sample of this host's devices shows."""

from __future__ import annotations

from collections.abc import Mapping

from actorgrid.supervisors.server import Server

from ..work.messages import DevicesSampled, DeviceUse
from .host_registration import HostRegistration
from .memory_watch import MemoryWatch
from .readings import Readings


class UsageFeed:
    """Of *server*'s devices: probed ones when *watch* knows whose processes are on them, simulated ones when told to.

    It sends a cast for each sample; one that finds no room in the queue is left out, and the next covers its time.
    """

    def __init__(self, server: Server, registration: HostRegistration, watch: MemoryWatch) -> None:
        self._server = server
        self._registration = registration
        self._watch = watch
        watch.on_looked = self._looked

    def _looked(self, readings: dict[str, Readings], known: bool) -> None:
        self._tell(tuple(use_of(uuid, sample, known) for uuid, sample in readings.items()), self._watch.users.by_work)

    def tell_simulated(self) -> None:
        """Tell of the simulated devices, which nothing is asked about: what they would read now."""
        found = self._registration.simulated_readings()
        self._tell(tuple(use_of(uuid, sample, known=False) for uuid, sample in found.items()), {})

    def _tell(self, devices: tuple[DeviceUse, ...], by_work_mib: Mapping[str, dict[str, int]]) -> None:
        if devices:
            self._server.cast("worker_manager", DevicesSampled(devices, dict(by_work_mib)))


def use_of(uuid: str, sample: Readings, known: bool) -> DeviceUse:
    """What *sample* shows; *known*: whether it is known whose its processes are."""
    trouble = sample.error or sample.unknown
    no_counter = trouble or sample.unsupported.get("energy_millijoules") or "the driver tells no counter of energy"
    return DeviceUse(
        uuid,
        sample.memory_used_mib,
        sample.energy_millijoules,
        sample.power_watts,
        known and sample.processes is not None,
        trouble or sample.unsupported.get("memory_used_mib") or "the driver does not tell it",
        no_counter if sample.power_watts is None else "",
    )
