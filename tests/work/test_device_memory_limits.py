"""The kernel's limits of GPU memory, over a tree that looks like cgroup v2's, and what is promised of them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.gpu.enforcement import enforced_by, enforced_of_job, kernel_limits
from actorgrid.actors.ledger.commands import RegisterHost
from actorgrid.actors.work import device_memory_limits
from actorgrid.actors.work.device_memory_limits import (
    DeviceLimits,
    lift_device_limits,
    limit_device_memory,
    limitable_devices,
)
from actorgrid.actors.work.groups import PROBE, KillGroup, kill_folder
from actorgrid.errors import WorkerLost
from tests.work.rig import Rig

ONE, OTHER = "0000:03:00.0", "0000:83:00.0"
DEVICE: dict[str, Any] = {
    "uuid": "GPU-a", "index": 0, "memory_mib": 192_000, "vendor": "amd", "model": "MI300X", "source": "probed",
    "compute_capability": "gfx942", "pcie_bus_id": ONE, "numa_node": 0, "dmem": True, "watched": True,
}  # fmt: skip


def tree(folder: Path, *regions: str, controllers: str = "cpu memory dmem") -> Path:
    """The group of a trial in *folder*, as the kernel would make it; a write replaces what its file has."""
    folder.joinpath("cgroup.controllers").write_text(controllers)
    folder.joinpath("cgroup.subtree_control").write_text("memory")
    group = folder / f"{PROBE}{os.getpid()}"
    group.mkdir()
    group.joinpath("dmem.max").write_text("".join(f"{region} max\n" for region in regions))
    return group


def test_each_region_of_a_devices_memory_is_limited_and_no_other(tmp_path: Path) -> None:
    group = tree(tmp_path, f"drm/{OTHER}/vram0", f"drm/{ONE}/stolen", f"drm/{ONE}/vram0")
    limit_device_memory(group, {ONE: 5 << 30})
    assert (group / "dmem.max").read_text() == f"drm/{ONE}/vram0 {5 << 30}\n"
    lift_device_limits(group, [ONE])
    assert (group / "dmem.max").read_text() == f"drm/{ONE}/vram0 max\n"


def test_a_worker_is_held_to_what_its_lease_has_and_not_to_what_the_one_before_had(tmp_path: Path) -> None:
    group, limits = KillGroup(tree(tmp_path, f"drm/{ONE}/vram0")), DeviceLimits()
    said = group.path / "dmem.max"
    assert limits.change(None, [])
    assert limits.change(group, [])
    assert said.read_text() == f"drm/{ONE}/vram0 max\n", "nothing is written where there is nothing to limit"
    assert limits.change(group, [{ONE: 7}])
    assert said.read_text() == f"drm/{ONE}/vram0 7\n"
    assert limits.change(group, [])
    assert said.read_text() == f"drm/{ONE}/vram0 max\n"
    assert not limits.change(group, [{OTHER: 7}])
    assert not limits.change(None, [{ONE: 7}])


def test_a_limit_that_is_not_there_afterwards_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = tree(tmp_path, f"drm/{ONE}/vram0")
    with pytest.raises(OSError, match=f"limits no memory of {OTHER}") as refused:
        limit_device_memory(group, {OTHER: 1})
    assert refused.value.errno == errno.ENODEV
    monkeypatch.setattr(device_memory_limits, "_write", lambda *_: None)
    with pytest.raises(OSError, match=f"the limit of drm/{ONE}/vram0 is max, and not 7"):
        limit_device_memory(group, {ONE: 7})


def test_what_can_be_limited_is_tried_out(tmp_path: Path) -> None:
    tree(tmp_path, f"drm/{ONE}/vram0", "drm/virtual/vram0")
    assert limitable_devices(tmp_path) == {ONE}
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+dmem"


def test_a_kernel_without_the_controller_limits_nothing_and_is_left_as_it_is(tmp_path: Path) -> None:
    tree(tmp_path, f"drm/{ONE}/vram0", controllers="cpu memory")
    assert limitable_devices(tmp_path) == frozenset()
    assert (tmp_path / "cgroup.subtree_control").read_text() == "memory"
    assert limitable_devices(tmp_path / "absent") == frozenset()


def test_the_kernel_here_is_asked_and_keeps_no_group_of_a_trial() -> None:
    try:
        folder = kill_folder()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    found = limitable_devices(folder)
    assert bool(found) <= ("dmem" in (folder / "cgroup.controllers").read_text().split())
    assert not (folder / f"{PROBE}{os.getpid()}").exists()


def test_the_kernel_enforces_the_memory_of_what_it_was_told_to_limit() -> None:
    devices: Any = [DEVICE]
    for milli in (250, 1000):
        compute = "none" if milli < 1000 else "cooperative"
        assert enforced_by(devices, ["GPU-a"], milli, 1024) == {"gpu_compute": compute, "gpu_memory": "kernel"}
    assert enforced_by(devices, ["GPU-a"], 250, 0)["gpu_memory"] == "none"
    assert enforced_by(devices, ["GPU-a"], 250, 1024, in_container=True)["gpu_memory"] == "cooperative"
    attempt = {"host": "h", "gpu_uuids": ["GPU-a"]}
    job: Any = {"state": "running", "attempts": [attempt], "resources": {"gpu_milli": 250, "gpu_memory_mib": 1024}}
    hosts: Any = {"h": {"devices": devices}}
    assert enforced_of_job(job, hosts)["gpu_memory"] == "kernel"
    assert enforced_of_job({**job, "container": {}}, hosts)["gpu_memory"] == "cooperative"
    assert kernel_limits(devices, ["GPU-a"], 1024, 2**30) == {ONE: 2 << 30}
    assert kernel_limits(devices, ["GPU-a"], 0, 2**30) == {}
    assert kernel_limits(devices, ["GPU-b"], 1024, 2**30) == {}
    assert kernel_limits([{**DEVICE, "dmem": False}], ["GPU-a"], 1024, 2**30) == {}  # type: ignore[typeddict-item]


@pytest.fixture
def promising(rig: Rig) -> Rig:
    """A host that promises limits of the kernel for a device that no kernel has."""
    known = {**rig.host(), "devices": [DEVICE]}
    names = ("host_id", "hostname", "cpu_milli", "memory_mib", "devices")
    rig.propose(RegisterHost(host={**{name: known[name] for name in names}, "incarnation": 1}))  # type: ignore[typeddict-item]
    return rig


RESOURCES = {"gpus": 0.5, "gpu_count": 1, "gpu_milli": 500, "gpu_memory_mib": 1024}


def test_work_does_not_begin_without_a_limit_that_was_promised(promising: Rig) -> None:
    job = promising.run("a", [0], command=["true"], resources=RESOURCES)
    assert job["state"] == "failed"
    assert "have the kernel limit its GPU memory" in job["attempts"][-1]["error"]["message"]
    unlimited = promising.run("b", [0], command=["true"], resources={**RESOURCES, "gpu_memory_mib": 0})
    assert unlimited["state"] == "succeeded"


def test_a_pools_worker_serves_no_lease_without_a_limit_that_was_promised(promising: Rig) -> None:
    with pytest.raises(WorkerLost):
        promising.lease("L1", [0], resources=RESOURCES)
    promising.release("L1")
    assert promising.lease("L2", [0], resources={**RESOURCES, "gpu_memory_mib": 0})["enforced_by"] == {
        "gpu_compute": "none",
        "gpu_memory": "none",
    }
