from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.objects.block_allocator import IDLE_S, PAGE_BYTES, BlockAllocator, Punch, StoreLimits
from actorgrid.actors.objects.intervals import ByteRanges
from actorgrid.transports.object_frames import DISK, MEMORY

MIB = 2**20


@settings(max_examples=200)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(1, 12)), max_size=40))
def test_ranges_are_the_set_of_their_bytes(steps: list[tuple[bool, int, int]]) -> None:
    ranges, plain = ByteRanges(), set[int]()
    for adds, begin, size in steps:
        wanted = set(range(begin, begin + size))
        if adds and not wanted & plain:
            ranges.add(begin, begin + size)
            plain |= wanted
        elif not adds:
            assert ranges.remove(begin, begin + size) == len(wanted & plain)
            plain -= wanted
        assert ranges.total == len(plain)
    runs = sum(byte - 1 not in plain for byte in plain)
    assert len(ranges) == runs, "ranges that touch are one"
    taken = ranges.take(10**9)
    assert set().union(*(range(begin, end) for begin, end in taken)) == plain and not ranges.total


def made(memory: int = 8 * MIB, disk: int = 8 * MIB) -> tuple[BlockAllocator, list[Punch]]:
    orders: list[Punch] = []
    return BlockAllocator(StoreLimits(memory, disk), orders.append), orders


def test_a_block_that_was_freed_is_given_again_with_its_memory() -> None:
    allocator, orders = made()
    space = allocator.open(1)
    block = allocator.allocate(space, MEMORY, 3 * MIB, 0.0)
    assert block is not None
    offset = block.offset
    allocator.free(space, MEMORY, block)
    assert allocator.warm_bytes == 3 * MIB and allocator.used[MEMORY] == 0
    again = allocator.allocate(space, MEMORY, 3 * MIB, 1.0)
    assert again is not None and again.offset == offset and allocator.warm_bytes == 0 and not orders


def test_memory_of_other_spaces_makes_room_before_the_limit_is_passed() -> None:
    allocator, orders = made()
    first, second = allocator.open(1), allocator.open(2)
    block = allocator.allocate(first, MEMORY, 6 * MIB, 0.0)
    assert block is not None
    allocator.free(first, MEMORY, block)
    assert allocator.allocate(second, MEMORY, 5 * MIB, 1.0) is not None
    assert allocator.used[MEMORY] + allocator.warm_bytes <= 8 * MIB
    assert [order.file.space for order in orders] == [1]


def test_more_than_the_limit_is_refused_and_said_how_much_is_lacking() -> None:
    allocator, _ = made()
    space = allocator.open(1)
    assert allocator.allocate(space, MEMORY, 6 * MIB, 0.0) is not None
    assert allocator.allocate(space, MEMORY, 3 * MIB, 0.0) is None
    assert allocator.lacks(MEMORY, 3 * MIB) == MIB and allocator.lacks(DISK, 3 * MIB) == 0


def test_memory_goes_back_to_the_system_when_nothing_is_made_and_what_the_disk_had_at_once() -> None:
    allocator, orders = made()
    space = allocator.open(1)
    block, other = allocator.allocate(space, MEMORY, MIB, 0.0), allocator.allocate(space, DISK, PAGE_BYTES, 0.0)
    assert block is not None and other is not None
    allocator.free(space, DISK, other)
    assert [order.file.kind for order in orders] == [DISK]
    allocator.free(space, MEMORY, block)
    allocator.tick(IDLE_S / 2)
    assert allocator.warm_bytes == MIB
    allocator.tick(IDLE_S)
    assert allocator.warm_bytes == 0 and orders[-1].size == MIB


def test_the_end_of_a_space_frees_all_that_it_had() -> None:
    allocator, _ = made()
    space = allocator.open(1)
    for kind in (MEMORY, DISK):
        assert allocator.allocate(space, kind, 5 * MIB, 0.0) is not None
    allocator.close(space)
    assert allocator.used == {MEMORY: 0, DISK: 0} and allocator.warm_bytes == 0
