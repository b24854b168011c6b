"""Heat of devices, through the real bindings over the stub library: nothing new, less power, and all of it back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from actorgrid.actors.gpu import heat_policy, power_limits
from tests.gpu.drivers.stubs import StubDriver
from tests.gpu.rig import Rig
from tests.gpu.watched import Watched
from tests.processes import until

MakeRig = Callable[..., Rig]
UUID = "GPU-11111111-0000-0000-0000-000000000000"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices of these tests cool down as soon as their state says so."""
    monkeypatch.setattr(heat_policy, "CALM_S", 1.0)
    monkeypatch.setattr(heat_policy, "STEP_S", 0.1)
    monkeypatch.setattr(power_limits, "RETRY_S", 0.5)


def host(nvml: StubDriver, make_rig: MakeRig, **gpus: Any) -> Rig:
    nvml.add_gpu(0)
    nvml.add_gpu(1)
    return make_rig("auto", probe_interval_s=0.5, **gpus).up()


def limit_of(nvml: StubDriver, number: int = 0) -> float:
    """The limit that the driver has, in watts: the last that was set, or what it began with."""
    key = f"{number}.limit_mw"
    said = [f"{key}={nvml.values[key]}", *nvml.was_set()]
    return float([line for line in said if line.startswith(f"{key}=")][-1].partition("=")[2]) / 1000


def heat(rig: Rig) -> dict[str, Any]:
    found: dict[str, Any] = rig.coordinator.status()["heat"]
    return found


def test_a_hot_device_takes_nothing_new_until_it_has_been_cooler_for_a_while(
    nvml: StubDriver, make_rig: MakeRig
) -> None:
    rig = host(nvml, make_rig)
    nvml.put({"0.temp": 86})
    rig.until(lambda: UUID in rig.coordinator._core.mirror.unhealthy, "it to be set aside")
    assert "it is at 86 °C: nothing new until it was under 80 °C" in rig.coordinator._core.mirror.unhealthy[UUID]
    rig.submit("a", "b", gpus=1)
    rig.until(lambda: len(rig.allocations()) == 1, "one of them placed")
    rig.settle()
    assert [held["gpu_indexes"] for held in rig.allocations().values()] == [[1]]
    nvml.put({"0.temp": 60})
    rig.wait_placed("a", "b")
    assert limit_of(nvml) == 700, "only placement is asked for"


def test_a_lower_limit_holds_until_it_is_taken_back(nvml: StubDriver, make_rig: MakeRig) -> None:
    rig = host(nvml, make_rig, heat_limit_celsius=40.0)
    rig.until(lambda: len(rig.coordinator._core.mirror.unhealthy) == 2, "both to be too warm")
    rig.host.settings.gpus.heat_limit_celsius = 0.0
    rig.until(lambda: not rig.coordinator._core.mirror.unhealthy, "the drivers' own to count again")


def test_a_hot_device_draws_less_and_has_its_power_back_when_it_is_cool(nvml: StubDriver, make_rig: MakeRig) -> None:
    rig = host(nvml, make_rig, heat_control="cap")
    nvml.put({"0.temp": 82})
    rig.until(lambda: limit_of(nvml) <= 567, "two steps down")
    assert limit_of(nvml, 1) == 700
    assert json.loads(rig.host.paths.power_limits_file.read_text()) == {UUID: 700.0}
    nvml.put({"0.temp": 60})
    rig.until(lambda: limit_of(nvml) == 700 and not heat(rig)["power_limits"]["before_watts"], "all of it back")
    assert json.loads(rig.host.paths.power_limits_file.read_text()) == {}


def test_what_somebody_had_set_is_what_comes_back(nvml: StubDriver, make_rig: MakeRig) -> None:
    nvml.add_gpu(0, limit_mw=500_000)
    rig = make_rig("auto", probe_interval_s=0.5, heat_control="cap").up()
    nvml.put({"0.temp": 82})
    rig.until(lambda: limit_of(nvml) < 500, "less than what it had")
    rig.host.settings.gpus.heat_control = "place"
    rig.until(lambda: limit_of(nvml) == 500, "what it had")


def test_an_orderly_end_puts_limits_back(nvml: StubDriver, make_rig: MakeRig) -> None:
    rig = host(nvml, make_rig, heat_control="cap")
    nvml.put({"0.temp": 91, "1.temp": 82})
    rig.until(lambda: limit_of(nvml) == 200 and limit_of(nvml, 1) < 700, "both to draw less")
    rig.coordinator.stop("the host stops")
    assert (limit_of(nvml), limit_of(nvml, 1)) == (700, 700)


def test_the_next_start_puts_back_what_a_crash_left(nvml: StubDriver, make_rig: MakeRig) -> None:
    nvml.add_gpu(0, limit_mw=250_000)
    rig = make_rig("auto", probe_interval_s=0.5)
    rig.host.paths.power_limits_file.write_text(json.dumps({UUID: 650.0, "GPU-of-another-time": 100.0}))
    rig.up()
    rig.until(lambda: limit_of(nvml) == 650, "what it had before")
    rig.until(lambda: UUID not in heat(rig)["power_limits"]["before_watts"], "the note to be gone")


def test_a_probe_that_is_killed_is_followed_by_one_that_goes_on(nvml: StubDriver, make_rig: MakeRig) -> None:
    rig = host(nvml, make_rig, heat_control="cap")
    nvml.put({"0.temp": 91})
    rig.until(lambda: limit_of(nvml) == 200, "the least")
    pid = rig.coordinator.status()["probe"]["vendors"]["nvidia"]["pid"]
    os.kill(pid, signal.SIGKILL)
    rig.until(lambda: rig.coordinator.status()["probe"]["vendors"]["nvidia"]["pid"] not in (pid, None), "another probe")
    rig.host.settings.gpus.heat_control = "place"
    rig.until(lambda: limit_of(nvml) == 700, "what it had before the first of them")


def test_a_device_that_refuses_is_named_once_and_asked_again(nvml: StubDriver, make_rig: MakeRig) -> None:
    rig = host(nvml, make_rig, heat_control="cap")
    nvml.fault("nvmlDeviceSetPowerManagementLimit", 4)
    nvml.put({"0.temp": 82})
    rig.until(lambda: UUID in heat(rig)["power_limits"]["refused"], "the refusal")
    assert limit_of(nvml) == 700
    nvml.fault("nvmlDeviceSetPowerManagementLimit", None)
    rig.until(lambda: limit_of(nvml) < 700, "another try")


def test_a_budget_is_shared_by_what_devices_draw(nvml: StubDriver, make_rig: MakeRig) -> None:
    rig = host(nvml, make_rig, power_budget_watts=900.0)
    nvml.put({"0.power_mw": 690_000, "1.power_mw": 90_000})
    rig.until(lambda: (limit_of(nvml), limit_of(nvml, 1)) == (700, 200), "the busy one to have what it wants")
    nvml.put({"1.power_mw": 199_000})
    rig.until(lambda: (limit_of(nvml), limit_of(nvml, 1)) == (450, 450), "an even share, now that both are busy")
    assert heat(rig)["host_limit_watts"] == pytest.approx(900.0)
    rig.host.settings.gpus.power_budget_watts = 0.0
    rig.until(lambda: (limit_of(nvml), limit_of(nvml, 1)) == (700, 700), "no budget any more")


def test_a_budget_that_cannot_be_kept_is_told(nvml: StubDriver, make_rig: MakeRig) -> None:
    rig = host(nvml, make_rig, power_budget_watts=300.0)
    rig.until(lambda: limit_of(nvml) == 200 and limit_of(nvml, 1) == 200, "the least of both")
    rig.until(lambda: any("cannot be kept" in note for note in rig.coordinator.status()["notes"]), "the note")


CHILD = f"""
import sys, time
from tests.gpu.watched import Watched
probe = Watched()
probe.report()
answers = []
probe.probe.set_power_limit({UUID!r}, 300.0, 700.0, answers.append)
probe.wait(answers)
print(answers[0] or "set", flush=True)
time.sleep(600)
"""


def test_limits_are_put_back_when_whoever_set_them_is_killed(nvml: StubDriver) -> None:
    nvml.add_gpu(0)
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True, env=os.environ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "set\n"
        assert limit_of(nvml) == 300
        parent.kill()
    until(lambda: limit_of(nvml) == 700, what="what it had before", within_s=60)


def test_a_limit_that_is_meant_to_last_stays(nvml: StubDriver) -> None:
    nvml.add_gpu(0)
    probe = Watched()
    try:
        probe.report()
        answers: list[str] = []
        probe.probe.set_power_limit(UUID, 300.0, None, answers.append)
        probe.wait(answers)
    finally:
        probe.close()
    assert limit_of(nvml) == 300
