"""Memory of devices through each vendor's calls, over stubs of their libraries; and the pool over it, for all alike."""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from actorgrid.device_memory import CudaMemory, DeviceMemory, DevicePool, HipMemory, LevelZeroMemory, device_pool
from actorgrid.errors import BadRequest, DeviceCallFailed, InvalidBlock, NoDeviceDriver, OutOfDeviceMemory
from tests.gpu.conftest import stub_library
from tests.gpu.drivers.build import CUDA, HIP, LEVEL_ZERO_MEMORY, StubKind
from tests.gpu.drivers.stubs import StubDriver

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True)
class Case:
    kind: StubKind
    open: Callable[[], DeviceMemory]
    allocate_call: str
    record_call: str
    init_call: str
    words: str


CASES = (
    Case(CUDA, CudaMemory, "cuMemAlloc", "cuEventRecord", "cuInit", "CUDA_ERROR_ILLEGAL_ADDRESS"),
    Case(HIP, HipMemory, "hipMalloc", "hipEventRecord", "hipInit", "hipErrorUnknown"),
    Case(
        LEVEL_ZERO_MEMORY, LevelZeroMemory, "zeMemAllocDevice", "zeCommandListAppendSignalEvent", "zeInit", "an error"
    ),
)


@pytest.fixture(params=CASES, ids=lambda case: case.kind.name)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture
def stub(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StubDriver:
    driver = StubDriver(case.kind, stub_library(case.kind), tmp_path / "state")
    driver.put({"memory_mib": 64})
    for name, value in driver.variables.items():
        monkeypatch.setenv(name, value)
    if case.kind is CUDA:
        pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed: nobody would call the stub")
        ctypes.CDLL(str(driver.library), mode=ctypes.RTLD_GLOBAL)  # cuda-bindings then gets it for the SONAME
    return driver


class Streams:
    """Streams of a device, and holding them: what they have is then pending."""

    def __init__(self, memory: DeviceMemory, stub: StubDriver) -> None:
        self.memory = memory
        self._stub = stub
        self._made: list[int] = []

    def make(self) -> int:
        self._made.append(self.memory.new_stream())
        return self._made[-1]

    def hold(self, number: int) -> None:
        self._stub.put({f"hold.{number}": 1})

    def release(self, number: int) -> None:
        self._stub.put({f"hold.{number}": None})

    def end(self) -> None:
        for stream in self._made:
            self.memory.end_stream(stream)


@pytest.fixture
def memory(case: Case, stub: StubDriver) -> Iterator[DeviceMemory]:
    opened = case.open()
    yield opened
    opened.close()


@pytest.fixture
def streams(memory: DeviceMemory, stub: StubDriver) -> Iterator[Streams]:
    made = Streams(memory, stub)
    if isinstance(memory, LevelZeroMemory):
        memory.copy_to_host(memory.allocate(64), 1)  # its default stream is made now, so that numbers are as below
    yield made
    made.end()


def number_of(memory: DeviceMemory, place: int) -> int:
    """How the stub counts the streams: Level Zero's default one is one that was made."""
    return place + isinstance(memory, LevelZeroMemory)


# -- the calls


def test_memory_is_taken_and_given_back(memory: DeviceMemory) -> None:
    free, total = memory.memory_bytes()
    assert total == 64 * MIB
    address = memory.allocate(8 * MIB)
    if free is not None:
        assert memory.memory_bytes() == (free - 8 * MIB, total)
    memory.copy_from_host(address, b"actor" * 100)
    memory.copy_within(address, address + 4096, 500)
    assert memory.copy_to_host(address + 4096, 500) == b"actor" * 100
    memory.copy_from_host(address, bytearray(b"grid"))
    assert memory.copy_to_host(address, 4) == b"grid"
    memory.free(address)
    assert memory.memory_bytes() == (free, total)


def test_more_than_the_device_has_is_out_of_memory(memory: DeviceMemory) -> None:
    with pytest.raises(OutOfDeviceMemory) as refused:
        memory.allocate(65 * MIB)
    assert refused.value.details["asked_bytes"] == 65 * MIB


def test_a_refused_call_is_told_with_the_drivers_word(case: Case, stub: StubDriver, memory: DeviceMemory) -> None:
    stub.fault(case.allocate_call, 700)
    with pytest.raises(DeviceCallFailed) as refused:
        memory.allocate(4096)
    assert refused.value.details == {"call": case.allocate_call, "driver_code": 700}
    assert case.words in str(refused.value)
    stub.fault(case.allocate_call, None)
    memory.free(memory.allocate(4096))


def test_a_driver_that_does_not_start_and_a_device_that_is_not_there_are_named(case: Case, stub: StubDriver) -> None:
    stub.fault(case.init_call, 100)
    with pytest.raises(NoDeviceDriver):
        case.open()
    stub.fault(case.init_call, None)
    stub.put({"devices": 0})
    with pytest.raises(NoDeviceDriver, match="0 devices, no number 0"):
        case.open()


@pytest.mark.parametrize(
    ("open_one", "variable"),
    [(HipMemory, "ACTORGRID_HIP_LIBRARY"), (LevelZeroMemory, "ACTORGRID_LEVEL_ZERO_LIBRARY")],
)
def test_a_library_that_is_not_there_is_named(
    open_one: Callable[[], DeviceMemory], variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "/nowhere/lib.so")
    with pytest.raises(NoDeviceDriver, match=variable):
        open_one()


def test_a_stream_keeps_its_order_and_events_tell_how_far_it_is(memory: DeviceMemory, streams: Streams) -> None:
    one, other = streams.make(), streams.make()
    address = memory.allocate(MIB)
    memory.copy_from_host(address, b"old")
    event = memory.new_event()
    assert memory.is_done(event) in (True, False)
    streams.hold(number_of(memory, 1))
    memory.copy_within(address, address + 4096, 3, one)
    memory.record(event, one)
    assert not memory.is_done(event)
    memory.order(other, event)
    later = memory.new_event()
    memory.copy_within(address + 4096, address + 8192, 3, other)
    memory.record(later, other)
    assert not memory.is_done(later), "what was given to the other stream comes after the event"
    streams.release(number_of(memory, 1))
    memory.wait(later)
    assert memory.is_done(event)
    assert memory.copy_to_host(address + 8192, 3) == b"old"
    memory.record(event, one)
    memory.wait(event)
    memory.end_event(event)
    memory.end_event(later)
    memory.free(address)


# -- the pool


def test_a_pool_asks_the_driver_once(memory: DeviceMemory, stub: StubDriver, case: Case) -> None:
    with DevicePool(memory, 16 * MIB) as pool:
        stub.fault(case.allocate_call, 700)
        blocks = [pool.allocate(10_000) for _ in range(100)]
        assert len({block.address for block in blocks}) == 100
        for number, block in enumerate(blocks):
            pool.write(block, bytes([number]) * 10_000)
        for number, block in enumerate(blocks):
            assert pool.read(block, 10_000) == bytes([number]) * 10_000
        for block in blocks:
            pool.free(block)
        assert pool.stats().account.used == pool.stats().events == 0, "one stream: no event"
        stub.fault(case.allocate_call, None)
    free, total = memory.memory_bytes()
    assert free in (None, total)


def test_addresses_are_aligned_as_the_vendor_wants(memory: DeviceMemory) -> None:
    alignment = {"nvidia": 256, "amd": 4096, "intel": 64}[memory.vendor]
    with DevicePool(memory, MIB) as pool:
        assert all(pool.allocate(size).address % alignment == 0 for size in (1, 100, 5000))


def test_a_block_of_another_stream_comes_back_when_that_stream_is_done(memory: DeviceMemory, streams: Streams) -> None:
    side = streams.make()
    with DevicePool(memory, MIB) as pool:
        block = pool.allocate(MIB, stream=side)
        streams.hold(number_of(memory, 1))
        memory.copy_within(block.address, block.address + 4096, 10, side)
        pool.free(block)
        assert pool.stats()[1:3] == (1, MIB)
        waiting = threading.Thread(target=lambda: pool.free(pool.allocate(MIB)))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive(), "its memory is in use still"
        streams.release(number_of(memory, 1))
        waiting.join(30)
        assert not waiting.is_alive()
        assert pool.stats()[1:4] == (0, 0, 1)


def test_a_stream_that_uses_a_block_too_is_waited_for(memory: DeviceMemory, streams: Streams) -> None:
    side = streams.make()
    with DevicePool(memory, MIB) as pool:
        block = pool.allocate(MIB // 2)
        pool.used_on(block, side)
        streams.hold(number_of(memory, 1))
        memory.copy_within(block.address, block.address + 4096, 10, side)
        address = block.address
        pool.free(block)
        assert pool.allocate(MIB // 2).address != address
        streams.release(number_of(memory, 1))
        assert pool.allocate(MIB // 2).address == address
        assert pool.stats().pending_blocks == 0


def test_what_the_home_stream_freed_is_used_by_others_only_after_it(memory: DeviceMemory, streams: Streams) -> None:
    home, side = streams.make(), streams.make()
    with DevicePool(memory, MIB, home_stream=home) as pool:
        block = pool.allocate(MIB)
        pool.write(block, b"old")
        kept = memory.allocate(4096)
        streams.hold(number_of(memory, 1))
        memory.copy_within(block.address, kept, 3, home)
        pool.free(block)
        again = pool.allocate(MIB, stream=side)
        source = memory.allocate(4096)
        memory.copy_from_host(source, b"new")
        memory.copy_within(source, again.address, 3, side)
        done = memory.new_event()
        memory.record(done, side)
        assert not memory.is_done(done)
        streams.release(number_of(memory, 1))
        memory.wait(done)
        memory.end_event(done)
        assert memory.copy_to_host(kept, 3) == b"old", "the home stream read before the other wrote"
        assert pool.read(again, 3) == b"new"
        pool.free(again)
        memory.free(kept)
        memory.free(source)


def test_how_many_wait_is_bounded(
    memory: DeviceMemory, streams: Streams, monkeypatch: pytest.MonkeyPatch, stub: StubDriver
) -> None:
    monkeypatch.setattr(device_pool, "PENDING_MAX", 4)
    monkeypatch.setattr(device_pool, "LOOKED_AT", 0)
    side = streams.make()
    with DevicePool(memory, MIB) as pool:
        for _ in range(10):
            pool.free(pool.allocate(4096, stream=side))
        assert (pool.stats().pending_blocks, pool.stats().waits) == (4, 6)
        assert pool.stats().events <= 6


def test_a_refused_event_changes_nothing(case: Case, memory: DeviceMemory, streams: Streams, stub: StubDriver) -> None:
    side = streams.make()
    with DevicePool(memory, MIB) as pool:
        block = pool.allocate(4096, stream=side)
        stub.fault(case.record_call, 400)
        with pytest.raises(DeviceCallFailed):
            pool.free(block)
        assert not block.freed and pool.stats().pending_blocks == 0
        pool.free(pool.allocate(64))
        with pytest.raises(DeviceCallFailed):
            pool.allocate(4096, stream=side)
        stub.fault(case.record_call, None)
        pool.free(block)


def test_what_is_no_block_is_refused(memory: DeviceMemory) -> None:
    pool, other = DevicePool(memory, MIB), DevicePool(memory, MIB)
    block = pool.allocate(64)
    with pytest.raises(InvalidBlock, match="another pool"):
        other.free(block)
    pool.free(block)
    for refused in (lambda: pool.free(block), lambda: block.address, lambda: pool.used_on(block, 1)):
        with pytest.raises(InvalidBlock, match="freed already"):
            refused()
    with pytest.raises(BadRequest):
        pool.free(7)  # type: ignore[arg-type]
    for size in (0, -1, 1.5, None):
        with pytest.raises(BadRequest):
            pool.allocate(size)  # type: ignore[arg-type]
    small = pool.allocate(64)
    for stream in (-1, 2**64, "main", 1.0, True, None):
        with pytest.raises(BadRequest, match="a stream is"):
            pool.used_on(small, stream)  # type: ignore[arg-type]
        if stream is not None:
            with pytest.raises(BadRequest, match="a stream is"):
                pool.allocate(64, stream)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="smaller"):
        pool.write(small, bytes(small.size + 1))
    with pytest.raises(BadRequest):
        pool.read(small, small.size + 1)
    with pytest.raises(BadRequest, match="nothing is to be copied"):
        pool.write(small, b"")
    pool.close()
    pool.close()
    other.close()
    for call in (lambda: pool.allocate(64), lambda: pool.read(small), lambda: pool.free(small)):
        with pytest.raises(InvalidBlock, match="closed"):
            call()
    with pytest.raises(OutOfDeviceMemory):
        DevicePool(memory, 100 * MIB)


def test_blocks_move_with_their_contents(memory: DeviceMemory, streams: Streams) -> None:
    with DevicePool(memory, MIB, movable=True) as pool:
        blocks = [pool.allocate(MIB // 16) for _ in range(16)]
        for number, block in enumerate(blocks):
            pool.write(block, bytes([number]) * block.size)
        for block in blocks[::2]:
            pool.free(block)
        with pytest.raises(OutOfDeviceMemory):
            pool.allocate(MIB // 2)
        moved = 0
        while pool.stats().account.largest_free < MIB // 2:
            moved += pool.defragment(MIB // 2)
        assert moved == pool.stats().account.moved_bytes > 0
        pool.allocate(MIB // 2)
        for number, block in enumerate(blocks):
            if number % 2:
                assert pool.read(block) == bytes([number]) * block.size
        pool.used_on(blocks[1], streams.make())
        with pytest.raises(BadRequest, match="other streams"):
            pool.defragment()
    with DevicePool(memory, MIB) as pool, pytest.raises(BadRequest, match="do not move"):
        pool.defragment()


def test_threads_share_a_pool(memory: DeviceMemory, streams: Streams) -> None:
    own = [streams.make() for _ in range(4)]
    failed: list[Exception] = []
    with DevicePool(memory, 8 * MIB) as pool:

        def churn(stream: int) -> None:
            chance = random.Random(stream)
            held: list[tuple[Any, bytes]] = []
            try:
                for round_ in range(120):
                    if held and (len(held) > 6 or chance.random() < 0.4):
                        block, data = held.pop(chance.randrange(len(held)))
                        assert pool.read(block, len(data)) == data
                        pool.free(block)
                    else:
                        block = pool.allocate(chance.randrange(1, 64 * KIB), stream)
                        data = bytes([round_ % 256]) * min(block.size, 512)
                        pool.write(block, data)
                        held.append((block, data))
                for block, _ in held:
                    pool.free(block)
            except Exception as error:  # noqa: BLE001 - told by the test
                failed.append(error)

        threads = [threading.Thread(target=churn, args=(stream,)) for stream in own]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        while pool.stats().pending_blocks:
            pool.free(pool.allocate(64))
        assert pool.stats().account.used == 0
