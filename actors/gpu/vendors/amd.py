"""AMD devices: through AMD SMI (``amdsmi``), where that cannot be used through ``pyrsmi``, and else from sysfs.

Runs inside a DeviceProbe child only. ``amdsmi`` has to be of the same ROCm as the library: one whose library is older
does not import. pyrsmi calls the same library in another way, and reads less; the kernel's files need none.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..probe_report import DeviceEvent, ProbeReport, SettingRefused, Vendor
from ..readings import Readings
from .amd_smi import AmdSmi
from .amd_sysfs import AmdSysfs, is_integrated
from .pci import list_gpus
from .rocm import Rocm

_LIBRARY = "libamd_smi.so"


def traces_of_amd(root: str = "/", environ: dict[str, str] | None = None) -> tuple[bool, str]:
    """Whether AMD's libraries are worth asking, and by what sign: ``device``, ``library`` or empty. Loads nothing.

    A processor's own graphics, which has little memory of its own, is no sign: nobody means it by a GPU of a cluster.
    """
    base = Path(root)
    variables = os.environ if environ is None else environ
    driven = [gpu for gpu in list_gpus(base) if gpu.vendor == "amd" and gpu.driver == "amdgpu"]
    if any(not is_integrated(gpu) for gpu in driven) or (not driven and (base / "dev/kfd").exists()):
        return True, "device"
    named = [variables[name] for name in ("ROCM_HOME", "ROCM_PATH") if variables.get(name)]
    for folder in [*named, str(base / "opt/rocm")]:
        if Path(folder, "lib", _LIBRARY).exists():
            return True, "library"
    return False, ""


class Amd:
    """The best of AMD's libraries that works here, behind the Vendor interface."""

    name = "amd"

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._chosen: Vendor | None = None
        self._report: ProbeReport | None = None

    def probe(self) -> ProbeReport:
        """Ask one library after the other until one lists devices; what kept the others from it is told as well."""
        self._report = self._probe()
        return self._report

    def list_again(self) -> ProbeReport:
        """What was listed: the library lists other devices only to the next process that asks it."""
        assert self._report is not None, "nobody sets what was not listed"
        return self._report

    def set_partitions(self, uuid: str, change: str, what: str) -> str:
        """Have a GPU be cut otherwise (``AmdSmi.set_partitions``). Raises SettingRefused."""
        if not isinstance(self._chosen, AmdSmi):
            raise SettingRefused("only AMD SMI (amdsmi) cuts GPUs, and something else answers here")
        return self._chosen.set_partitions(uuid, change, what)

    def _probe(self) -> ProbeReport:
        problems: list[str] = []
        first: ProbeReport | None = None
        candidates: tuple[Vendor, ...] = (AmdSmi(), Rocm(), AmdSysfs(self._root))
        for candidate in candidates:
            report = candidate.probe()
            if report.devices:
                self._chosen = candidate
                told = (*problems, *report.problems)
                return ProbeReport(
                    self.name,
                    report.outcome,
                    report.message,
                    report.driver_version,
                    report.devices,
                    told,
                    report.facts,
                    report.links,
                    report.binding,
                )
            first = first or report
            if report.outcome != "absent":
                problems.append(f"{report.binding or type(candidate).__name__}: {report.outcome} ({report.message})")
        assert first is not None, "there are always candidates"
        return ProbeReport(self.name, first.outcome, first.message, None, (), tuple(problems), (), (), first.binding)

    def read(self) -> dict[str, Readings]:
        """Readings by UUID."""
        return self._chosen.read() if self._chosen is not None else {}

    def next_events(self, wait_s: float) -> list[DeviceEvent] | None:
        """Resets, throttling and faults, where the library tells them."""
        return self._chosen.next_events(wait_s) if self._chosen is not None else None

    def set_power_limit(self, uuid: str, watts: float) -> None:
        """Set the power cap. Raises SettingRefused."""
        if self._chosen is None:
            raise SettingRefused("no library of AMD's answers here")
        self._chosen.set_power_limit(uuid, watts)
