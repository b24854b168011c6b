"""The script that this host's simulated devices play: its file, and how far it is."""

from __future__ import annotations

import os
from collections.abc import Callable

from actorgrid.configs.gpus_section import GpusSection
from actorgrid.errors import InvalidSetting

from .device import Device
from .readings import Readings
from .simulation_script import SimulationScript
from .vendors.simulated import simulated_readings

FILE_BYTES_MAX = 2**20


class SimulatedPlay:
    """Readings of simulated devices: as the script of *settings* says, else as the model does.

    It begins with ``begin``, and anew whenever the file is another. *note* is told what is wrong with a file, which
    then leaves everything as it was.
    """

    def __init__(self, settings: GpusSection, clock: Callable[[], float], note: Callable[[str, bool], None]) -> None:
        self._settings = settings
        self._clock = clock
        self._note = note
        self._script: SimulationScript | None = None
        self._stamp: tuple[int, int, int] | None = None
        self._began_s = 0.0
        self._told_s = -1.0
        self._count = 0

    @property
    def is_on(self) -> bool:
        """Whether devices are to play a script, be it readable or not."""
        return bool(self._settings.simulated_script) and self._count > 0

    def begin(self, count: int) -> None:
        """Let *count* devices play from now on."""
        self._count = count
        self._look()

    def readings(self, device: Device, allocated_milli: int, allocated_mib: int) -> Readings:
        """What *device* reads now, with that much of it given out."""
        script, elapsed_s = self._script, self._clock() - self._began_s
        busy = None if script is None else script.load_percent(device.index, elapsed_s)
        modelled = simulated_readings(device, allocated_milli, allocated_mib, self._settings.simulated_busy, busy)
        return modelled if script is None else script.readings(device.index, elapsed_s, modelled)

    def xids(self) -> list[tuple[int, int]]:
        """The XIDs that were due since the last call, with the devices' indexes. Looks whether the file is another."""
        self._look()
        if self._script is None:
            return []
        before_s, self._told_s = self._told_s, self._clock() - self._began_s
        return list(self._script.xids(before_s, self._told_s))

    def _look(self) -> None:
        path = self._settings.simulated_script
        if not path:
            return
        try:
            found = os.stat(path)
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            with open(path, "rb") as file:
                text = file.read(FILE_BYTES_MAX + 1)
            if len(text) > FILE_BYTES_MAX:
                raise InvalidSetting(f"it is larger than {FILE_BYTES_MAX} bytes", asked=path)
            self._script = SimulationScript(text.decode(), self._count)
        except (OSError, UnicodeDecodeError, InvalidSetting) as error:
            self._note(f"gpus.simulated_script {path}: {error}", True)
            return
        self._began_s, self._told_s = self._clock(), -1.0
