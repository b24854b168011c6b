"""DeviceProbe with real child processes and the real NVML bindings over a stub library."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from actorgrid.actors.gpu.probe_patience import EXTRA_MAX, LOOK_AGAIN, ProbePatience, ProcessorTimes
from tests.gpu.watched import Watched


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.close()


def test_devices_are_listed_as_the_library_describes_them(nvml: Any, watched: Watched) -> None:
    nvml.add_gpu(0, numa=1)
    nvml.add_gpu(1, name="NVIDIA A100-SXM4-40GB", capability="8.0", total_mib=40_960)
    watched.probe.start()
    report = watched.wait(watched.reports)
    assert (report.outcome, report.driver_version) == ("ok", "600.01")
    first, second = report.devices
    assert first.uuid == "GPU-11111111-0000-0000-0000-000000000000"
    assert (first.model, first.memory_mib, first.source) == ("NVIDIA H100 80GB HBM3", 81_559, "probed")
    assert (first.compute_capability, first.pcie_bus_id, first.numa_node) == ("9.0", "00000000:1B:00.0", 1)
    assert (second.index, second.model, second.compute_capability) == (1, "NVIDIA A100-SXM4-40GB", "8.0")


def test_readings_are_values_or_reasons_never_zero_for_unknown(nvml: Any, watched: Watched) -> None:
    nvml.add_gpu(0)
    nvml.add_gpu(1, power_mw=None, util=None)
    watched.probe.start()
    watched.wait(watched.reports)
    read = watched.read()
    whole = read["GPU-11111111-0000-0000-0000-000000000000"]
    assert (whole.memory_used_mib, whole.utilization_percent) == (512, 10.0)
    assert (whole.temperature_celsius, whole.power_watts) == (40.0, 100.5)
    partly = read["GPU-11111111-0000-0000-0000-000000000001"]
    assert partly.power_watts is None
    assert partly.utilization_percent is None
    assert {name: partly.unsupported[name] for name in ("power_watts", "utilization_percent")} == {
        "power_watts": "Not Supported",
        "utilization_percent": "Not Supported",
    }
    assert partly.temperature_celsius == 41.0
    nvml.set(gpu0_temp=77)
    assert watched.read()["GPU-11111111-0000-0000-0000-000000000000"].temperature_celsius == 77.0


def test_a_lost_gpu_is_in_error_and_the_others_are_not(nvml: Any, watched: Watched) -> None:
    nvml.add_gpu(0)
    nvml.add_gpu(1)
    watched.probe.start()
    watched.wait(watched.reports)
    nvml.set(gpu1_lost=1)
    read = watched.read()
    assert read["GPU-11111111-0000-0000-0000-000000000000"].error == ""
    lost = read["GPU-11111111-0000-0000-0000-000000000001"]
    assert "lost" in lost.error
    assert lost.memory_used_mib is None


def test_mig_instances_stand_in_for_their_gpu(nvml: Any, watched: Watched) -> None:
    nvml.add_gpu(0, mig=2)
    nvml.add_gpu(1)
    watched.probe.start()
    devices = watched.wait(watched.reports).devices
    assert [device.uuid[:4] for device in devices] == ["MIG-", "MIG-", "GPU-"]
    assert [device.index for device in devices] == [0, 1, 2]
    assert devices[0].memory_mib == 81_559 // 8
    readings = watched.read()[devices[0].uuid]
    assert readings.utilization_percent is None
    assert readings.memory_used_mib == 512


@pytest.mark.parametrize(("code", "outcome"), [(9, "no_driver"), (4, "no_permission"), (18, "version_mismatch")])
def test_what_keeps_the_library_from_starting_is_told_as_an_outcome(
    nvml: Any, watched: Watched, code: int, outcome: str
) -> None:
    nvml.set(init=code)
    watched.probe.start()
    assert watched.wait(watched.reports).outcome == outcome


def test_no_devices_is_absent(nvml: Any, watched: Watched) -> None:
    watched.probe.start()
    assert watched.wait(watched.reports).outcome == "absent"


def test_a_library_that_is_not_there_is_an_outcome_too(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTORGRID_NVML_LIBRARY", "/nonexistent/libnvidia-ml.so.1")
    watched.probe.start()
    report = watched.wait(watched.reports)
    assert report.outcome == "no_library"
    assert report.message


def test_a_call_that_never_returns_is_killed_and_a_new_child_started(nvml: Any) -> None:
    nvml.add_gpu(0)
    watched = Watched(timeout_s=2.0)
    watched.probe.start()
    watched.wait(watched.reports)
    first = watched.probe.pid
    assert first is not None
    nvml.fault("nvmlDeviceGetUtilizationRates", "hang")
    assert watched.probe.ask()
    assert not watched.probe.ask(), "one question at a time"
    assert "did not answer read in 2 s" in watched.wait(watched.lost)
    assert not psutil.pid_exists(first)
    nvml.fault("nvmlDeviceGetUtilizationRates", None)
    watched.wait(watched.reports, 2)
    assert watched.probe.restarts == 1
    assert watched.read()["GPU-11111111-0000-0000-0000-000000000000"].utilization_percent == 10.0
    watched.probe.stop()
    watched.node._selector.close()


def test_a_library_that_aborts_takes_only_its_child_with_it(nvml: Any, watched: Watched) -> None:
    nvml.add_gpu(0)
    watched.probe.start()
    watched.wait(watched.reports)
    nvml.fault("nvmlDeviceGetUtilizationRates", "abort")
    watched.probe.ask()
    watched.wait(watched.lost)
    nvml.fault("nvmlDeviceGetUtilizationRates", None)
    watched.wait(watched.reports, 2)
    assert watched.read()


def test_a_hang_at_start_is_killed_in_time(nvml: Any) -> None:
    nvml.fault("nvmlInitWithFlags", "hang")
    watched = Watched(timeout_s=1.5)
    watched.probe.start()
    assert "did not answer start" in watched.wait(watched.lost)
    assert watched.reports == []
    watched.probe.stop()
    watched.node._selector.close()


def test_stopping_leaves_no_child(nvml: Any, watched: Watched) -> None:
    nvml.add_gpu(0)
    watched.probe.start()
    watched.wait(watched.reports)
    pid = watched.probe.pid
    assert pid is not None
    assert "device probe nvidia" in " ".join(psutil.Process(pid).cmdline())
    watched.probe.stop()
    assert not psutil.pid_exists(pid)
    assert not watched.probe.ask()


def test_the_child_dies_with_its_parent(nvml: Any) -> None:
    nvml.add_gpu(0)
    script = """
import sys
from actorgrid.actors.gpu.probe import DeviceProbe
from actorgrid.supervisors.inline import InlineNode
node, said = InlineNode(real_time=True), []
probe = DeviceProbe("nvidia", node, 20.0, said.append, said.append, said.append)
probe.start()
node.run_until(lambda: said, 60)
print(probe.pid, flush=True)
sys.stdin.read()
"""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    )
    with parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        parent.wait(60)
        _gone, alive = psutil.wait_procs([child], timeout=60)
        assert alive == []


def test_what_a_child_waits_for_a_processor_is_given_to_it_once_more_and_no_longer() -> None:
    begin = ProcessorTimes(1.0, 2.0)
    patience = ProbePatience(10.0, begin)
    assert patience.more(begin._replace(waited_s=5.0)) == 3.0
    assert patience.more(begin._replace(waited_s=6.5)) == 1.5
    assert patience.more(begin._replace(waited_s=6.5)) == 0.0, "it had a processor and did not answer"
    assert patience.more(ProcessorTimes(1.0, 500.0)) == 10 * EXTRA_MAX - 4.5
    assert patience.more(ProcessorTimes(1.0, 1000.0)) == 0.0, "there is an end to it"


def test_one_that_waits_for_a_processor_now_is_looked_at_again_and_one_that_computes_or_sleeps_is_not() -> None:
    begin = ProcessorTimes(1.0, 2.0)
    assert ProbePatience(10.0, begin).more(ProcessorTimes(1.0, 2.0, is_ready=True)) == 10 * LOOK_AGAIN
    assert ProbePatience(10.0, begin).more(ProcessorTimes(11.0, 2.0, is_ready=True)) == 0.0
    assert ProbePatience(10.0, begin).more(ProcessorTimes(1.0, 2.0)) == 0.0
    starved = ProbePatience(10.0, begin)
    given = list(iter(lambda: starved.more(ProcessorTimes(1.0, 2.0, is_ready=True)), 0.0))
    assert sum(given) == 10 * EXTRA_MAX


@pytest.mark.system
def test_a_child_that_others_leave_no_processor_is_waited_for(nvml: Any) -> None:
    nvml.add_gpu(0)
    ours = os.sched_getaffinity(0)
    watched = Watched(timeout_s=0.5)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(busy.pid, {min(ours)})
        watched.probe.start()
        child = watched.probe.pid
        assert child is not None
        os.sched_setaffinity(child, {min(ours)})
        os.sched_setscheduler(child, os.SCHED_IDLE, os.sched_param(0))
        until = time.monotonic() + 3 * watched.probe.timeout_s
        watched.node.run_until(
            lambda: time.monotonic() > until or bool(watched.lost or watched.reports), 60, "three times its time"
        )
        assert (watched.lost, watched.reports) == ([], [])
        busy.kill()
        os.sched_setscheduler(child, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(child, ours)
        watched.wait(watched.reports)
        assert watched.probe.pid == child
        assert watched.probe.restarts == 0
    finally:
        busy.kill()
        busy.wait()
        watched.close()
