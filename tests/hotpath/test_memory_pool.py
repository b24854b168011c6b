"""One contract, both pools: blocks, singly and in batches, and what is refused."""

from __future__ import annotations

import copy
import gc
import random
import tracemalloc
from array import array
from typing import Any

import pytest

from actorgrid.errors import BadRequest, InvalidBlock, OutOfDeviceMemory
from actorgrid.hotpath import PoolStats, Segment, vendor_alignment_bytes
from tests.hotpath.memory_device import POOLS, Device

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
NO_SIZES = [0, -1, -(2**70), 1.0, 1.5, float("nan"), float("inf"), "256", None, True, b"1", [1]]


@pytest.fixture(params=sorted(POOLS))
def kind(request: pytest.FixtureRequest) -> Any:
    return POOLS[request.param]


def picture(pool: Any) -> Any:
    return pool.segments(), pool.stats()


def test_a_block_is_aligned_and_as_long_as_asked_rounded_up(kind: Any) -> None:
    pool = kind(80 * GIB)
    first, second = pool.allocate(1), pool.allocate(257)
    assert (first.offset, first.size) == (0, 256)
    assert (second.offset, second.size) == (256, 512)
    assert repr(second) == "Block(offset=256, size=512)"
    stats = pool.stats()
    assert isinstance(stats, PoolStats)
    assert (stats.used, stats.free, stats.blocks, stats.holes) == (768, 80 * GIB - 768, 2, 1)


@pytest.mark.parametrize(("vendor", "alignment"), [("nvidia", 256), ("AMD", 4096), ("intel", 64)])
def test_each_vendor_has_its_alignment(kind: Any, vendor: str, alignment: int) -> None:
    pool = kind(GIB, vendor_alignment_bytes(vendor))
    assert pool.alignment_bytes == alignment
    assert [pool.allocate(1).offset for _ in range(3)] == [0, alignment, 2 * alignment]


def test_an_unknown_vendor_is_refused_with_those_known() -> None:
    with pytest.raises(BadRequest, match="nvidia, amd, intel"):
        vendor_alignment_bytes("acme")


def test_offsets_go_beyond_what_32_bits_of_units_can_say(kind: Any) -> None:
    pool = kind(2**60, 1)
    low, high = pool.allocate(2**59), pool.allocate(2**59)
    assert {low.offset, high.offset} == {0, 2**59}
    assert pool.stats().free == 0


def test_what_the_alignment_leaves_over_is_left_out(kind: Any) -> None:
    pool = kind(1000, 256)
    assert pool.size_bytes == 768
    pool.allocate(768)
    with pytest.raises(OutOfDeviceMemory):
        pool.allocate(1)


def test_freed_neighbours_become_one_hole(kind: Any) -> None:
    pool = kind(64 * KIB)
    before = pool.segments()
    blocks = [pool.allocate(4 * KIB) for _ in range(16)]
    random.Random(1).shuffle(blocks)
    for block in blocks:
        pool.free(block)
    assert pool.segments() == before == [Segment(0, 64 * KIB, "free")]
    assert pool.stats().peak_used == 64 * KIB


def test_a_size_just_freed_can_be_had_again(kind: Any) -> None:
    """Of every size, also where the pool is full and the hole stands among smaller ones of its bin."""
    dice = random.Random(5)
    for _ in range(30):
        pool = kind(4096 * 64, 64)
        blocks = []
        while pool.stats().free:
            blocks.append(pool.allocate(min(dice.randrange(64, 64 * 40), pool.stats().free)))
        dice.shuffle(blocks)
        pool.free_many(blocks[1::7])
        for block in blocks[::7]:
            size = block.size
            pool.free(block)
            assert pool.allocate(size).size == size


def test_every_hole_that_is_large_enough_is_found(kind: Any) -> None:
    dice = random.Random(2)
    pool = kind(2048 * 256)
    live: list[Any] = []
    for _ in range(3000):
        n = dice.randrange(1, 256 * 60)
        largest = pool.stats().largest_free
        try:
            live.append(pool.allocate(n))
        except OutOfDeviceMemory:
            assert largest < n
            for _ in range(5):
                pool.free(live.pop(dice.randrange(len(live))))


def test_large_blocks_stay_apart_from_small_ones(kind: Any) -> None:
    pool = kind(GIB)
    small = [pool.allocate(64 * KIB) for _ in range(100)]
    large = [pool.allocate(64 * MIB) for _ in range(3)]
    small += [pool.allocate(64 * KIB) for _ in range(10)]
    assert max(block.offset for block in small) < 8 * MIB
    assert min(block.offset for block in large) == GIB - 3 * 64 * MIB


@pytest.mark.parametrize("size", NO_SIZES, ids=repr)
def test_what_is_no_size_is_refused_and_changes_nothing(kind: Any, size: Any) -> None:
    pool = kind(MIB)
    pool.allocate(1000)
    before = picture(pool)
    for call in (
        lambda: pool.allocate(size),
        lambda: pool.allocate_many([10, size]),
        lambda: pool.defragment(size if size is not None else 0),
    ):
        with pytest.raises(BadRequest, match="whole number of at least 1"):
            call()
    assert picture(pool) == before


@pytest.mark.parametrize("size", [MIB + 1, 2**62, 2**63 - 1, 2**64, 10**40])
def test_more_than_the_pool_has_is_refused_and_changes_nothing(kind: Any, size: int) -> None:
    pool = kind(MIB)
    before = picture(pool)
    for call in (
        lambda: pool.allocate(size),
        lambda: pool.allocate_many([1, size]),
        lambda: pool.defragment(size),
    ):
        with pytest.raises(OutOfDeviceMemory) as caught:
            call()
        assert caught.value.details["asked_bytes"] == size
        assert caught.value.details["free_bytes"] == MIB
    assert picture(pool) == before


def test_a_refusal_says_whether_moving_would_help(kind: Any) -> None:
    pool = kind(MIB, 4096)
    blocks = pool.allocate_many([4096] * 256)
    pool.free_many(blocks[::2])
    with pytest.raises(OutOfDeviceMemory, match=r"largest hole 4096.*defragment"):
        pool.allocate(8192)
    with pytest.raises(OutOfDeviceMemory, match="free blocks first"):
        pool.allocate(MIB)
    assert pool.stats().fragmentation == pytest.approx(1 - 1 / 128)


def test_a_size_of_another_integer_type_is_taken(kind: Any) -> None:
    class Count:
        def __index__(self) -> int:
            return 300

    assert kind(MIB).allocate(Count()).size == 512


@pytest.mark.parametrize("alignment", [0, -1, 3, 100, 257, 2**41, 2**70, 1.5, float("nan"), "256", None, True])
def test_an_alignment_is_a_power_of_two(kind: Any, alignment: Any) -> None:
    with pytest.raises(BadRequest):
        kind(MIB, alignment)


@pytest.mark.parametrize("size", [0, -1, 255, 2**62 + 1, 2**70, 1e9, float("nan"), None, False])
def test_a_pool_has_a_sensible_size(kind: Any, size: Any) -> None:
    with pytest.raises(BadRequest):
        kind(size)


def test_a_double_free_is_refused_and_changes_nothing(kind: Any) -> None:
    pool = kind(MIB)
    block = pool.allocate(1000)
    pool.free(block)
    again = pool.allocate(1000)  # in the same place
    before = picture(pool)
    with pytest.raises(InvalidBlock, match="freed already"):
        pool.free(block)
    with pytest.raises(InvalidBlock, match="freed already"):
        _ = block.offset
    with pytest.raises(InvalidBlock, match="freed already"):
        _ = block.size
    assert picture(pool) == before
    assert repr(block) == "Block(freed)"
    assert (block.live, again.live) == (False, True)
    assert block != again


def test_what_is_no_block_of_the_pool_is_refused_and_changes_nothing(kind: Any) -> None:
    pool, other = kind(MIB), kind(MIB)
    mine, foreign = pool.allocate(1000), other.allocate(1000)
    batch = other.allocate_many([10, 10])
    before = picture(pool), picture(other)
    for wrong in (foreign, 0, None, "block", object(), batch):
        with pytest.raises(InvalidBlock, match="no block of this pool"):
            pool.free(wrong)
        with pytest.raises(InvalidBlock, match="no block of this pool"):
            pool.free_many([mine, wrong])
    for wrong in (batch, 7, None, foreign):
        with pytest.raises(InvalidBlock, match="no block of this pool"):
            pool.free_many(wrong)
    assert (picture(pool), picture(other)) == before


def test_a_block_is_equal_to_itself_however_it_was_come_by(kind: Any) -> None:
    pool = kind(MIB)
    batch = pool.allocate_many([10, 20])
    assert batch[1] == batch[-1] == list(batch)[1]
    assert len({batch[0], batch[1], batch[-1]}) == 2
    assert batch[0] != batch[1] and batch[0] != "block"
    with pytest.raises(TypeError):
        type(batch[0])()
    with pytest.raises(TypeError):
        type(batch)()


def test_a_batch_stands_where_single_calls_would_put_it(kind: Any) -> None:
    sizes = [random.Random(3).randrange(1, 9000) for _ in range(100)]
    one, many = kind(MIB), kind(MIB)
    batch = many.allocate_many(array("q", sizes))
    assert [one.allocate(size).offset for size in sizes] == batch.offsets() == [block.offset for block in batch]
    assert len(batch) == 100
    assert [block.size for block in batch[:2]] == [(size + 255) // 256 * 256 for size in sizes[:2]]
    with pytest.raises(IndexError):
        batch[100]
    assert len(many.allocate_many([])) == 0


def test_a_batch_is_given_whole_or_not_at_all(kind: Any) -> None:
    pool = kind(MIB)
    pool.allocate(512 * KIB)
    before = picture(pool)
    with pytest.raises(OutOfDeviceMemory):
        pool.allocate_many([100 * KIB] * 5 + [200 * KIB])
    assert picture(pool) == before
    with pytest.raises(BadRequest, match="sequence"):
        pool.allocate_many(5)


def test_a_batch_is_freed_whole_or_not_at_all(kind: Any) -> None:
    pool = kind(MIB)
    batch = pool.allocate_many([1000] * 10)
    single = pool.allocate(1000)
    pool.free(batch[4])
    before = picture(pool)
    with pytest.raises(InvalidBlock, match="block 4 of the batch was freed already"):
        pool.free_many(batch)
    with pytest.raises(InvalidBlock, match="block 4 of the batch was freed already"):
        batch.offsets()
    with pytest.raises(InvalidBlock, match="of the batch was freed already"):
        pool.free_many([batch[0], single, batch[1], batch[0]])
    with pytest.raises(InvalidBlock, match="block 1 of the batch was freed already"):
        pool.free_many([single, batch[4]])
    assert picture(pool) == before
    pool.free_many([single, *batch[:4], *batch[5:]])
    assert pool.segments() == [Segment(0, MIB, "free")]


def test_a_whole_batch_goes_back_in_one_call(kind: Any) -> None:
    pool = kind(MIB)
    batch = pool.allocate_many(range(1, 50))
    pool.free_many(batch)
    assert pool.stats().used == 0
    with pytest.raises(InvalidBlock, match="block 0 of the batch was freed already"):
        pool.free_many(batch)


def test_a_block_keeps_its_pool_alive(kind: Any) -> None:
    block = kind(MIB).allocate(10)
    batch = kind(MIB).allocate_many([10])
    gc.collect()
    assert (block.offset, batch[0].offset, copy.copy(block) == block) == (0, 0, True)


def test_the_same_calls_give_the_same_offsets(kind: Any) -> None:
    def offsets(seed: int) -> list[int]:
        dice, pool, live, found = random.Random(seed), kind(4 * MIB), [], []
        for _ in range(2000):
            if live and dice.random() < 0.45:
                pool.free(live.pop(dice.randrange(len(live))))
            else:
                try:
                    live.append(pool.allocate(int(2 ** (dice.random() * 16))))
                except OutOfDeviceMemory:
                    for move in pool.defragment():
                        pool.commit(move)
                else:
                    found.append(live[-1].offset)
        return found

    assert offsets(1) == offsets(1) != offsets(2)


def test_churn_conserves_every_byte(kind: Any) -> None:
    dice = random.Random(9)
    device = Device(kind(256 * KIB, 64))
    for step in range(4000):
        if device.live and dice.random() < 0.48:
            device.free(dice.choice(list(device.live)))
        else:
            try:
                device.allocate(int(2 ** (dice.random() * 14)))
            except OutOfDeviceMemory:
                device.free(dice.choice(list(device.live)))
        if step % 100 == 0:
            device.check()
    device.check()


def test_what_a_pool_takes_of_the_host_goes_back(kind: Any) -> None:
    def churn() -> None:
        pool = kind(GIB)
        batches = [pool.allocate_many([300] * 200) for _ in range(10)]
        kept = [block for batch in batches[::2] for block in batch]
        for batch in batches[1::2]:
            pool.free_many(batch)
        pool.free_many(kept[::3])
        for move in pool.defragment(GIB - 4 * MIB):
            pool.commit(move)
        pool.defragment(allow_overlap=True)

    tracemalloc.start()
    try:
        churn()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(3):
            churn()
        gc.collect()
        assert tracemalloc.get_traced_memory()[1] > 80_000, "the kernel's memory is counted too"
        assert tracemalloc.get_traced_memory()[0] - before < 10_000
    finally:
        tracemalloc.stop()


@pytest.mark.soak
def test_ten_million_operations_leave_nothing_behind() -> None:
    """Live blocks are swapped at random; the pool's slots and the host's memory stop growing early on."""
    dice = random.Random(4)
    pool = POOLS.get("compiled", POOLS["reference"])(80 * GIB)
    blocks = [pool.allocate(int(256 * 2 ** (dice.random() * 14))) for _ in range(10_000)]
    tracemalloc.start()
    try:
        settled = 0
        for step in range(5_000_000):
            at = dice.randrange(10_000)
            pool.free(blocks[at])
            blocks[at] = pool.allocate(int(256 * 2 ** (dice.random() * 14)))
            if step == 1_000_000:
                settled = tracemalloc.get_traced_memory()[0]
        assert tracemalloc.get_traced_memory()[0] <= settled + 2_000_000
    finally:
        tracemalloc.stop()
    assert pool.stats().used == sum(block.size for block in blocks)
    pool.free_many(blocks)
    assert pool.segments() == [Segment(0, 80 * GIB, "free")]
