"""Devices that are simulated or declared, names of models, indexes over restarts, and signs of a vendor."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorgrid.actors.gpu.device import Device, keep_indexes
from actorgrid.actors.gpu.device_words import answers_to
from actorgrid.actors.gpu.readings import READINGS
from actorgrid.actors.gpu.vendors.declared import declared_devices, declared_readings
from actorgrid.actors.gpu.vendors.nvidia import traces_of_nvidia
from actorgrid.actors.gpu.vendors.simulated import simulated_devices, simulated_readings
from actorgrid.configs.gpus_section import DeclaredGpus
from actorgrid.errors import InvalidSetting


def test_simulated_devices_are_the_same_at_every_start() -> None:
    first = simulated_devices("simulated:8xH100-80GB", "host-a")
    assert first == simulated_devices("simulated:8xH100-80GB", "host-a")
    assert {device.uuid for device in first}.isdisjoint(
        device.uuid for device in simulated_devices("simulated:8xH100-80GB", "host-b")
    )
    assert [device.index for device in first] == list(range(8))
    assert all(device.uuid.startswith("GPU-sim-") for device in first)
    assert (first[0].memory_mib, first[0].source, first[0].compute_capability) == (81_920, "simulated", "9.0")


@pytest.mark.parametrize(
    ("model", "vendor"),
    [("H100", "nvidia"), ("MI300X", "amd"), ("Max1550", "intel"), ("Flex170", "intel"), ("Arc770", "intel")],
)
def test_a_simulated_device_has_the_vendor_of_what_it_simulates(model: str, vendor: str) -> None:
    assert simulated_devices(f"simulated:1x{model}-64GB", "h")[0].vendor == vendor


def test_a_specification_that_makes_no_sense_is_refused_with_an_example() -> None:
    with pytest.raises(InvalidSetting, match="simulated:8xH100-80GB"):
        simulated_devices("simulated:eight", "h")


def test_simulated_readings_follow_what_is_allocated() -> None:
    device = simulated_devices("simulated:1xH100-80GB", "h")[0]
    idle, half, full = (simulated_readings(device, milli, 0) for milli in (0, 500, 1000))
    assert (idle.utilization_percent, half.utilization_percent, full.utilization_percent) == (0.0, 50.0, 100.0)
    assert idle.power_watts and half.power_watts and full.power_watts == 700.0
    assert idle.power_watts < half.power_watts < full.power_watts
    assert simulated_readings(device, 500, 2048).memory_used_mib == 2048


def test_declared_devices_count_and_have_no_telemetry() -> None:
    declared = [
        DeclaredGpus.model_validate({"vendor": "apple", "model": "M3Ultra", "memory": "96GiB"}),
        DeclaredGpus.model_validate({"vendor": "qualcomm", "model": "AI100", "memory": "32GiB", "count": 2}),
    ]
    devices = declared_devices(declared, "h", first_index=3)
    assert [(device.index, device.vendor, device.memory_mib) for device in devices] == [
        (3, "apple", 98_304),
        (4, "qualcomm", 32_768),
        (5, "qualcomm", 32_768),
    ]
    readings = declared_readings()
    assert all(getattr(readings, name) is None for name in READINGS)
    assert set(readings.unsupported) == set(READINGS)


@pytest.mark.parametrize(
    ("asked", "yes"),
    [
        ("H100", True),
        ("h100", True),
        ("H100-80GB", True),
        ("NVIDIA H100 80GB HBM3", True),
        ("H10", False),
        ("A100", False),
        ("", False),
    ],
)
def test_a_model_is_found_by_the_words_people_use(asked: str, yes: bool) -> None:
    assert answers_to(asked, "NVIDIA H100 80GB HBM3") is yes


def test_a_memory_size_is_part_of_what_a_model_answers_to() -> None:
    assert answers_to("H100-80GB", "H100", 81_920)
    assert not answers_to("H100-40GB", "H100", 81_920)


@pytest.mark.parametrize(
    ("asked", "yes"),
    [
        ("nvidia", {"a100", "h100", "l4", "t4"}),
        ("amd", {"mi300x"}),
        ("intel", {"max"}),
        ("hopper", {"h100"}),
        ("Ada", {"l4"}),
        ("turing", {"t4"}),
        ("CDNA3", {"mi300x"}),
        ("gfx942", {"mi300x"}),
        ("xe-hpc", {"max"}),
        ("cc9.0", {"h100"}),
        ("cc8.0+", {"a100", "h100", "l4"}),
        ("cc8+", {"a100", "h100", "l4"}),
        ("cc8.0+ 24gb", {"l4"}),
        ("nvidia cc8.9+", {"h100", "l4"}),
        ("amd cc8.0+", set()),
        ("cc10.0+", set()),
        ("cc8.0", {"a100"}),
        ("apple", set()),
    ],
)
def test_vendor_and_architecture_are_words_too_and_a_capability_may_be_a_least_one(asked: str, yes: set[str]) -> None:
    devices = {
        "a100": ("NVIDIA A100-SXM4-40GB", 40_960, "nvidia", "8.0"),
        "h100": ("NVIDIA H100 80GB HBM3", 81_559, "nvidia", "9.0"),
        "l4": ("NVIDIA L4", 24_576, "nvidia", "8.9"),
        "t4": ("Tesla T4", 15_360, "nvidia", "7.5"),
        "mi300x": ("AMD Instinct MI300X", 196_592, "amd", "gfx942"),
        "max": ("Intel Data Center GPU Max 1550", 131_072, "intel", "xe-hpc"),
        "declared": ("M3 Ultra", 98_304, "apple", None) if asked != "apple" else ("x", 1, "", None),
    }
    assert {name for name, device in devices.items() if answers_to(asked, *device)} == yes


def test_a_known_device_keeps_its_index_when_others_come_and_go() -> None:
    def device(uuid: str, index: int) -> Device:
        return Device(uuid, index, "nvidia", "H100", 1, "probed")

    known = {"a": 0, "b": 1, "c": 2}
    kept = keep_indexes([device("c", 0), device("new", 1), device("a", 2)], known)
    assert [(one.uuid, one.index) for one in kept] == [("a", 0), ("c", 2), ("new", 3)]


def test_a_host_without_a_sign_of_nvidia_is_not_probed(tmp_path: Path) -> None:
    assert traces_of_nvidia(str(tmp_path), {}) == (False, "")


def test_every_sign_of_nvidia_is_seen(tmp_path: Path) -> None:
    assert traces_of_nvidia(str(tmp_path), {"ACTORGRID_NVML_LIBRARY": "/x.so"}) == (True, "library")
    folder = tmp_path / "sys/bus/pci/devices/0000:1b:00.0"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text("0x8086\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(b"\0libfoo.so\0libnvidia-ml.so.1\0")
    assert traces_of_nvidia(str(tmp_path), {}) == (True, "library")
    (folder / "vendor").write_text("0x10de\n")
    assert traces_of_nvidia(str(tmp_path), {}) == (True, "device")
