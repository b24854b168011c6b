"""AMD's GPUs are cut by the operator, over the stub driver: never under work, and what goes is not missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from actorgrid.actors.gpu import inventory
from actorgrid.actors.gpu.messages import AmdGpus, Inventory, SetAmdPartition
from actorgrid.errors import HostError, NotFound, WrongState
from tests.gpu.drivers.stubs import StubDriver
from tests.gpu.rig import Rig

PLACE = "0000:0c:00"


@pytest.fixture
def host(amd_smi: StubDriver, make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(inventory, "traces_of_amd", lambda: (True, "device"))
    for part in range(8):  # those of one GPU: the first is there, the others once it is cut
        place = {"bdf": f"{PLACE}.{part}", "uuid": f"part-{part}", "serial": "9a6c0de000000000"}
        amd_smi.add_gpu(part, compute_partition="SPX", memory_partition="NPS1", **place)
    amd_smi.put({"count": 1, "count_CPX": 8, "count_SPX": 1})
    return make_rig("amd", probe_interval_s=0.5).up()


def devices(rig: Rig) -> dict[str, str]:
    return {row["device_id"]: row["health"] for row in rig.ask(Inventory())}


def test_a_gpu_is_cut_and_made_whole_again_and_nothing_of_it_counts_as_lost(amd_smi: StubDriver, host: Rig) -> None:
    (gpu,) = host.ask(AmdGpus())
    assert (gpu["gpu"], gpu["mode"], len(gpu["parts"])) == (PLACE, "SPX", 1)
    host.ask(SetAmdPartition(PLACE, "compute", "CPX"))
    assert "0.compute_partition=CPX" in amd_smi.was_set()
    host.until(lambda: len(devices(host)) == 8, "its parts to be devices", timeout_s=60)
    host.until(lambda: set(devices(host).values()) == {"ok"}, "all of them to be well", timeout_s=60)
    (gpu,) = host.ask(AmdGpus())
    assert gpu["gpu"] == PLACE and len(gpu["parts"]) == 8 and gpu["mode"].startswith("CPX")
    host.submit(*(f"j{number}" for number in range(8)), gpus=1)
    host.wait_placed(*(f"j{number}" for number in range(8)))
    with pytest.raises(WrongState, match="work is on it"):
        host.ask(SetAmdPartition(PLACE, "compute", "SPX"))
    for number in range(8):
        host.end(f"j{number}")
    host.ask(SetAmdPartition(PLACE, "compute", "SPX"))
    host.until(lambda: list(devices(host).values()) == ["ok"], "it to be whole, and nothing lost", timeout_s=60)


def test_what_the_driver_refuses_is_told_and_the_gpu_takes_work_again(amd_smi: StubDriver, host: Rig) -> None:
    amd_smi.fault("amdsmi_set_gpu_compute_partition", 10)  # no permission
    with pytest.raises(HostError, match="did not cut the GPU otherwise"):
        host.ask(SetAmdPartition(PLACE, "compute", "CPX"))
    with pytest.raises(NotFound, match="no such GPU"):
        host.ask(SetAmdPartition("0000:ff:00", "compute", "CPX"))
    with pytest.raises(HostError) as caught:
        host.ask(SetAmdPartition(PLACE, "memory", "CPX"))
    assert "no memory partition CPX" in caught.value.found
    host.submit("a", gpus=1)
    host.wait_placed("a")


def test_memory_is_cut_too(amd_smi: StubDriver, host: Rig) -> None:
    host.ask(SetAmdPartition(PLACE, "memory", "NPS4"))
    assert any(line.startswith("0.memory_partition=NPS") for line in amd_smi.was_set())
    host.until(lambda: list(devices(host).values()) == ["ok"], "it to be listed again", timeout_s=60)


def test_without_a_library_that_cuts_it_is_said(make_rig: Callable[..., Rig]) -> None:
    rig: Any = make_rig("none").up()
    assert rig.ask(AmdGpus()) == []
    said: list[str] = []
    rig.coordinator._registration.inventory.set_amd_partitions(["x"], "compute", "CPX", said.append)
    assert said == ["no library of AMD's is asked on this host"]
