"""Copies between devices of two vendors through the host's memory, over stubs of their libraries in one process."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actorgrid.device_memory import (
    CudaMemory,
    DeviceMemory,
    DevicePool,
    HipMemory,
    LevelZeroMemory,
    transfer,
    transfers,
)
from actorgrid.errors import ActorGridError, BadRequest, CrossVendorTransferError, DeviceCallFailed, InvalidBlock
from tests.gpu.conftest import stub_library
from tests.gpu.drivers.build import CUDA, HIP, LEVEL_ZERO_MEMORY, StubKind
from tests.gpu.drivers.stubs import StubDriver

MIB = 1 << 20
OPENS: dict[str, tuple[StubKind, Callable[[], DeviceMemory], str]] = {
    "nvidia": (CUDA, CudaMemory, "cuMemcpyDtoHAsync"),
    "amd": (HIP, HipMemory, "hipMemcpyDtoHAsync"),
    "intel": (LEVEL_ZERO_MEMORY, LevelZeroMemory, "zeCommandListAppendMemoryCopy"),
}
PAIRS = list(itertools.permutations(OPENS, 2))


class Vendors:
    """A pool on a device of each vendor asked for, and their stubs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, monkeypatch
        self.stubs: dict[str, StubDriver] = {}
        self.memories: list[DeviceMemory] = []
        self.pools: list[DevicePool] = []

    def pool(self, vendor: str) -> DevicePool:
        kind, opened, _ = OPENS[vendor]
        stub = StubDriver(kind, stub_library(kind), self._folder / f"{vendor}.state")
        stub.put({"memory_mib": 64})
        for name, value in stub.variables.items():
            self._patch.setenv(name, value)
        if kind is CUDA:
            pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed: nobody would call the stub")
            ctypes.CDLL(str(stub.library), mode=ctypes.RTLD_GLOBAL)
        self.stubs[vendor] = stub
        self.memories.append(opened())
        self.pools.append(DevicePool(self.memories[-1], 16 * MIB))
        return self.pools[-1]

    def close(self) -> None:
        for pool in self.pools:
            pool.close()
        for memory in self.memories:
            memory.close()


@pytest.fixture
def vendors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vendors]:
    monkeypatch.setattr(transfers, "PIECE_BYTES", 1000)
    found = Vendors(tmp_path, monkeypatch)
    yield found
    found.close()


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=str)
def test_what_one_vendors_device_has_another_vendors_gets(vendors: Vendors, one: str, other: str) -> None:
    source_pool, pool = vendors.pool(one), vendors.pool(other)
    data = bytes(range(256)) * 10
    source, destination = source_pool.allocate(len(data)), pool.allocate(4096)
    source_pool.write(source, data)
    pool.write(destination, b"\xff" * 4096)
    assert transfer(source_pool, source, pool, destination, 2501) == (2501, "host", 3)
    assert pool.read(destination, 4096) == data[:2501] + b"\xff" * (4096 - 2501)


def test_no_driver_copies_to_another_vendors_device(vendors: Vendors) -> None:
    one, other = vendors.pool("amd"), vendors.pool("intel")
    with pytest.raises(CrossVendorTransferError, match="no driver copies from amd to intel") as refused:
        transfer(one, one.allocate(512), other, other.allocate(512), 512, way="device")
    assert "way='host'" in refused.value.hint


def test_one_device_copies_by_itself_unless_it_is_to_go_through_the_host(vendors: Vendors) -> None:
    pool = vendors.pool("amd")
    one, other = pool.allocate(512), pool.allocate(512)
    pool.write(one, b"actor" * 100)
    assert transfer(pool, one, pool, other, 500).way == "device"
    assert pool.read(other, 500) == b"actor" * 100
    pool.write(one, b"grids" * 100)
    assert transfer(pool, one, pool, other, 500, way="host").way == "host"
    assert pool.read(other, 500) == b"grids" * 100


SECOND: dict[str, Callable[[], DeviceMemory]] = {
    "nvidia": lambda: CudaMemory(1), "amd": lambda: HipMemory(1), "intel": lambda: LevelZeroMemory(1),
}  # fmt: skip


@contextmanager
def two_devices(vendors: Vendors, vendor: str) -> Iterator[tuple[DevicePool, DevicePool]]:
    one = vendors.pool(vendor)
    vendors.stubs[vendor].put({"devices": 2})
    memory = SECOND[vendor]()
    with DevicePool(memory, MIB) as other:
        yield one, other
    memory.close()


@pytest.mark.parametrize("vendor", OPENS)
def test_two_devices_that_the_driver_keeps_apart_go_through_the_host(vendors: Vendors, vendor: str) -> None:
    with two_devices(vendors, vendor) as (one, other):
        source, destination = one.allocate(512), other.allocate(512)
        one.write(source, b"x" * 512)
        assert transfer(one, source, other, destination, 512).way == "host"
        assert other.read(destination, 512) == b"x" * 512
        with pytest.raises(BadRequest, match="on two devices"):
            transfer(one, source, other, destination, 512, way="device")


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_a_device_copies_to_another_that_its_driver_lets_it_reach(vendors: Vendors, vendor: str) -> None:
    with two_devices(vendors, vendor) as (one, other):
        vendors.stubs[vendor].put({"peer.0.1": 1})
        source, destination = one.allocate(512), other.allocate(512)
        one.write(source, b"x" * 512)
        other.write(destination, b"y" * 512)
        for size in (500, 400):  # peer access is there already for the second
            assert transfer(one, source, other, destination, size) == (size, "device", 1)
        assert other.read(destination, 512) == b"x" * 500 + b"y" * 12
        assert vendors.stubs[vendor].was_set() == ["copied=0 to 1"] * 2
        assert transfer(one, source, other, destination, 512, way="host").way == "host"
        assert transfer(other, destination, one, source, 512).way == "host", "the other way round it is not allowed"


@pytest.mark.parametrize(
    ("vendor", "call"), [("nvidia", "cuCtxEnablePeerAccess"), ("amd", "hipDeviceEnablePeerAccess")]
)
def test_peer_access_that_is_refused_leaves_the_way_through_the_host(vendors: Vendors, vendor: str, call: str) -> None:
    with two_devices(vendors, vendor) as (one, other):
        vendors.stubs[vendor].put({"peer.0.1": 1})
        vendors.stubs[vendor].fault(call, 711)
        source, destination = one.allocate(512), other.allocate(512)
        assert transfer(one, source, other, destination, 512).way == "host"


def test_a_peer_copy_that_the_driver_refuses_is_told_with_its_word(vendors: Vendors) -> None:
    with two_devices(vendors, "amd") as (one, other):
        vendors.stubs["amd"].put({"peer.0.1": 1})
        vendors.stubs["amd"].fault("hipMemcpyPeerAsync", 700)
        with pytest.raises(DeviceCallFailed, match="refused a call"):
            transfer(one, one.allocate(512), other, other.allocate(512), 512)


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_two_pools_of_one_device_need_no_peer_access(vendors: Vendors, vendor: str) -> None:
    one, memory = vendors.pool(vendor), OPENS[vendor][1]()
    with DevicePool(memory, MIB) as other:
        source, destination = one.allocate(512), other.allocate(512)
        one.write(source, b"x" * 512)
        assert transfer(one, source, other, destination, 512).way == "device"
        assert other.read(destination, 512) == b"x" * 512
    memory.close()


@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_copy_that_breaks_off_says_where_and_how_much_arrived(vendors: Vendors, side: str) -> None:
    one, other = vendors.pool("amd"), vendors.pool("intel")
    source, destination = one.allocate(3000), other.allocate(3000)
    one.write(source, b"x" * 3000)
    broken = "amd" if side == "source" else "intel"
    vendors.stubs[broken].fault(OPENS[broken][2], 700)
    with pytest.raises(CrossVendorTransferError, match=f"broke off at its {side}") as refused:
        transfer(one, source, other, destination, 3000)
    assert refused.value.details == {"side": side, "arrived_bytes": 0}
    assert isinstance(refused.value.__cause__, DeviceCallFailed)
    vendors.stubs[broken].fault(OPENS[broken][2], None)
    assert transfer(one, source, other, destination, 3000).pieces == 3


@pytest.mark.parametrize(
    ("change", "error"),
    [({"n_bytes": 0}, BadRequest), ({"n_bytes": 4097}, BadRequest), ({"way": "magic"}, BadRequest)],
    ids=str,
)
def test_what_makes_no_sense_is_refused(
    vendors: Vendors, change: dict[str, int | str], error: type[ActorGridError]
) -> None:
    one, other = vendors.pool("amd"), vendors.pool("intel")
    with pytest.raises(error):
        transfer(one, one.allocate(4096), other, other.allocate(512 * 16), **change)  # type: ignore[arg-type]


def test_blocks_that_are_freed_or_of_another_pool_are_refused(vendors: Vendors) -> None:
    one, other = vendors.pool("amd"), vendors.pool("intel")
    source, destination = one.allocate(512), other.allocate(512)
    with pytest.raises(InvalidBlock):
        transfer(other, source, one, destination, 512)
    one.free(source)
    with pytest.raises(InvalidBlock):
        transfer(one, source, other, destination, 512)
