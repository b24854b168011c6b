"""What samples tell of usage: the driver's counter of energy, whose memory it is, and why something is not told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from actorgrid.actors.gpu.readings import DeviceProcess, Readings
from actorgrid.actors.gpu.usage_feed import use_of
from actorgrid.actors.work.messages import DevicesSampled, DeviceUse, OwnersOf
from actorgrid.supervisors.server import Server, handles
from tests.gpu.rig import Rig


class Counting(Server):
    """Stands for WorkerManager: keeps what it is told."""

    name = "worker_manager"

    def start(self) -> None:
        self.told: list[DevicesSampled] = []

    @handles(DevicesSampled)
    def take(self, message: DevicesSampled) -> None:
        self.told.append(message)

    @handles(OwnersOf)
    def owners(self, request: OwnersOf) -> dict[int, str]:
        return dict.fromkeys(request.pids, "a.1")


def counting(rig: Rig) -> Counting:
    server = rig.node.add(Counting, rig.host)
    assert isinstance(server, Counting)
    return server


def last(server: Counting) -> dict[str, DeviceUse]:
    return {device.uuid: device for message in server.told for device in message.devices}


def test_the_drivers_counter_comes_through(nvml: Any, make_rig: Callable[..., Rig]) -> None:
    nvml.add_gpu(0)
    rig = make_rig("auto", probe_interval_s=0.5).up()
    server = counting(rig)
    rig.until(lambda: bool(server.told), "a sample")
    (device,) = last(server).values()
    assert (device.energy_millijoules, device.power_watts, device.memory_used_mib) == (123_456_789, 100.5, 512)
    assert device.no_energy == ""
    nvml.set(gpu0_energy_mj=123_999_999)
    rig.until(lambda: next(iter(last(server).values())).energy_millijoules == 123_999_999, "the counter to go on")
    nvml.put({"0.processes": "4711:1000"})
    rig.until(lambda: server.told[-1].by_work_mib == {"a.1": {device.uuid: 1000}}, "whose memory it is")
    assert server.told[-1].devices[0].lists_processes


def test_simulated_devices_are_told_of_too(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig("simulated:2xH100-80GB", probe_interval_s=0.5).up()
    server = counting(rig)
    rig.until(lambda: len(last(server)) == 2, "a sample of both")
    device = next(iter(last(server).values()))
    assert device.energy_millijoules is None and device.power_watts is not None and not device.lists_processes


@pytest.mark.parametrize(
    ("sample", "known", "told"),
    [
        (Readings(processes=(DeviceProcess(7, 3),)), True, (True, "the driver does not tell it")),
        (Readings(processes=(DeviceProcess(7, 3),)), False, (False, "the driver does not tell it")),
        (Readings(processes=None), True, (False, "the driver does not tell it")),
        (Readings.none("no permission"), True, (False, "no permission")),
        (Readings.none("gone", error="fell off the bus"), True, (False, "fell off the bus")),
    ],
)
def test_what_is_not_told_has_a_reason(sample: Readings, known: bool, told: tuple[bool, str]) -> None:
    use = use_of("GPU-0", sample, known)
    assert (use.lists_processes, use.no_memory) == told
    assert use.energy_millijoules is None and use.no_energy != ""
