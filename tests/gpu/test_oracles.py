"""Other people's programs over the same stub drivers: nvitop and GPUStack's runtime say what we say.

They are installed in an environment of their own, which is thrown away: their requirements are no business of ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.gpu.probe_report import ProbeReport
from actorgrid.actors.gpu.readings import Readings
from tests.gpu.drivers.stubs import StubDriver
from tests.gpu.watched import Watched

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

PROGRAMS = ("nvitop==1.7.2", "gpustack-runtime==0.2.6", "amdsmi==7.0.2", "nvidia-ml-py==13.615.71")
NVITOP = """
import json
from nvitop import Device, NA
def known(value): return None if value is NA else value
print(json.dumps([
    {
        "uuid": device.uuid(), "name": device.name(), "bus": device.bus_id(), "total": device.memory_total(),
        "used": device.memory_used(), "temperature": known(device.temperature()), "power": known(device.power_usage()),
        "busy": known(device.gpu_utilization()), "memory_busy": known(device.memory_utilization()),
        "limit": known(device.power_limit()), "ecc": known(device.total_volatile_uncorrected_ecc_errors()),
        "capability": device.cuda_compute_capability(),
        "processes": sorted((pid, process.gpu_memory()) for pid, process in device.processes().items()),
    }
    for device in Device.all()
]))
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the commands of an environment that has the other programs."""
    folder = tmp_path_factory.mktemp("programs") / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True)
    done = subprocess.run(
        [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *PROGRAMS], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"the other programs cannot be installed here: {done.stderr.strip()[-300:]}")
    return folder / "bin"


@pytest.fixture
def watch() -> Iterator[Callable[[str], Watched]]:
    made: list[Watched] = []

    def begin(vendor: str) -> Watched:
        made.append(Watched(vendor=vendor))
        return made[-1]

    yield begin
    for each in made:
        each.close()


def ours(watched: Watched) -> tuple[ProbeReport, dict[str, Readings]]:
    return watched.report(), watched.read()


def run(command: list[str], **variables: str) -> Any:
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **variables})
    # GPUStack clears the screen first.
    return json.loads(
        done.stdout[done.stdout.index("[", done.stdout.rfind("\x1b[H") + 3 if "\x1b" in done.stdout else 0) :]
    )


def test_nvitop_says_the_same(nvml: StubDriver, programs: Path, watch: Callable[[str], Watched]) -> None:
    nvml.add_machine(8)
    nvml.put({"0.processes": f"{os.getpid()}:1000", "3.temp": 81, "3.ecc_uncorrected": 2, "5.power_mw": None})
    report, readings = ours(watch("nvidia"))
    theirs = run([str(programs / "python"), "-c", NVITOP], LD_LIBRARY_PATH=str(nvml.library.parent))
    assert len(theirs) == len(report.devices) == 8
    for device, their in zip(report.devices, theirs, strict=True):
        said = readings[device.uuid]
        power = None if said.power_watts is None else said.power_watts * 1000
        assert (device.uuid, device.model, device.pcie_bus_id) == (their["uuid"], their["name"], their["bus"])
        assert device.memory_mib == their["total"] // 2**20
        assert device.compute_capability == "{}.{}".format(*their["capability"])
        assert said.memory_used_mib == their["used"] // 2**20
        assert (said.temperature_celsius, said.utilization_percent) == (their["temperature"], their["busy"])
        assert (power, said.memory_busy_percent) == (their["power"], their["memory_busy"])
        assert said.power_limit_watts == their["limit"] / 1000
        assert said.ecc_uncorrected == their["ecc"]
        mine = [[process.pid, (process.memory_mib or 0) * 2**20] for process in said.processes or ()]
        assert mine == their["processes"]


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_gpustack_says_the_same(
    vendor: str, programs: Path, watch: Callable[[str], Watched], request: pytest.FixtureRequest
) -> None:
    stub: StubDriver = request.getfixturevalue({"nvidia": "nvml", "amd": "amd_smi"}[vendor])
    stub.add_machine(8)
    stub.put({"2.used_mib": 40_000, "3.util": 97})
    report, readings = ours(watch(vendor))
    variables = {
        "LD_LIBRARY_PATH": str(stub.library.parent),
        "GPUSTACK_RUNTIME_DETECT": vendor,
        "GPUSTACK_RUNTIME_DETECT_NO_PCI_CHECK": "1",
    }
    command = str(programs / "gpustack-runtime")
    theirs = run([command, "detect", "--format", "json"], **variables)
    assert len(theirs) == len(report.devices) == 8
    for device, fact, their in zip(report.devices, report.facts, theirs, strict=True):
        said = readings[device.uuid]
        assert (device.uuid, device.model, device.memory_mib) == (their["uuid"], their["name"], their["memory"])
        assert (device.compute_capability, fact.driver_version) == (
            their["compute_capability"],
            their["driver_version"],
        )
        assert (said.memory_used_mib, said.utilization_percent) == (their["memory_used"], their["cores_utilization"])
        assert (said.temperature_celsius, fact.power_default_watts) == (their["temperature"], their["power"])
        assert said.power_watts is not None
        assert int(said.power_watts) == their["power_used"]
        assert str(device.pcie_bus_id).lower().endswith(their["appendix"]["bdf"])
    if vendor == "nvidia":  # of AMD it knows distances by its own library alone
        joined = run([command, "topology", "--format", "json"], **variables)[0]["devices_distances"]
        places = {device.uuid: place for place, device in enumerate(report.devices)}
        for link in report.links:
            assert joined[places[link.one]][places[link.other]] == link.distance
