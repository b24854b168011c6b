from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.objects.intervals import ByteRanges
from actorgrid.actors.objects.room import IDLE_S, PAGE_BYTES, Punch, Room, StoreLimits
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


def made(memory: int = 8 * MIB, disk: int = 8 * MIB) -> tuple[Room, list[Punch]]:
    orders: list[Punch] = []
    return Room(StoreLimits(memory, disk), orders.append), orders


def test_a_block_that_was_freed_is_given_again_with_its_memory() -> None:
    room, orders = made()
    space = room.open(1)
    block = room.allocate(space, MEMORY, 3 * MIB, 0.0)
    assert block is not None
    offset = block.offset
    room.free(space, MEMORY, block)
    assert room.warm_bytes == 3 * MIB and room.used[MEMORY] == 0
    again = room.allocate(space, MEMORY, 3 * MIB, 1.0)
    assert again is not None and again.offset == offset and room.warm_bytes == 0 and not orders


def test_memory_of_other_spaces_makes_room_before_the_limit_is_passed() -> None:
    room, orders = made()
    first, second = room.open(1), room.open(2)
    block = room.allocate(first, MEMORY, 6 * MIB, 0.0)
    assert block is not None
    room.free(first, MEMORY, block)
    assert room.allocate(second, MEMORY, 5 * MIB, 1.0) is not None
    assert room.used[MEMORY] + room.warm_bytes <= 8 * MIB
    assert [order.file.space for order in orders] == [1]


def test_more_than_the_limit_is_refused_and_said_how_much_is_lacking() -> None:
    room, _ = made()
    space = room.open(1)
    assert room.allocate(space, MEMORY, 6 * MIB, 0.0) is not None
    assert room.allocate(space, MEMORY, 3 * MIB, 0.0) is None
    assert room.lacks(MEMORY, 3 * MIB) == MIB and room.lacks(DISK, 3 * MIB) == 0


def test_memory_goes_back_to_the_system_when_nothing_is_made_and_what_the_disk_had_at_once() -> None:
    room, orders = made()
    space = room.open(1)
    block, other = room.allocate(space, MEMORY, MIB, 0.0), room.allocate(space, DISK, PAGE_BYTES, 0.0)
    assert block is not None and other is not None
    room.free(space, DISK, other)
    assert [order.file.kind for order in orders] == [DISK]
    room.free(space, MEMORY, block)
    room.tick(IDLE_S / 2)
    assert room.warm_bytes == MIB
    room.tick(IDLE_S)
    assert room.warm_bytes == 0 and orders[-1].size == MIB


def test_the_end_of_a_space_frees_all_that_it_had() -> None:
    room, _ = made()
    space = room.open(1)
    for kind in (MEMORY, DISK):
        assert room.allocate(space, kind, 5 * MIB, 0.0) is not None
    room.close(space)
    assert room.used == {MEMORY: 0, DISK: 0} and room.warm_bytes == 0
