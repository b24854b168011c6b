"""AMD devices through ``pyrsmi``: for hosts where amdsmi cannot be used. It tells neither heat, clocks nor errors."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Callable
from typing import Any

from ..device import Device
from ..probe_report import FACTS, DeviceEvent, DeviceFacts, ProbeReport, SettingRefused
from ..readings import READINGS, Readings
from .amd_identity import distinct
from .binding import BindingFailed, load, quietly
from .pci import links_by_bus, numa_node

MAX_DEVICES = 1024
_NOT_TOLD = "pyrsmi does not tell it"
_NO_ANSWER = "the library gave no answer"


class Rocm:
    """pyrsmi behind the Vendor interface; devices go by their number there, as long as the process lives."""

    name = "amd"

    def __init__(self) -> None:
        self._rocml: Any = None
        self._numbers: dict[str, int] = {}

    def probe(self) -> ProbeReport:
        """Load pyrsmi and list the devices."""
        # It would try amdsmi first, which has just failed, and stumble over how: it looks for ImportError alone.
        kept = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "amdsmi"}
        for name in kept:
            del sys.modules[name]
        sys.modules["amdsmi"] = None  # type: ignore[assignment]
        logging.getLogger().setLevel(logging.CRITICAL)  # it logs every "not supported" as an error, on the root logger
        try:
            self._rocml = rocml = load(_binding, "pyrsmi", "amd")
            quietly(rocml.smi_initialize)
            _keep_whole(rocml)
            count = min(int(rocml.smi_get_device_count()), MAX_DEVICES)
        except BindingFailed as error:
            return ProbeReport(self.name, error.outcome, str(error), binding="pyrsmi")
        except Exception as error:  # noqa: BLE001 - it raises its own errors, RuntimeError and more
            outcome = "no_library" if "LibraryNotFound" in type(error).__name__ else "no_driver"
            return ProbeReport(self.name, outcome, str(error) or type(error).__name__, binding="pyrsmi")
        told = [(self._uuid(number), self._bus_id(number)) for number in range(count)]
        names = distinct((None, bus or f"gpu{number}", uuid) for number, (uuid, bus) in enumerate(told))
        devices: list[Device] = []
        problems: list[str] = []
        for number, (_, bus) in enumerate(told):
            total = self._number(lambda number=number: rocml.smi_get_device_memory_total(number))  # type: ignore[misc]
            if not total:
                problems.append(f"AMD GPU {number}: the size of its memory is not known")
                continue
            model = self._text(lambda number=number: rocml.smi_get_device_name(number))  # type: ignore[misc]
            node = self._number(lambda number=number: rocml.smi_get_device_topo_numa_node_number(number))  # type: ignore[misc]
            device = Device(
                uuid=names[number],
                index=len(devices),
                vendor=self.name,
                model=model or "AMD GPU",
                memory_mib=int(total) // 2**20,
                source="probed",
                pcie_bus_id=bus,
                numa_node=numa_node(bus) if node is None else int(node),
            )
            self._numbers[device.uuid] = number
            devices.append(device)
        facts = tuple(DeviceFacts(device.uuid, unsupported=dict.fromkeys(FACTS, _NOT_TOLD)) for device in devices)
        version = getattr(sys.modules.get("pyrsmi"), "__version__", "")
        return ProbeReport(
            self.name,
            "ok" if devices else "absent",
            "",
            None,
            tuple(devices),
            tuple(problems),
            facts,
            tuple(links_by_bus(devices)),
            f"pyrsmi {version}".strip(),
        )

    def read(self) -> dict[str, Readings]:
        """Readings by UUID: memory, load and power."""
        return {uuid: self._read_one(number) for uuid, number in self._numbers.items()}

    def _read_one(self, number: int) -> Readings:
        rocml = self._rocml
        used = self._number(lambda: rocml.smi_get_device_memory_used(number))
        found: dict[str, Any] = {
            "memory_used_mib": None if used is None else int(used) // 2**20,
            "utilization_percent": self._number(lambda: rocml.smi_get_device_utilization(number)),
            "power_watts": self._number(lambda: rocml.smi_get_device_average_power(number)),
        }
        if all(value is None for value in found.values()):
            return Readings.none(_NO_ANSWER, error="it does not answer any more")
        values = {name: value for name, value in found.items() if value is not None}
        reasons = {name: _NO_ANSWER if name in found else _NOT_TOLD for name in READINGS if name not in values}
        return Readings(**values, unsupported=reasons)

    def _number(self, ask: Callable[[], Any]) -> float | None:
        """The answer; pyrsmi says -1 for every failure, and raises ValueError for some."""
        try:
            value = ask()
        except Exception:  # noqa: BLE001 - whatever it is, there is no answer
            return None
        return value if isinstance(value, int | float) and value >= 0 else None

    def _text(self, ask: Callable[[], Any]) -> str | None:
        try:
            value = ask()
        except Exception:  # noqa: BLE001 - whatever it is, there is no answer
            return None
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        return value.strip() or None if isinstance(value, str) else None

    def _uuid(self, number: int) -> str | None:
        return self._text(lambda: self._rocml.smi_get_device_uuid(number))

    def _bus_id(self, number: int) -> str | None:
        packed = self._number(lambda: self._rocml.smi_get_device_pci_id(number))
        if packed is None:
            return None
        bits = int(packed)
        # AMD SMI packs domain, bus, device and function without gaps.
        return f"{bits >> 16 & 0xFFFF:04x}:{bits >> 8 & 0xFF:02x}:{bits >> 3 & 0x1F:02x}.{bits & 7:x}"

    def next_events(self, wait_s: float) -> list[DeviceEvent] | None:
        """None: pyrsmi has no events."""
        return None

    def set_power_limit(self, uuid: str, watts: float) -> None:
        """Refused: pyrsmi sets no limits."""
        raise SettingRefused("pyrsmi sets no power limits; amdsmi would")


def _keep_whole(rocml: Any) -> None:
    """Have pyrsmi pass its handles as pointers: it keeps them as numbers, which ctypes passes on as 32 bits."""
    handles = getattr(rocml, "_processor_handles", [])
    handles[:] = [ctypes.c_void_p(handle) if isinstance(handle, int) else handle for handle in handles]


def _binding() -> Any:
    from pyrsmi import rocml

    return rocml
