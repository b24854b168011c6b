"""NVIDIA devices through NVML (module ``pynvml`` of nvidia-ml-py). Runs inside a DeviceProbe child only.

``ACTORGRID_NVML_LIBRARY`` names the library's file where it is not on the linker's path; its SONAME must be
``libnvidia-ml.so.1``. A GPU with MIG on is listed as its instances.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..device import Device, ProbeReport, Readings

LIBRARY_VARIABLE = "ACTORGRID_NVML_LIBRARY"
MAX_DEVICES = 1024
_PCI_VENDOR = "0x10de"
SLOWDOWNS = ((0x20, "heat (software)"), (0x40, "heat (hardware)"), (0x80, "power brake"))
"""Bits of nvmlDeviceGetCurrentClocksThrottleReasons that are signs of trouble; a power cap or idleness is none."""


def traces_of_nvidia(root: str = "/", environ: dict[str, str] | None = None) -> tuple[bool, str]:
    """Whether NVML is worth asking, and by what sign; reads a few files, loads nothing.

    The sign is ``device`` (a driver's device node or a PCI device is there), ``library`` (only the library
    is installed, or named) or empty.
    """
    base = Path(root)
    variables = os.environ if environ is None else environ
    if (base / "dev/nvidiactl").exists() or (base / "dev/dxg").exists():
        return True, "device"
    for vendor in (base / "sys/bus/pci/devices").glob("*/vendor"):
        try:
            if vendor.read_text().strip() == _PCI_VENDOR:
                return True, "device"
        except OSError:
            continue
    if variables.get(LIBRARY_VARIABLE):
        return True, "library"
    folders = variables.get("LD_LIBRARY_PATH", "").split(":")
    if any(folder and Path(folder, "libnvidia-ml.so.1").exists() for folder in folders):
        return True, "library"
    try:
        cached = (base / "etc/ld.so.cache").read_bytes()
    except OSError:
        return False, ""
    return (True, "library") if b"libnvidia-ml.so.1" in cached else (False, "")


def _text(answer: Any) -> str:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)


class Nvidia:
    """NVML behind the Vendor interface. Handles are kept from ``probe`` to ``read``."""

    name = "nvidia"

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: dict[str, Any] = {}

    def probe(self) -> ProbeReport:
        """Load NVML and list the devices."""
        library = os.environ.get(LIBRARY_VARIABLE)
        try:
            import pynvml
        except ImportError:
            return self._failed("no_library", "pynvml is not installed; install actorgrid[nvidia]")
        self._nvml = nvml = pynvml
        try:
            if library:
                ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)  # the linker then takes it for the SONAME
            nvml.nvmlInit()
        except OSError as error:
            return self._failed("no_library", f"{library}: {error}")
        except nvml.NVMLError as error:
            return self._failed(self._outcome(error), str(error))
        problems: list[str] = []
        try:
            driver = _text(nvml.nvmlSystemGetDriverVersion())
            count = min(int(nvml.nvmlDeviceGetCount()), MAX_DEVICES)
        except nvml.NVMLError as error:
            return self._failed(self._outcome(error), str(error))
        devices: list[Device] = []
        for number in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(number)
                for one in self._instances(handle) or [handle]:
                    devices.append(self._device(one, handle, len(devices)))
            except nvml.NVMLError as error:
                problems.append(f"NVIDIA GPU {number}: {error}")
        outcome = "ok" if devices else "absent"
        return ProbeReport(self.name, outcome, "", driver, tuple(devices), tuple(problems))

    def read(self) -> dict[str, Readings]:
        """Readings by UUID; a device that fails says so and leaves the others alone."""
        return {uuid: self._read_one(handle) for uuid, handle in self._handles.items()}

    def _failed(self, outcome: str, message: str) -> ProbeReport:
        return ProbeReport(self.name, outcome, message)

    def _outcome(self, error: Any) -> str:
        nvml = self._nvml
        by_code = {
            nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no_library",
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND: "version_mismatch",
            nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "version_mismatch",
            nvml.NVML_ERROR_NO_PERMISSION: "no_permission",
        }
        return by_code.get(error.value, "no_driver")

    def _instances(self, handle: Any) -> list[Any]:
        """MIG instances of a GPU; empty when it is whole."""
        nvml = self._nvml
        if self._value(lambda: nvml.nvmlDeviceGetMigMode(handle)[0]) != 1:
            return []
        found = []
        for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
            except nvml.NVMLError as error:
                if error.value not in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT):
                    raise
        return found

    def _device(self, handle: Any, parent: Any, index: int) -> Device:
        nvml = self._nvml
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        name = self._value(lambda: _text(nvml.nvmlDeviceGetName(handle)))  # older drivers do not name instances
        bus_id = self._value(lambda: _text(nvml.nvmlDeviceGetPciInfo(parent).busId))
        capability = self._value(lambda: nvml.nvmlDeviceGetCudaComputeCapability(parent))
        self._handles[uuid] = handle
        return Device(
            uuid=uuid,
            index=index,
            vendor=self.name,
            model=name or _text(nvml.nvmlDeviceGetName(parent)) + " MIG",
            memory_mib=int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // 2**20,
            source="probed",
            compute_capability=None if capability is None else "{}.{}".format(*capability),
            pcie_bus_id=bus_id,
            numa_node=self._numa_node(parent, bus_id),
        )

    def _numa_node(self, handle: Any, bus_id: str | None) -> int | None:
        node: int | None = self._value(lambda: int(self._nvml.nvmlDeviceGetNumaNodeId(handle)))
        if node is not None or bus_id is None:
            return node
        # The driver rarely says; sysfs does. NVML writes the PCI domain with 8 digits, sysfs with 4.
        path = Path("/sys/bus/pci/devices", bus_id.lower()[-12:], "numa_node")
        try:
            said = int(path.read_text())
        except (OSError, ValueError):
            return None
        return said if said >= 0 else None

    def _value(self, ask: Callable[[], Any]) -> Any:
        """The answer, or ``None`` when this device or driver does not know; other failures are raised."""
        nvml = self._nvml
        try:
            return ask()
        except nvml.NVMLError as error:
            if error.value in (
                nvml.NVML_ERROR_NOT_SUPPORTED,
                nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                nvml.NVML_ERROR_INVALID_ARGUMENT,
                nvml.NVML_ERROR_NO_PERMISSION,
            ):
                return None
            raise

    def _read_one(self, handle: Any) -> Readings:
        nvml = self._nvml
        asked: dict[str, Callable[[], float | int]] = {
            "memory_used_mib": lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used) // 2**20,
            "utilization_percent": lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            "temperature_celsius": lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,
        }
        values: dict[str, Any] = {}
        unsupported: dict[str, str] = {}
        for name, ask in asked.items():
            try:
                values[name] = ask()
            except nvml.NVMLError as error:
                if error.value in (
                    nvml.NVML_ERROR_GPU_IS_LOST,
                    nvml.NVML_ERROR_UNINITIALIZED,
                    nvml.NVML_ERROR_RESET_REQUIRED,
                ):
                    return Readings.none(str(error), error=str(error))
                unsupported[name] = str(error)
        return Readings(**values, unsupported=unsupported, **self._signs_of_wear(handle))

    def _signs_of_wear(self, handle: Any) -> dict[str, Any]:
        """Counts of memory errors, and why it is slowed down; what a device or driver does not say is left out."""
        nvml = self._nvml

        def errors(kind: str) -> Callable[[], int]:
            return lambda: int(nvml.nvmlDeviceGetTotalEccErrors(handle, getattr(nvml, kind), nvml.NVML_VOLATILE_ECC))

        found = {
            "ecc_corrected": self._asked(errors("NVML_MEMORY_ERROR_TYPE_CORRECTED")),
            "ecc_uncorrected": self._asked(errors("NVML_MEMORY_ERROR_TYPE_UNCORRECTED")),
        }
        reasons = self._asked(lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))) or 0
        words = [word for bits, word in SLOWDOWNS if reasons & bits]
        return {**found, "throttled": ", ".join(words)}

    def _asked(self, ask: Callable[[], Any]) -> Any:
        """The answer, or ``None`` when there is none for whatever reason: nobody depends on it."""
        try:
            return ask()
        except (self._nvml.NVMLError, AttributeError):  # an older pynvml does not have it
            return None
