"""Which devices a host says the kernel holds work's memory of: those of which whoever begins work found it so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from actorgrid.actors.gpu import inventory
from actorgrid.actors.gpu.watched_devices import dmem_in
from actorgrid.actors.work.messages import LimitableDevices
from actorgrid.supervisors.server import Server, handles
from tests.gpu.drivers.stubs import StubDriver
from tests.gpu.rig import Rig

ADDRESSES = ["0000:0c:00.0"]


class WorkerManager(Server):
    """As far as it is asked here."""

    name = "worker_manager"
    answers: list[list[str] | None] = []

    @handles(LimitableDevices)
    def _limitable_devices(self, _request: LimitableDevices) -> list[str] | None:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def rig(amd_smi: StubDriver, make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(inventory, "traces_of_nvidia", lambda: (False, ""))
    monkeypatch.setattr(inventory, "traces_of_amd", lambda: (True, "device"))
    monkeypatch.setattr(inventory, "traces_of_intel", lambda: (False, ""))
    amd_smi.add_machine(2)
    return make_rig("auto", probe_interval_s=0.5)


def told(rig: Rig) -> frozenset[str]:
    return dmem_in(rig.coordinator._ledger.hosts.get(rig.host.host_id))


def test_a_host_says_it_of_the_devices_that_were_tried_and_asks_until_it_is_known(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerManager, "answers", [None, ADDRESSES])
    rig.node.add(WorkerManager, rig.host)
    rig.up()
    rig.until(lambda: told(rig) != frozenset(), "the word of the host")
    (uuid,) = told(rig)
    found = {device.uuid: device.pcie_bus_id for device in rig.coordinator._registration.inventory.devices}
    assert found[uuid] == ADDRESSES[0]
    assert len(found) == 2
    assert WorkerManager.answers == [ADDRESSES], "it was asked a second time, and not a third"
    rig.node.servers.pop("worker_manager").stop("test over")


def test_parts_of_one_device_share_its_memory_and_are_not_limited_one_by_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerManager, "answers", [ADDRESSES])
    rig.up()
    devices: Any = rig.coordinator._registration.inventory.devices
    limits = rig.coordinator._kernel
    limits._addresses = frozenset(ADDRESSES)
    assert len(limits.now()) == 1
    first = next(device for device in devices if device.pcie_bus_id == ADDRESSES[0])
    devices.append(replace(first, uuid="another part"))
    assert limits.now() == frozenset()
