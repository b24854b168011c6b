"""A stub driver as a test drives it: machines of each vendor, faults by script, events, and what setters set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.gpu.drivers.build import AMD_SMI, CUDA, HIP, LEVEL_ZERO, LEVEL_ZERO_MEMORY, NVML, StubKind

STATE_VARIABLES = {
    NVML: "NVML_STUB_STATE",
    AMD_SMI: "AMD_SMI_STUB_STATE",
    LEVEL_ZERO: "LEVEL_ZERO_STUB_STATE",
    CUDA: "CUDA_STUB_STATE",
    HIP: "HIP_STUB_STATE",
    LEVEL_ZERO_MEMORY: "ZE_STUB_STATE",
}
LIBRARY_VARIABLES = {
    NVML: "ACTORGRID_NVML_LIBRARY",
    HIP: "ACTORGRID_HIP_LIBRARY",
    LEVEL_ZERO: "ACTORGRID_LEVEL_ZERO_LIBRARY",
    LEVEL_ZERO_MEMORY: "ACTORGRID_LEVEL_ZERO_LIBRARY",
}
NV_XID, NV_ECC_DOUBLE, NV_ECC_STORM = 8, 2, 0x200
AMD_RESET, AMD_THERMAL = 3, 2
ZE_DETACH, ZE_RESET_REQUIRED = 1 << 0, 1 << 14


class StubDriver:
    """A vendor's stub library with the file that says what it has."""

    def __init__(self, kind: StubKind, library: Path, state: Path) -> None:
        self.kind = kind
        self.library = library
        self.state = state
        self.values: dict[str, str] = {}

    @property
    def variables(self) -> dict[str, str]:
        """What the environment of a process has to hold for it to find this library and its state."""
        found = {STATE_VARIABLES[self.kind]: str(self.state)}
        if self.kind in LIBRARY_VARIABLES:
            found[LIBRARY_VARIABLES[self.kind]] = str(self.library)
        elif self.kind is AMD_SMI:
            found["ROCM_PATH"] = found["ROCM_HOME"] = str(self.library.parent.parent)
        return found

    # -- its state

    def put(self, values: Mapping[str, object]) -> None:
        """Change keys (``0.temp``); ``None`` removes one."""
        for key, value in values.items():
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = str(value)
        text = "".join(f"{key}={value}\n" for key, value in self.values.items())
        written = self.state.with_name(f"{self.state.name}.new")
        written.write_text(text)
        written.rename(self.state)

    def set(self, **values: object) -> None:
        """Change keys (``gpu0_temp`` stands for ``0.temp``); ``None`` removes one."""
        self.put({name[3:].replace("_", ".", 1) if name.startswith("gpu") else name: v for name, v in values.items()})

    def fault(self, function: str, what: object, device: int | None = None) -> None:
        """Script an exported function: a code, hang, abort, segv, slow N; ``None``: no more."""
        self.put({f"{'' if device is None else f'{device}.'}fault.{function}": what})

    def event(self, *words: object) -> None:
        """Have the driver tell an event."""
        with open(f"{self.state}.events", "a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def was_set(self) -> list[str]:
        """What setters set, in order, as KEY=VALUE."""
        path = Path(f"{self.state}.set")
        return path.read_text().splitlines() if path.exists() else []

    # -- its devices

    def add_gpu(self, number: int, **values: object) -> None:
        """One more device like those of a well-known machine of its vendor, changed by *values*."""
        make = {NVML: h100, AMD_SMI: mi300x, LEVEL_ZERO: max1550}[self.kind]
        cut = {"mig_mode": 1} if "mig" in values else {}
        fields = {**make(number), **cut, **values}
        self.put({"count": number + 1, **{f"{number}.{name}": value for name, value in fields.items()}})

    def add_machine(self, devices: int = 8) -> None:
        """A whole machine, with how its devices are joined."""
        for number in range(devices):
            self.add_gpu(number)
        for one in range(devices):
            for other in range(one + 1, devices):
                near = one // 4 == other // 4
                if self.kind is NVML:
                    self.put({f"topology.{one}.{other}": 40 if near else 50})
                elif self.kind is AMD_SMI:
                    self.put({f"link.{one}.{other}": "2:1:15"})
        if self.kind is NVML:
            self.put({"nvswitch_bus": "00000000:C0:00.0"})


def h100(number: int) -> dict[str, object]:
    """An H100 of eight, as NVML describes it when it is nearly idle."""
    return {
        "uuid": f"GPU-11111111-0000-0000-0000-{number:012d}",
        "name": "NVIDIA H100 80GB HBM3",
        "serial": f"16512340{number:05d}",
        "minor": number,
        "board_id": 0x1B00 + number,
        "vbios": "96.00.89.00.01",
        "architecture": 9,
        "total_mib": 81_559,
        "used_mib": 512 + number,
        "reserved_mib": 551,
        "bus": f"00000000:{0x1B + number:02X}:00.0",
        "capability": "9.0",
        "util": 10 + number,
        "memory_util": 3,
        "temp": 40 + number,
        "memory_temp": 45 + number,
        "slowdown_c": 87,
        "shutdown_c": 92,
        "power_mw": 100_500,
        "limit_mw": 700_000,
        "default_limit_mw": 700_000,
        "min_limit_mw": 200_000,
        "max_limit_mw": 700_000,
        "energy_mj": 123_456_789,
        "sm_mhz": 1980,
        "mem_mhz": 2619,
        "max_sm_mhz": 1980,
        "max_mem_mhz": 2619,
        "throttle": 0,
        "ecc_mode": 1,
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
        "remapped_corrected": 0,
        "remapped_uncorrected": 0,
        "remapped_pending": 0,
        "remapped_failure": 0,
        "replays": 0,
        "pcie_gen": 5,
        "pcie_width": 16,
        "max_pcie_gen": 5,
        "max_pcie_width": 16,
        "nvlinks": 18,
        "nvlink_errors": 0,
        "mig_mode": 0,
        "persistence": 1,
        "compute_mode": 0,
        "pstate": 0,
        "encoder_util": 0,
        "decoder_util": 0,
    }


def mi300x(number: int) -> dict[str, object]:
    """An MI300X of eight, as AMD SMI describes it."""
    return {
        "uuid": f"{number:02x}ff74a1-0000-1000-80{number:02x}-6ca44c6a90{number:02x}",
        "serial": f"{0x9A6C0DE000000000 + number:x}",
        "name": "AMD Instinct MI300X",
        "gfx": "0x942",
        "bdf": f"0000:{0x0C + 8 * number:02x}:00.0",
        "render": 128 + 8 * number,
        "partition_id": 0,
        "vbios": "113-M3000100-103",
        "total_mib": 196_592,
        "used_mib": 285 + number,
        "util": 20 + number,
        "memory_util": 4,
        "hotspot_c": 44 + number,
        "vram_c": 38 + number,
        "critical_c": 100,
        "power_w": 141 + number,
        "limit_uw": 750_000_000,
        "default_limit_uw": 750_000_000,
        "min_limit_uw": 0,
        "max_limit_uw": 750_000_000,
        "sm_mhz": 132,
        "mem_mhz": 900,
        "max_sm_mhz": 2100,
        "max_mem_mhz": 1300,
        "energy": 1_000_000,
        "resolution": 15.259,
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
        "bad_pages": 0,
        "pcie_width": 16,
        "pcie_mts": 32_000,
        "max_pcie_width": 16,
        "max_pcie_mts": 32_000,
        "replays": 0,
        "numa": number // 4,
        "compute_partition": "SPX",
        "memory_partition": "NPS1",
        "hive": 0x4A2C,
        "throttle_heat": 0,
    }


def max1550(number: int) -> dict[str, object]:
    """A Data Center GPU Max 1550, as Level Zero's Sysman describes it."""
    return {
        "uuid": f"80862f0bd5{number:02x}000000000000{number:08x}"[:32],
        "serial": f"Q3CK4567{number:04d}",
        "name": "Intel(R) Data Center GPU Max 1550",
        "pci_id": 0x0BD5,
        "driver": "1.3.27642",
        "subdevices": 2,
        "bdf": f"0000:{0x3A + number:02x}:00.0",
        "total_mib": 131_072,
        "used_mib": 48 + number,
        "temp": 35.5 + number,
        "memory_temp": 31.0,
        "max_temp": 105,
        "energy_uj": 5_000_000_000,
        "energy_at_us": 1_000_000,
        "limit_mw": 600_000,
        "default_limit_mw": 600_000,
        "min_limit_mw": 100_000,
        "max_limit_mw": 600_000,
        "mhz": 900,
        "max_mhz": 1600,
        "mem_mhz": 3200,
        "max_mem_mhz": 3200,
        "throttle": 0,
        "busy_us": 100_000,
        "busy_at_us": 1_000_000,
        "ecc_state": 1,
        "ras_corrected": 0,
        "ras_uncorrected": 0,
        "pcie_gen": 5,
        "pcie_width": 16,
        "max_pcie_gen": 5,
        "max_pcie_width": 16,
        "replays": 0,
        "fabric": 4,
        **{f"fabric.{port}.remote": (number + 1) % 2 for port in range(4)},
    }
