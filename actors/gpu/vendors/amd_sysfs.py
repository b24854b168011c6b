"""AMD devices from the files of the kernel's driver (amdgpu) alone: the floor, where no library of AMD's works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..device import Device
from ..probe_report import FACTS, DeviceEvent, DeviceFacts, ProbeReport, SettingRefused
from ..readings import READINGS, Readings
from .amd_identity import distinct, runtime_name
from .pci import PciGpu, links_by_bus, list_gpus, pcie_link

INTEGRATED_BYTES_MAX = 2 * 2**30
_NOT_TOLD = "the kernel's files do not tell it"


class AmdSysfs:
    """The files of amdgpu behind the Vendor interface; *root* is where ``sys`` lies."""

    name = "amd"

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._gpus: dict[str, PciGpu] = {}

    def probe(self) -> ProbeReport:
        """List the devices that amdgpu drives."""
        gpus = [gpu for gpu in list_gpus(self._root) if gpu.vendor == "amd"]
        driven = [gpu for gpu in gpus if gpu.driver == "amdgpu" and not is_integrated(gpu)]
        if not driven:
            said = f"{len(gpus)} AMD GPUs on the bus, none that amdgpu drives with memory of its own" if gpus else ""
            return ProbeReport(self.name, "no_driver" if gpus else "absent", said, binding="sysfs")
        names = distinct((runtime_name(_text(gpu.folder / "unique_id")), gpu.bus_id, None) for gpu in driven)
        devices: list[Device] = []
        for gpu, uuid in zip(driven, names, strict=True):
            total = _number(gpu.folder / "mem_info_vram_total")
            if not total:
                continue
            model = _text(gpu.folder / "product_name") or f"AMD GPU {gpu.device_id:04x}"
            devices.append(
                Device(
                    uuid=uuid,
                    index=len(devices),
                    vendor=self.name,
                    model=model,
                    memory_mib=total // 2**20,
                    source="probed",
                    pcie_bus_id=gpu.bus_id,
                    numa_node=gpu.numa_node,
                )
            )
            self._gpus[uuid] = gpu
        driver = _text(self._root / "sys/module/amdgpu/version") or None
        facts = tuple(self._facts(device.uuid, driver) for device in devices)
        links = tuple(links_by_bus(devices, self._root))
        outcome = "ok" if devices else "absent"
        return ProbeReport(self.name, outcome, "", driver, tuple(devices), (), facts, links, "sysfs")

    def _facts(self, uuid: str, driver: str | None) -> DeviceFacts:
        gpu, limits = self._gpus[uuid], {}
        for name, file in (("power_default_watts", "power1_cap_default"), ("power_max_watts", "power1_cap_max"),
                           ("power_min_watts", "power1_cap_min")):  # fmt: skip
            value = self._hwmon(gpu, file)
            if value is not None:
                limits[name] = value / 1e6
        known: dict[str, object] = {**limits}
        if driver:
            known["driver_version"] = driver
        firmware = _text(gpu.folder / "vbios_version")
        if firmware:
            known["firmware"] = firmware
        reasons = {name: _NOT_TOLD for name in FACTS if name not in known}
        return DeviceFacts(uuid=uuid, unsupported=reasons, **known)  # type: ignore[arg-type]

    def read(self) -> dict[str, Readings]:
        """Readings by UUID; a device whose folder is gone is in error."""
        return {uuid: self._read_one(gpu) for uuid, gpu in self._gpus.items()}

    def _read_one(self, gpu: PciGpu) -> Readings:
        if not gpu.folder.exists():
            gone = "it is not on the bus any more"
            return Readings.none(gone, error=gone)
        generation, lanes = pcie_link(gpu.folder)
        found = {
            "memory_used_mib": _scaled(_number(gpu.folder / "mem_info_vram_used"), lambda value: value // 2**20),
            "utilization_percent": _number(gpu.folder / "gpu_busy_percent"),
            "memory_busy_percent": _number(gpu.folder / "mem_busy_percent"),
            # The second sensor is the hottest spot, the third the memory; cards without them have the edge alone.
            "temperature_celsius": _scaled(
                self._hwmon(gpu, "temp2_input") or self._hwmon(gpu, "temp1_input"), lambda value: value / 1000
            ),
            "memory_temperature_celsius": _scaled(self._hwmon(gpu, "temp3_input"), lambda value: value / 1000),
            "power_watts": _scaled(
                self._hwmon(gpu, "power1_average") or self._hwmon(gpu, "power1_input"), lambda value: value / 1e6
            ),
            "power_limit_watts": _scaled(self._hwmon(gpu, "power1_cap"), lambda value: value / 1e6),
            "clock_mhz": _scaled(self._hwmon(gpu, "freq1_input"), lambda value: value / 1e6),
            "memory_clock_mhz": _scaled(self._hwmon(gpu, "freq2_input"), lambda value: value / 1e6),
            "pcie_generation": generation,
            "pcie_lanes": lanes,
        }
        values = {name: value for name, value in found.items() if value is not None}
        return Readings.from_record({**values, "unsupported": {n: _NOT_TOLD for n in READINGS if n not in values}})

    def _hwmon(self, gpu: PciGpu, name: str) -> int | None:
        for path in sorted(gpu.folder.glob(f"hwmon/hwmon*/{name}"))[:1]:
            return _number(path)
        return None

    def next_events(self, wait_s: float) -> list[DeviceEvent] | None:
        """None: files tell no events."""
        return None

    def set_power_limit(self, uuid: str, watts: float) -> None:
        """Write the power cap, which needs root."""
        gpu = self._gpus.get(uuid)
        paths = [] if gpu is None else sorted(gpu.folder.glob("hwmon/hwmon*/power1_cap"))
        if not paths:
            raise SettingRefused("this device has no power cap in sysfs")
        try:
            paths[0].write_text(f"{round(watts * 1e6)}\n")
        except OSError as error:
            raise SettingRefused(f"{paths[0]}: {error.strerror}") from error


def is_integrated(gpu: PciGpu) -> bool:
    """Whether it is a processor's own graphics: it has at most 2 GiB that are set aside for it."""
    total = _number(gpu.folder / "mem_info_vram_total")
    return total is not None and total <= INTEGRATED_BYTES_MAX


def _scaled(value: int | None, scale: Callable[[int], float]) -> float | None:
    return None if value is None else scale(value)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None
