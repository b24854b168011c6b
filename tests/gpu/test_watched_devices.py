"""Which devices a host says it watches: no more than what their driver tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actorgrid.actors.gpu.readings import DeviceProcess, Readings
from actorgrid.actors.gpu.watched_devices import BELIEVED_S, WatchedDevices, watched_in
from tests.gpu.rig import Rig

TOLD = Readings(processes=())
SILENT = Readings.none("not supported")
GPU = "GPU-11111111-0000-0000-0000-000000000000"


def test_a_device_is_watched_once_its_driver_tells_who_has_memory() -> None:
    watched = WatchedDevices()
    watched.take({"a": TOLD, "b": SILENT, "c": Readings(processes=(DeviceProcess(1, None),))}, 0.0)
    assert watched.now(0.0, ends=True) == {"a"}
    assert watched.now(0.0, ends=False) == frozenset()


def test_a_driver_that_tells_it_now_and_then_is_not_believed() -> None:
    watched = WatchedDevices()
    for at in range(0, 100, 10):
        watched.take({"a": TOLD if at % 20 else SILENT}, float(at))
        assert watched.now(float(at), ends=True) == frozenset()
    watched.take({"a": TOLD}, 90.0)
    assert watched.now(80.0 + BELIEVED_S - 1, ends=True) == frozenset()
    assert watched.now(80.0 + BELIEVED_S, ends=True) == {"a"}


def test_a_device_that_is_gone_is_forgotten() -> None:
    watched = WatchedDevices()
    watched.take({"a": TOLD, "b": TOLD}, 0.0)
    watched.listed(frozenset({"b"}))
    assert watched.now(0.0, ends=True) == {"b"}


def test_a_host_tells_what_it_watches_and_that_it_does_so_no_more(nvml: Any, make_rig: Callable[..., Rig]) -> None:
    nvml.add_gpu(0)
    rig = make_rig("auto", probe_interval_s=0.5).up()

    def told() -> frozenset[str]:
        return watched_in(rig.coordinator._ledger.hosts.get(rig.host.host_id))

    rig.until(lambda: told() == {GPU}, "the device to be watched", timeout_s=60)
    rig.host.settings.gpus.memory_watch = "report"
    rig.coordinator.setting_changed("gpus.memory_watch")
    rig.until(lambda: told() == frozenset(), "the ledger to know that nothing is ended", timeout_s=60)
