"""Every vendor's real binding over a stub of its library: one contract for all, and what each of them has alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from actorgrid.actors.gpu.probe_report import FACTS, DeviceFacts
from actorgrid.actors.gpu.readings import READINGS, Readings
from actorgrid.actors.gpu.vendors.amd import traces_of_amd
from actorgrid.cli.checks import find_library
from tests.gpu.conftest import MakeStub, stub_library
from tests.gpu.drivers.build import AMD_SMI, LEVEL_ZERO, NVML, StubKind
from tests.gpu.drivers.stubs import AMD_RESET, AMD_THERMAL, NV_ECC_STORM, NV_XID, ZE_RESET_REQUIRED, StubDriver
from tests.gpu.watched import Watched


@dataclass(frozen=True)
class Case:
    """A vendor, and how its stub is told the same thing as the others."""

    vendor: str
    kind: StubKind
    temperature: str
    memory_used: str
    busy: str
    limit: str
    limit_unit: float
    activity_call: str
    limit_call: str
    not_supported: int
    no_permission: int
    init_no_permission: int


CASES = (
    Case(
        *("nvidia", NVML, "temp", "used_mib", "util", "limit_mw", 1000.0),
        *("nvmlDeviceGetTemperature", "nvmlDeviceSetPowerManagementLimit", 3, 4, 4),
    ),
    Case(
        *("amd", AMD_SMI, "hotspot_c", "used_mib", "util", "limit_uw", 1e6),
        *("amdsmi_get_temp_metric", "amdsmi_set_power_cap", 2, 10, 10),
    ),
    Case(
        *("intel", LEVEL_ZERO, "temp", "used_mib", "busy_us", "limit_mw", 1000.0),
        *("zesTemperatureGetState", "zesPowerSetLimitsExt", 0x78000003, 0x70010000, 0x70010000),
    ),
)


@pytest.fixture(params=CASES, ids=lambda case: case.vendor)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture
def stub(case: Case, make_stub: MakeStub) -> StubDriver:
    return make_stub(case.kind)


@pytest.fixture
def watch() -> Iterator[Callable[[str], Watched]]:
    made: list[Watched] = []

    def begin(vendor: str) -> Watched:
        made.append(Watched(vendor=vendor))
        return made[-1]

    yield begin
    for each in made:
        each.close()


Watch = Callable[[str], Watched]


# -- one contract for all


def test_devices_have_a_lasting_name_a_place_and_their_memory(case: Case, stub: StubDriver, watch: Watch) -> None:
    stub.add_machine(2)
    report = watch(case.vendor).report()
    assert (report.outcome, report.problems) == ("ok", ())
    assert len({device.uuid for device in report.devices}) == 2
    for place, device in enumerate(report.devices):
        assert (device.vendor, device.index, device.source) == (case.vendor, place, "probed")
        assert device.uuid.startswith("GPU-")
        assert device.memory_mib > 80_000
        assert device.pcie_bus_id and device.compute_capability and device.model


def test_facts_are_values_or_reasons(case: Case, stub: StubDriver, watch: Watch) -> None:
    stub.add_machine(2)
    report = watch(case.vendor).report()
    assert {fact.uuid for fact in report.facts} == {device.uuid for device in report.devices}
    for fact in report.facts:
        for name in FACTS:
            assert (getattr(fact, name) is None) == bool(fact.unsupported.get(name)), name
    fact = report.facts[0]
    assert fact.architecture and fact.driver_version
    assert fact.power_default_watts and fact.power_max_watts and fact.slowdown_celsius and fact.clock_max_mhz
    assert (fact.pcie_generation_max, fact.pcie_lanes_max) == (5, 16)


def test_every_reading_is_a_value_or_a_reason(case: Case, stub: StubDriver, watch: Watch) -> None:
    stub.add_machine(2)
    stub.put({"0.processes": "4711:1000,4712:20"})
    probe = watch(case.vendor)
    first = probe.report().devices[0].uuid
    for said in probe.read().values():
        both_or_neither = [
            name for name in READINGS if (getattr(said, name) is None) != bool(said.unsupported.get(name))
        ]
        assert both_or_neither == []
        assert said.error == said.unknown == ""
    said = probe.read()[first]
    assert said.temperature_celsius is not None and 30 < said.temperature_celsius < 60
    assert said.memory_used_mib is not None and said.ecc_corrected == said.ecc_uncorrected == said.pcie_replays == 0
    assert (said.pcie_generation, said.pcie_lanes) == (5, 16)
    assert said.processes is not None
    assert [(process.pid, process.memory_mib) for process in said.processes] == [(4711, 1000), (4712, 20)]


def test_a_device_that_reads_nothing_says_so_and_never_0(case: Case, stub: StubDriver, watch: Watch) -> None:
    stub.add_gpu(0)
    probe = watch(case.vendor)
    report = probe.report()
    keep = ("uuid", "name", "bus", "bdf", "serial", "total_mib", "gfx", "pci_id", "capability")
    stub.put({key: None for key in list(stub.values) if key[0] == "0" and key.partition(".")[2] not in keep})
    said = probe.read()[report.devices[0].uuid]
    values = {name: getattr(said, name) for name in READINGS if getattr(said, name) is not None}
    assert values in ({}, {"processes": ()}), "an empty list is what the driver says of who uses it"
    assert all(said.unsupported[name] for name in READINGS if name not in values)


def test_what_is_refused_is_a_reason_and_the_rest_is_read(case: Case, stub: StubDriver, watch: Watch) -> None:
    stub.add_gpu(0)
    probe = watch(case.vendor)
    uuid = probe.report().devices[0].uuid
    for code in (case.not_supported, case.no_permission):
        stub.fault(case.activity_call, code)
        said = probe.read()[uuid]
        assert said.temperature_celsius is None
        assert said.unsupported["temperature_celsius"]
        assert said.memory_used_mib is not None
        assert said.error == ""
    stub.fault(case.activity_call, None)
    assert probe.read()[uuid].temperature_celsius is not None


def test_a_lost_device_leaves_the_others_alone(case: Case, stub: StubDriver, watch: Watch) -> None:
    stub.add_machine(2)
    probe = watch(case.vendor)
    first, second = (device.uuid for device in probe.report().devices)
    stub.put({"1.lost": 1})
    said = probe.read()
    assert said[first].error == ""
    assert said[first].memory_used_mib is not None
    assert said[second].error
    assert all(getattr(said[second], name) is None for name in READINGS)


def test_all_devices_may_vanish_at_once(case: Case, stub: StubDriver, watch: Watch) -> None:
    stub.add_machine(8)
    probe = watch(case.vendor)
    assert len(probe.report().devices) == 8
    stub.set(count=0)
    assert all(said.error for said in probe.read().values())


def test_a_device_that_is_lost_at_start_is_a_problem_not_a_device(case: Case, stub: StubDriver, watch: Watch) -> None:
    stub.add_machine(2)
    stub.put({"0.lost": 1})
    report = watch(case.vendor).report()
    assert len(report.devices) == 1
    assert len(report.problems) == 1


def test_a_driver_that_keeps_us_out_is_an_outcome(case: Case, stub: StubDriver, watch: Watch) -> None:
    stub.add_gpu(0)
    stub.set(init=case.init_no_permission)
    report = watch(case.vendor).report()
    assert (report.outcome, report.devices) == ("no_permission", ())
    assert report.message


def test_a_power_limit_is_set_or_refused_with_the_reason(case: Case, stub: StubDriver, watch: Watch) -> None:
    stub.add_gpu(0)
    probe = watch(case.vendor)
    uuid = probe.report().devices[0].uuid
    answers: list[str] = []

    def limit(watts: float, to: str = uuid) -> str:
        was = list(answers)
        probe.probe.set_power_limit(to, watts, None, answers.append)
        return str(probe.wait(answers, len(was) + 1))

    assert limit(350.0) == ""
    assert stub.was_set() == [f"0.{case.limit}={round(350 * case.limit_unit)}"]
    assert probe.read()[uuid].power_limit_watts == 350.0
    assert limit(10_000.0)
    stub.fault(case.limit_call, case.no_permission)
    assert limit(300.0)
    assert "GPU-nobody" in limit(300.0, "GPU-nobody")
    assert len(stub.was_set()) == 1


def test_an_impossible_number_is_a_reason(case: Case, stub: StubDriver, watch: Watch) -> None:
    stub.add_gpu(0)
    probe = watch(case.vendor)
    uuid = probe.report().devices[0].uuid
    stub.put({f"0.{case.temperature}": 9999})
    said = probe.read()[uuid]
    assert said.temperature_celsius is None
    assert "9999" in said.unsupported["temperature_celsius"]
    assert said.memory_used_mib is not None


def test_no_devices_is_absent(case: Case, stub: StubDriver, watch: Watch) -> None:
    stub.set(count=0)
    assert watch(case.vendor).report().outcome == "absent"


@pytest.mark.parametrize("module", ["pynvml", "amdsmi", "pyzes"])
def test_a_missing_library_is_an_outcome_whatever_the_binding_raises(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str
) -> None:
    pytest.importorskip("pynvml")
    vendor = {"pynvml": "nvidia", "amdsmi": "amd", "pyzes": "intel"}[module]
    file = {"pynvml": "libnvidia-ml.so.1", "amdsmi": "libamd_smi.so", "pyzes": "libze_loader.so.1"}[module]
    if find_library(file):
        pytest.skip(f"this machine has {file}")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setenv("ROCM_HOME", str(tmp_path))
    report = watch(vendor).report()
    assert report.outcome == "no_library"
    assert report.message


# -- NVIDIA


def test_xids_and_storms_are_told_as_they_happen(nvml: StubDriver, watch: Watch) -> None:
    nvml.add_machine(2)
    probe = watch("nvidia")
    second = probe.report().devices[1].uuid
    nvml.event(1, NV_XID, 79)
    nvml.event(1, NV_ECC_STORM, 0)
    probe.wait(probe.events, 2)
    assert (probe.events[0].uuid, probe.events[0].kind, probe.events[0].code) == (second, "xid", 79)
    assert probe.events[1].kind == "ecc_storm"


def test_nvidia_topology_is_in_its_own_words(nvml: StubDriver, watch: Watch) -> None:
    nvml.add_machine(8)
    assert {link.word for link in watch("nvidia").report().links} == {"NV18"}
    nvml.put({**{f"{number}.nvlinks": None for number in range(8)}, "nvswitch_bus": None})
    words = [link.word for link in watch("nvidia").report().links]
    assert (len(words), set(words)) == (28, {"NODE", "SYS"})


def test_links_between_two_gpus_are_counted(nvml: StubDriver, watch: Watch) -> None:
    for number in range(2):
        nvml.add_gpu(number, nvlinks=4)
    nvml.put({"topology.0.1": 50, "0.nvlink.3.down": 1, "1.nvlink.3.down": 1})
    probe = watch("nvidia")
    (link,) = probe.report().links
    assert (link.word, link.distance) == ("NV3", 5)
    assert {said.links_down for said in probe.read().values()} == {1}


def test_instances_have_names_and_a_parent(nvml: StubDriver, watch: Watch) -> None:
    nvml.add_gpu(0, mig=2)
    nvml.put({"0.mig.0.profile": "3g.40gb", "0.mig.0.mib": 40_448, "0.mig.0.uuid": "MIG-aaaa", "0.processes": "9:30:1"})
    probe = watch("nvidia")
    report = probe.report()
    device, fact = report.devices[0], report.facts[0]
    assert (device.uuid, device.memory_mib) == ("MIG-aaaa", 40_448)
    assert (fact.parent, fact.partition) == ("GPU-11111111-0000-0000-0000-000000000000", "3g.40gb")
    said = probe.read()["MIG-aaaa"]
    assert said.power_watts is None
    assert "whole GPU" in said.unsupported["power_watts"]
    assert said.temperature_celsius == 40.0
    assert said.processes is not None and [process.pid for process in said.processes] == [9]


def test_an_older_driver_without_newer_functions_still_works(
    nvml: StubDriver, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = (
        *("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetNumaNodeId", "nvmlDeviceGetArchitecture"),
        *("nvmlDeviceGetRemappedRows", "nvmlEventSetWait_v2", "nvmlDeviceGetFieldValues"),
        "nvmlDeviceGetTemperatureV",
    )
    monkeypatch.setenv("ACTORGRID_NVML_LIBRARY", str(stub_library(NVML, missing)))
    nvml.add_gpu(0)
    probe = watch("nvidia")
    report = probe.report()
    assert report.outcome == "ok"
    assert "Function" in report.facts[0].unsupported["architecture"]
    said = probe.read()[report.devices[0].uuid]
    assert said.memory_used_mib == 512 + 551  # of old the driver's own share counts as used
    assert "Function" in said.unsupported["row_remap_pending"]
    assert said.temperature_celsius == 40.0


# -- AMD


def test_amd_devices_go_by_the_name_their_runtime_takes(amd_smi: StubDriver, watch: Watch) -> None:
    amd_smi.add_machine(2)
    report = watch("amd").report()
    assert [device.uuid for device in report.devices] == ["GPU-9a6c0de000000000", "GPU-9a6c0de000000001"]
    assert report.binding.startswith("amdsmi 7")
    assert [link.word for link in report.links] == ["XGMI"]


def test_partitions_of_one_device_are_kept_apart(amd_smi: StubDriver, watch: Watch) -> None:
    for number in range(4):
        amd_smi.add_gpu(number, serial="9a6c0de000000000", compute_partition="QPX", memory_partition="NPS4")
        amd_smi.put({f"{number}.uuid": "same"})
    report = watch("amd").report()
    assert len({device.uuid for device in report.devices}) == 4
    assert {fact.partition for fact in report.facts} == {"QPX/NPS4"}


def test_resets_and_heat_are_told(amd_smi: StubDriver, watch: Watch) -> None:
    amd_smi.add_machine(2)
    probe = watch("amd")
    first = probe.report().devices[0].uuid
    amd_smi.event(0, AMD_THERMAL, "over 100 C")
    amd_smi.event(0, AMD_RESET, "wedged")
    probe.wait(probe.events, 2)
    assert [(event.uuid, event.kind, event.text) for event in probe.events] == [
        (first, "thermal", "over 100 C"),
        (first, "reset", "wedged"),
    ]


def test_pyrsmi_is_asked_where_amdsmi_cannot_be_used(
    amd_smi: StubDriver, watch: Watch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # An older library lacks what amdsmi looks for at import; pyrsmi calls by name. It asks the kernel by `cat`.
    library = stub_library(AMD_SMI, ("amdsmi_get_gpu_cper_entries",))
    for name in ("ROCM_PATH", "ROCM_HOME"):
        monkeypatch.setenv(name, str(library.parent.parent))
    cat = tmp_path / "bin" / "cat"
    cat.parent.mkdir()
    cat.write_text("#!/bin/sh\necho live\n")
    cat.chmod(0o755)
    monkeypatch.setenv("PATH", f"{cat.parent}:{os.environ['PATH']}")
    amd_smi.add_machine(2)
    probe = watch("amd")
    report = probe.report()
    assert report.binding.startswith("pyrsmi")
    assert any("version_mismatch" in problem for problem in report.problems)
    assert [device.memory_mib for device in report.devices] == [196_592, 196_592]
    said = probe.read()[report.devices[0].uuid]
    assert (said.memory_used_mib, said.utilization_percent, said.power_watts) == (285, 20, 141.0)
    assert "pyrsmi" in said.unsupported["temperature_celsius"]
    amd_smi.put({"0.lost": 1})
    lost = probe.read()
    assert lost[report.devices[0].uuid].error
    assert not lost[report.devices[1].uuid].error


# -- Intel


def test_power_and_load_are_differences_of_two_reads(level_zero: StubDriver, watch: Watch) -> None:
    level_zero.add_gpu(0)
    probe = watch("intel")
    uuid = probe.report().devices[0].uuid
    first = probe.read()[uuid]
    assert first.power_watts is None and first.utilization_percent is None
    level_zero.put(
        {"0.energy_uj": 5_400_000_000, "0.energy_at_us": 3_000_000, "0.busy_us": 600_000, "0.busy_at_us": 3_000_000}
    )
    second = probe.read()[uuid]
    assert (second.power_watts, second.utilization_percent) == (200.0, 25.0)
    level_zero.put({"0.energy_uj": 7, "0.energy_at_us": 4_000_000, "0.busy_us": 9, "0.busy_at_us": 4_000_000})
    backwards = probe.read()[uuid]
    assert backwards.power_watts is None and backwards.utilization_percent is None


def test_what_pyzes_lacks_is_read_beside_it(level_zero: StubDriver, watch: Watch) -> None:
    level_zero.add_machine(2)
    level_zero.put({"0.ras_corrected": 12, "0.ras_uncorrected": 1, "1.fabric.2.status": 3})
    probe = watch("intel")
    report = probe.report()
    assert [link.word for link in report.links] == ["XL4"]
    said = probe.read()
    assert (said[report.devices[0].uuid].ecc_corrected, said[report.devices[0].uuid].ecc_uncorrected) == (12, 1)
    assert said[report.devices[1].uuid].links_down == 1
    level_zero.event(1, ZE_RESET_REQUIRED)
    probe.wait(probe.events)
    assert (probe.events[0].uuid, probe.events[0].kind) == (report.devices[1].uuid, "reset_required")


def test_not_a_number_is_a_reason(level_zero: StubDriver, watch: Watch) -> None:
    level_zero.add_gpu(0, temp="nan")
    probe = watch("intel")
    uuid = probe.report().devices[0].uuid
    said = probe.read()[uuid]
    assert said.temperature_celsius is None
    assert "nan" in said.unsupported["temperature_celsius"]


def test_failing_memory_and_a_wedged_device_are_errors(level_zero: StubDriver, watch: Watch) -> None:
    level_zero.add_machine(2)
    level_zero.put({"0.memory_health": 4, "1.reset_reasons": 1})
    probe = watch("intel")
    probe.report()
    errors = [said.error for said in probe.read().values()]
    assert "memory" in errors[0]
    assert "reset" in errors[1]


# -- the kernel's files alone


def amd_in_sysfs(root: Path) -> Path:
    folder = root / "sys/bus/pci/devices/0000:0c:00.0"
    (folder / "hwmon/hwmon3").mkdir(parents=True)
    driver = root / "sys/bus/pci/drivers/amdgpu"
    driver.mkdir(parents=True)
    (folder / "driver").symlink_to(driver)
    files = {
        "vendor": "0x1002", "device": "0x74a1", "class": "0x120000", "numa_node": "1", "unique_id": "9a6c0de000000000",
        "mem_info_vram_total": str(196_592 << 20), "mem_info_vram_used": str(285 << 20), "gpu_busy_percent": "20",
        "current_link_speed": "32.0 GT/s PCIe", "current_link_width": "16", "product_name": "AMD Instinct MI300X",
        "hwmon/hwmon3/temp2_input": "44000", "hwmon/hwmon3/power1_average": "141000000",
        "hwmon/hwmon3/power1_cap": "750000000",
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).write_text(text + "\n")
    return folder


def test_without_a_library_the_kernel_s_files_tell_the_same_device(tmp_path: Path) -> None:
    amd_in_sysfs(tmp_path)
    # In a process of its own: whether amdsmi can be loaded is found out once in a process.
    script = (
        "import json, sys; from dataclasses import asdict; from pathlib import Path\n"
        "from actorgrid.actors.gpu.vendors.amd import Amd\n"
        f"amd = Amd(Path({str(tmp_path)!r})); report = amd.probe()\n"
        "said = {uuid: asdict(each) for uuid, each in amd.read().items()}\n"
        "print(json.dumps([asdict(report), said]))"
    )
    environment = {**os.environ, "ROCM_HOME": str(tmp_path), "ROCM_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    report, said = json.loads(done.stdout)
    (device,) = report["devices"]
    assert report["binding"] == "sysfs"
    assert (device["uuid"], device["model"]) == ("GPU-9a6c0de000000000", "AMD Instinct MI300X")
    assert (device["memory_mib"], device["numa_node"]) == (196_592, 1)
    readings = Readings.from_record(said["GPU-9a6c0de000000000"])
    assert (readings.memory_used_mib, readings.utilization_percent) == (285, 20)
    assert (readings.temperature_celsius, readings.power_watts, readings.power_limit_watts) == (44.0, 141.0, 750.0)
    assert (readings.pcie_generation, readings.pcie_lanes) == (5, 16)
    assert readings.unsupported["ecc_corrected"]


def test_a_processors_own_graphics_is_no_gpu_of_a_cluster(tmp_path: Path) -> None:
    folder = amd_in_sysfs(tmp_path)
    assert traces_of_amd(str(tmp_path), {}) == (True, "device")
    (folder / "mem_info_vram_total").write_text(f"{512 << 20}\n")
    assert traces_of_amd(str(tmp_path), {}) == (False, "")


def test_facts_that_are_no_numbers_are_reasons() -> None:
    fact = DeviceFacts.from_record({"uuid": "GPU-1", "clock_max_mhz": float("nan"), "links": 4, "minor": "no number"})
    assert (fact.clock_max_mhz, fact.links, fact.minor) == (None, 4, None)
    assert "nan" in fact.unsupported["clock_max_mhz"]


def test_instances_are_cut_and_put_together_by_profile(nvml: StubDriver, watch: Watch) -> None:
    nvml.add_gpu(0)
    probe = watch("nvidia")
    (gpu,) = probe.report().mig
    assert (gpu.enabled, gpu.instances, [each.name for each in gpu.profiles][:2]) == (False, (), ["1g.10gb", "2g.20gb"])
    assert "MIG" not in probe.report().devices[0].model
    assert "Not Supported" in probe.cut(gpu.uuid, "create", "3g.40gb")[0]
    assert probe.cut(gpu.uuid, "mode", "on") == ("", "")
    (whole,) = probe.report().devices
    assert whole.cut, "with MIG on and nothing cut, no work can use it"
    why, made = probe.cut(gpu.uuid, "create", "3g.40gb")
    assert (why, made[:4]) == ("", "MIG-")
    (part,) = probe.report().devices
    assert (part.uuid, part.parent, part.share_milli, part.memory_mib) == (made, gpu.uuid, 428, 40_448)
    assert part.model == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert probe.cut(gpu.uuid, "create", "4g.40gb")[0] == ""
    assert "Insufficient Resources" in probe.cut(gpu.uuid, "create", "1g.10gb")[0]
    (gpu,) = probe.report().mig
    assert [each.profile for each in gpu.instances] == ["3g.40gb", "4g.40gb"]
    assert {each.room for each in gpu.profiles} == {0}
    assert "no profile 9g.90gb: it has 1g.10gb" in probe.cut(gpu.uuid, "create", "9g.90gb")[0]
    assert "In use" in probe.cut(gpu.uuid, "mode", "off")[0]
    nvml.put({"0.processes": "4711:900:1"})
    assert "In use" in probe.cut(gpu.uuid, "destroy", made)[0]
    nvml.put({"0.processes": None})
    for each in gpu.instances:
        assert probe.cut(gpu.uuid, "destroy", each.uuid) == ("", "")
    assert probe.cut(gpu.uuid, "mode", "off") == ("", "")
    assert [device.uuid for device in probe.report().devices] == [gpu.uuid]
    assert probe.read()[gpu.uuid].temperature_celsius == 40.0


@pytest.mark.parametrize(
    ("function", "code", "change", "why"),
    [
        ("nvmlDeviceSetMigMode", 4, ("mode", "on"), "Insufficient Permissions"),
        ("nvmlDeviceSetMigMode", 3, ("mode", "on"), "Not Supported"),
        ("nvmlDeviceCreateGpuInstance", 4, ("create", "1g.10gb"), "Insufficient Permissions"),
        ("nvmlGpuInstanceCreateComputeInstance", 23, ("create", "1g.10gb"), "no compute instance in 1g.10gb"),
    ],
)
def test_a_cut_that_is_refused_says_why_and_leaves_nothing(
    nvml: StubDriver, watch: Watch, function: str, code: int, change: tuple[str, str], why: str
) -> None:
    nvml.add_gpu(0, mig_mode=int(change[0] == "create"))
    probe = watch("nvidia")
    (gpu,) = probe.report().mig
    nvml.fault(function, code)
    assert why in probe.cut(gpu.uuid, *change)[0]
    nvml.fault(function, None)
    assert probe.report().mig == (gpu,), "as it was"


def test_a_mode_that_waits_for_a_reset_is_taken_back(nvml: StubDriver, watch: Watch) -> None:
    nvml.add_gpu(0, mig_needs_reset=1)
    probe = watch("nvidia")
    (gpu,) = probe.report().mig
    assert "only after a reset" in probe.cut(gpu.uuid, "mode", "on")[0]
    (gpu,) = probe.report().mig
    assert (gpu.enabled, gpu.pending) == (False, False)


def test_vendors_without_mig_cut_nothing(level_zero: StubDriver, watch: Watch) -> None:
    level_zero.add_gpu(0)
    probe = watch("intel")
    assert "cuts no devices" in probe.cut(probe.report().devices[0].uuid, "mode", "on")[0]
