"""Nodes of GPUs that were not granted: which they are, and that the kernel refuses them, root too."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from actorgrid.actors.work.groups import KillGroup, kill_folder
from actorgrid.actors.work.isolation.device_filter import attach_filter
from actorgrid.actors.work.isolation.device_nodes import all_nodes_known, denied_nodes, gpu_nodes
from actorgrid.actors.work.isolation.probes import try_out
from actorgrid.actors.work.linux import failure_in_child


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with two GPUs of NVIDIA, one of AMD."""
    (tmp_path / "dev").mkdir()
    for minor, bus in ((0, "0000:65:00.0"), (1, "0000:B3:00.0")):
        (tmp_path / "dev" / f"nvidia{minor}").touch()
        folder = tmp_path / "proc/driver/nvidia/gpus" / bus.lower()
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H100\nBus Location: {bus}\nDevice Minor: \t {minor}\n")
    (tmp_path / "dev/nvidiactl").touch()
    device = tmp_path / "sys/devices/0000:c1:00.0"
    device.mkdir(parents=True)
    drm = tmp_path / "sys/class/drm/renderD128"
    drm.mkdir(parents=True)
    (drm / "dev").write_text("226:128\n")
    (drm / "device").symlink_to(device)
    return tmp_path


def device(uuid: str, bus: str, **more: str) -> Any:
    return {"uuid": uuid, "source": "probed", "pcie_bus_id": bus, **more}


DEVICES = [device("a", "00000000:65:00.0"), device("b", "00000000:B3:00.0"), device("c", "0000:c1:00.0")]


def test_all_nodes_but_those_of_what_was_granted_are_denied(root: Path) -> None:
    assert [node for node, _ in gpu_nodes(root)] == [(195, 0), (195, 1), (226, 128)] and all_nodes_known(root)
    assert denied_nodes(DEVICES, ["b"], root) == [(195, 0), (226, 128)]
    assert denied_nodes(DEVICES, [], root) == [(195, 0), (195, 1), (226, 128)]
    assert denied_nodes(DEVICES, ["a", "b", "c"], root) == []


def test_a_part_of_a_gpu_has_the_nodes_of_its_whole(root: Path) -> None:
    devices = [*DEVICES, device("m", "00000000:65:00.0", parent="a")]
    assert denied_nodes(devices, ["m"], root) == [(195, 1), (226, 128)]


def test_where_a_node_is_not_known_nothing_that_was_granted_is_denied(root: Path) -> None:
    (root / "dev/nvidia2").touch()
    assert not all_nodes_known(root)
    assert (195, 2) not in denied_nodes(DEVICES, ["a"], root)
    for bus in ("", "nonsense", "0000:ff:00.0"):
        assert denied_nodes([device("x", bus)], ["x"], root) == []
    simulated = cast("Any", [{**DEVICES[0], "source": "simulated"}])
    assert denied_nodes(simulated, ["a"], root) == [(195, 0), (195, 1), (226, 128)]


@pytest.fixture
def group() -> Iterator[KillGroup]:
    if not try_out().has("cgroup_devices"):
        pytest.skip(f"no device filter here: {try_out().refused['cgroup_devices']}")
    made = KillGroup(kill_folder() / f"actorgrid-test-{secrets.token_hex(4)}")
    made.make()
    yield made
    made.remove()


def test_a_stub_of_a_node_that_is_denied_can_be_neither_opened_nor_made(group: KillGroup, tmp_path: Path) -> None:
    nodes = {minor: tmp_path / f"nvidia{minor}" for minor in (0, 1)}
    for minor, path in nodes.items():
        os.mknod(path, 0o20666, os.makedev(195, minor))
    attach_filter(group.path, [(195, 1)])

    def opened(path: Path) -> int:
        return failure_in_child(lambda: [group.enter(), os.close(os.open(path, os.O_RDWR))])

    without = failure_in_child(lambda: os.close(os.open(nodes[0], os.O_RDWR)))
    assert opened(nodes[0]) == without != errno.EPERM  # as outside: there may be no such device
    assert opened(nodes[1]) == errno.EPERM
    again = tmp_path / "again"
    made = failure_in_child(lambda: [group.enter(), os.mknod(again, 0o20666, os.makedev(195, 1))])
    assert made == errno.EPERM and not again.exists()
    assert failure_in_child(lambda: [group.enter(), os.mknod(again, 0o20666, os.makedev(195, 0))]) == 0
