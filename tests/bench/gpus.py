"""Devices over stub drivers of each vendor: to list them, to read them, and to sum up those of a cluster."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from actorgrid.actors.gpu.clustering import GpuClusteringManager
from actorgrid.actors.gpu.device import Device
from actorgrid.actors.gpu.device_health import HostDeviceHealth
from actorgrid.actors.gpu.probe import DeviceProbe
from actorgrid.actors.gpu.probe_report import ProbeReport
from actorgrid.actors.gpu.readings import Readings
from actorgrid.actors.gpu.sampling import HostSampling
from actorgrid.actors.gpu.telemetry_history import GpuMetrics
from actorgrid.supervisors.inline import InlineNode
from tests.gpu.drivers.build import AMD_SMI, LEVEL_ZERO, NVML, NoBinding, NoCompiler, StubKind, build
from tests.gpu.drivers.stubs import StubDriver
from tests.processes import until
from tests.system.agent import Agent

from .figures import Figure, Skipped, registry

DEVICES = 8
READS = 50
SAMPLES = 100
INTERVAL_S = 5.0
"""The default of gpus.probe_interval_s."""
HOSTS = 1000
FAST_S = 0.5
"""The shortest gpus.probe_interval_s."""
VENDORS: dict[str, StubKind] = {"nvidia": NVML, "amd": AMD_SMI, "intel": LEVEL_ZERO}
CHILD = """
import json, sys, time
from actorgrid.actors.gpu.probe import vendor_of
vendor = vendor_of(sys.argv[1])
started, cpu = time.perf_counter(), time.process_time()
report = vendor.probe()
listed, listed_cpu = time.perf_counter() - started, time.process_time() - cpu
assert len(report.devices) == int(sys.argv[2]), report
vendor.read()
cpu = time.process_time()
for _ in range(int(sys.argv[3])):
    vendor.read()
print(json.dumps([listed, listed_cpu, (time.process_time() - cpu) / int(sys.argv[3])]))
"""


def _stub(vendor: str, folder: Path, **values: object) -> StubDriver:
    kind = VENDORS[vendor]
    try:
        stub = StubDriver(kind, build(kind), folder / kind.name)
    except NoCompiler:
        raise Skipped("no C compiler: the stub drivers cannot be built") from None
    except NoBinding as missing:
        raise Skipped(f"{missing} is not installed") from None
    stub.set(driver="600.01", cuda=13010, nvml="13.600.01")
    stub.add_machine(DEVICES)
    stub.put({f"{number}.processes": f"{4000 + number}:1000" for number in range(DEVICES)})
    stub.put({f"{number}.{name}": value for name, value in values.items() for number in range(DEVICES)})
    return stub


def _child(vendor: str, stub: StubDriver) -> list[float]:
    command = [sys.executable, "-c", CHILD, vendor, str(DEVICES), str(READS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **stub.variables})
    found: list[float] = json.loads(done.stdout)
    return found


@registry.add("gpu_vendors")
def gpu_vendors(runs: int) -> Iterator[Figure]:
    """Eight devices of each vendor through its real binding: the first listing, with the import, and a full sample."""
    with tempfile.TemporaryDirectory() as folder:
        for vendor, also, values in (
            *((vendor, "", {}) for vendor in VENDORS),
            ("nvidia", ", which MIG can cut", {"mig_mode": 0}),
        ):
            stub = _stub(vendor, Path(folder), **values)
            found = [_child(vendor, stub) for _ in range(runs)]
            yield Figure(
                f"inventory of {DEVICES} GPUs, {vendor}{also}",
                "ms",
                [one[0] * 1000 for one in found],
                False,
                must=50,
                note=f"of it CPU {min(one[1] for one in found) * 1000:.1f} ms at best; with the binding's import",
            )
            yield Figure(
                f"full sample of {DEVICES} GPUs, {vendor}{also}, CPU",
                "ms",
                [one[2] * 1000 for one in found],
                False,
                must=2,
            )


class _Host:
    """What an agent does with each sample of its devices, with the real child beside it."""

    def __init__(self, vendor: str) -> None:
        self.node = InlineNode(real_time=True)
        self.report: ProbeReport | None = None
        self.samples = 0
        self.health = HostDeviceHealth()
        self.sampling = HostSampling("host", logging.getLogger("bench"))
        self.probe = DeviceProbe(vendor, self.node, 30.0, self._reported, self._read, lambda why: None)
        self.probe.start()
        self.node.run_until(lambda: self.report is not None, 60.0, "the devices")

    def _reported(self, report: ProbeReport) -> None:
        self.report = report
        self.health.listed(report.devices, {})

    def _read(self, readings: dict[str, Readings]) -> None:
        assert self.report is not None
        now = time.time()
        self.health.read(readings, now)
        self.sampling.take(self.report.devices, lambda device: readings[device.uuid], self.health.unfit(), now)
        self.samples += 1

    def cpu_s(self) -> float:
        """CPU time of this process and of the child."""
        child = psutil.Process(self.probe.pid).cpu_times()
        return time.process_time() + child.user + child.system

    def run(self, samples: int) -> float:
        """CPU seconds for each of so many samples."""
        before, until = self.cpu_s(), self.samples + samples
        while self.samples < until:
            taken = self.samples
            self.probe.ask()
            self.node.run_until(lambda: self.samples > taken, 60.0, "a sample")  # noqa: B023 - run at once
        return (self.cpu_s() - before) / samples

    def close(self) -> None:
        self.probe.stop()
        self.node._selector.close()


@registry.add("gpu_sampler")
def gpu_sampler(runs: int) -> Iterator[Figure]:
    """A host's whole cost of sampling eight GPUs: the child, its pipe, the checks, health, history and scores."""
    with tempfile.TemporaryDirectory() as folder:
        stub = _stub("nvidia", Path(folder))
        kept = dict(os.environ)
        os.environ.update(stub.variables)
        try:
            found = []
            for _ in range(runs):
                host = _Host("nvidia")
                host.run(10)
                found.append(host.run(SAMPLES))
                host.close()
        finally:
            os.environ.clear()
            os.environ.update(kept)
    yield Figure(
        f"sampler of {DEVICES} GPUs, every {INTERVAL_S:g} s",
        "% of a core",
        [100 * one / INTERVAL_S for one in found],
        False,
        must=1,
        note=f"{min(found) * 1000:.1f} ms of CPU a sample at best: at one a second {100 * min(found):.1f} %",
    )


TABLE = {"register a device": 0.1, "select": 1.0, "record a sample": 0.1, "distribute": 5.0, "aggregate": 1.0}
"""A tenth of each of the clustering design's times, in ms; the design does not say for how many devices."""


@registry.add("gpu_cluster")
def gpu_cluster(runs: int) -> Iterator[Figure]:
    """Devices of many hosts in one manager: the operations of the clustering design's table."""
    for hosts, bars in ((80, TABLE), (HOSTS, {"aggregate": 100.0})):
        for name, values in _cluster_times(hosts, runs).items():
            what = f"{name}, {hosts} hosts of {DEVICES} GPUs"
            yield Figure(what, "ms", values, False, must=bars.get(name), note="one thread, its own CPU time")


def _cluster_times(hosts: int, runs: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {}

    def timed(name: str, call: Any) -> None:
        started = time.thread_time()
        call()
        times.setdefault(name, []).append((time.thread_time() - started) * 1000)

    devices = [
        (Device(f"GPU-{host}-{index}", index, "nvidia", "H100", 81_920, "probed"), f"host-{host}")
        for host in range(hosts)
        for index in range(DEVICES)
    ]
    for _ in range(runs):
        manager = GpuClusteringManager()
        for device, host in devices[1:]:
            manager.register_device(device, host)
        timed("register a device", lambda: manager.register_device(*devices[0]))  # noqa: B023 - run at once
        samples = [
            GpuMetrics(device.uuid, 1.0, place % 80 << 30, 80 << 30, place % 100, 300.0, 40.0 + place % 30, 1980.0)
            for place, (device, _) in enumerate(devices)
        ]
        for sample in samples[1:]:
            manager.record_metrics(sample)
        timed("record a sample", lambda: manager.record_metrics(samples[0]))  # noqa: B023 - run at once
        timed("aggregate", manager.get_aggregated_metrics)
        timed("select", lambda: manager.select_best_device(20 << 30))  # noqa: B023 - run at once
        timed("distribute", lambda: manager.distribute_workload(range(1_000), "capacity"))  # noqa: B023
    return times


@registry.add("gpu_overdraw")
def gpu_overdraw(runs: int) -> Iterator[Figure]:
    """From when a driver tells that work has too much memory to its end: an agent that samples twice a second."""
    found: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        stub = _stub("nvidia", Path(folder))
        kept = dict(os.environ)
        os.environ.update(stub.variables)
        agent = Agent(Path(folder) / "host", f"gpus.probe_interval_s={FAST_S}", gpus="nvidia")
        try:
            agent.start()
            for run in range(runs):
                marker = Path(folder) / f"pid-{run}"
                script = f"echo $$ > {marker}.new; mv {marker}.new {marker}; exec sleep 600"
                agent.cli("run", "--detach", "--gpus", "0.5", "--gpu-memory", "2GiB", "--", "sh", "-c", script)
                until(marker.exists, what="the command to run")
                watched = psutil.Process(int(marker.read_text()))
                started = time.perf_counter()
                stub.put({f"{number}.processes": f"{watched.pid}:9000" for number in range(DEVICES)})
                psutil.wait_procs([watched], timeout=60)
                found.append(time.perf_counter() - started)
                assert not watched.is_running(), "it goes on"
        finally:
            agent.close()
            os.environ.clear()
            os.environ.update(kept)
    yield Figure(
        "work that overdraws its GPU memory, to its end",
        "s",
        found,
        False,
        must=1 + FAST_S,
        note=f"from when the driver has it; of it up to {FAST_S:g} s to the sample",
    )
