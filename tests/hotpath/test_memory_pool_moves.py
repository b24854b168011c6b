"""Moves: what they promise to whoever copies, what they cost, and what becomes of those that are not committed."""

from __future__ import annotations

import gc
import random
from itertools import pairwise
from typing import Any

import pytest

from actorgrid.errors import BadRequest, InvalidBlock, OutOfDeviceMemory
from actorgrid.hotpath import Segment
from tests.hotpath.memory_device import POOLS, Device

UNIT = 256


@pytest.fixture(params=sorted(POOLS))
def kind(request: pytest.FixtureRequest) -> Any:
    return POOLS[request.param]


def picture(pool: Any) -> Any:
    return pool.segments(), pool.stats()


def laid_out(kind: Any, plan: str) -> tuple[Device, dict[str, Any]]:
    """A pool with blocks as *plan* shows them, a letter for each unit, dots for holes: ``aab..c``."""
    device = Device(kind(len(plan) * UNIT, UNIT))
    runs: list[tuple[str, int]] = []
    for letter in plan:
        if runs and runs[-1][0] == letter:
            runs[-1] = (letter, runs[-1][1] + 1)
        else:
            runs.append((letter, 1))
    # One unit after the other, from the low end, whatever the placement would do with sizes; then as asked.
    units = [device.pool.allocate(UNIT) for _ in plan]
    blocks: dict[str, Any] = {}
    at = 0
    for letter, length in runs:
        device.pool.free_many(units[at : at + length])
        if letter != ".":
            block = device.allocate(length * UNIT)
            assert block.offset == at * UNIT
            blocks[letter] = block
        else:
            units[at : at + length] = [device.pool.allocate(UNIT) for _ in range(length)]
        at += length
    at = 0
    for letter, length in runs:
        if letter == ".":
            device.pool.free_many(units[at : at + length])
        at += length
    device.check()
    return device, blocks


def checkered(kind: Any, count: int = 32, size: int = 1024) -> Device:
    """Every other block of a full pool freed: half is free, and no hole larger than a block."""
    device = Device(kind(count * size))
    blocks = [device.allocate(size) for _ in range(count)]
    for block in blocks[::2]:
        device.free(block)
    device.check()
    return device


def test_after_the_moves_the_size_can_be_had(kind: Any) -> None:
    device = checkered(kind)
    with pytest.raises(OutOfDeviceMemory):
        device.allocate(8 * 1024)
    assert device.move(8 * 1024) == 4
    device.check()
    device.allocate(8 * 1024)
    device.check()
    stats = device.pool.stats()
    assert (stats.moves, stats.moved_bytes, stats.held) == (4, 4 * 1024, 0)


def test_the_cheapest_window_is_cleared(kind: Any) -> None:
    device, blocks = laid_out(kind, "aaaa..bbbb..c..dddd..")
    moves = device.pool.defragment(5 * UNIT)
    assert moves.planned_bytes == UNIT
    assert [move.block for move in moves] == [blocks["c"]]


def test_few_large_copies_are_preferred_to_many_small_ones(kind: Any) -> None:
    """A copy costs something to start: clearing ten blocks of 1 byte less is not cheaper than one block."""
    pool = kind(2**30, 1)
    wide = 2**14  # 2^30 >> 16, what one move is charged
    many = [pool.allocate(wide // 100) for _ in range(20)]
    one = [pool.allocate(wide // 4) for _ in range(2)]
    rest = pool.allocate(2**30 - sum(block.size for block in (*many, *one)) - 2 * wide)
    ends = [pool.allocate(wide), pool.allocate(wide)]
    pool.free_many(many[::2])
    pool.free(one[0])
    pool.free(ends[0])
    moves = list(pool.defragment(wide + 1))
    assert len(moves) == 1
    assert rest.live


def test_moves_never_touch_a_block_or_each_other(kind: Any) -> None:
    """So they may be copied all at the same time, in any order."""
    dice = random.Random(6)
    checked = 0
    for _ in range(40):
        device = Device(kind(400 * UNIT))
        while device.pool.stats().used < 300 * UNIT:
            device.allocate(dice.randrange(1, 12 * UNIT))
        for block in dice.sample(list(device.live), len(device.live) // 3):
            device.free(block)
        moves = list(device.pool.defragment(device.pool.stats().largest_free + 20 * UNIT))
        taken = [range(block.offset, block.offset + block.size) for block in device.live]
        taken += [range(move.destination, move.destination + move.size) for move in moves]
        taken.sort(key=lambda one: one.start)
        assert all(one.stop <= other.start for one, other in pairwise(taken))
        assert not any(move.overlaps for move in moves)
        assert all(list(move.chunks()) == [(move.source, move.destination, move.size)] for move in moves)
        dice.shuffle(moves)
        for move in moves:
            device.copy(move)
        for move in moves:
            device.pool.commit(move)
        device.check()
        assert device.pool.stats().held == 0
        checked += len(moves)
    assert checked > 100


def test_an_uncommitted_move_leaves_the_block_and_its_contents(kind: Any) -> None:
    device = checkered(kind)
    where = {block: block.offset for block in device.live}
    for move in device.pool.defragment(8 * 1024):
        device.copy(move)
        device.check()
    del move
    assert {block: block.offset for block in device.live} == where
    assert device.pool.stats().held == 0
    assert device.pool.stats().moved_bytes == 0
    device.check()


def test_a_move_that_is_dropped_is_cancelled(kind: Any) -> None:
    device = checkered(kind)
    before = device.pool.segments()
    moves = list(device.pool.defragment(8 * 1024))
    assert device.pool.stats().held > 0
    device.check()
    moves.clear()
    assert device.pool.segments() == before


def test_a_defragmentation_that_is_dropped_gives_its_hole_back(kind: Any) -> None:
    device = checkered(kind)
    before = device.pool.segments()
    moves = device.pool.defragment(8 * 1024)
    assert device.pool.stats().held > 0
    del moves
    gc.collect()
    assert device.pool.segments() == before


def test_a_committed_move_is_done_however_the_rest_ends(kind: Any) -> None:
    device = checkered(kind)
    for move in device.pool.defragment(8 * 1024):
        device.copy(move)
        device.pool.commit(move)
        break
    gc.collect()
    device.check()
    assert move.block.offset == move.destination
    assert (device.pool.stats().held, device.pool.stats().moves) == (0, 1)


def test_a_move_is_committed_once(kind: Any) -> None:
    device = checkered(kind)
    moves = device.pool.defragment(8 * 1024)
    move = next(moves)
    device.copy(move)
    device.pool.commit(move)
    before = picture(device.pool)
    with pytest.raises(InvalidBlock, match="committed already"):
        device.pool.commit(move)
    with pytest.raises(InvalidBlock, match="stale"):
        device.pool.cancel(move)
    assert picture(device.pool) == before
    device.check()


def test_a_cancelled_move_cannot_be_committed(kind: Any) -> None:
    device = checkered(kind)
    moves = device.pool.defragment(8 * 1024)
    move = next(moves)
    device.pool.cancel(move)
    before = picture(device.pool)
    for call in (device.pool.commit, device.pool.cancel):
        with pytest.raises(InvalidBlock, match="cancelled"):
            call(move)
    assert picture(device.pool) == before
    device.check()


def test_freeing_a_block_cancels_its_move(kind: Any) -> None:
    device = checkered(kind)
    moves = list(device.pool.defragment(8 * 1024))
    freed = moves[1].block
    device.free(freed)
    device.check()
    before = picture(device.pool)
    with pytest.raises(InvalidBlock, match="block was freed"):
        device.pool.commit(moves[1])
    assert picture(device.pool) == before
    for move in (moves[0], *moves[2:]):
        device.copy(move)
        device.pool.commit(move)
    device.check()
    device.allocate(8 * 1024)
    device.check()


def test_a_move_whose_block_went_before_it_was_given_is_left_out(kind: Any) -> None:
    device = checkered(kind)
    given = {move.block for move in list(device.pool.defragment(8 * 1024))}
    moves = device.pool.defragment(8 * 1024)
    gone = min(given, key=lambda block: block.offset)
    device.free(gone)
    assert gone not in {move.block for move in list(moves)}


def test_a_move_of_another_pool_is_refused(kind: Any) -> None:
    one, other = checkered(kind), checkered(kind)
    moves = list(one.pool.defragment(8 * 1024))
    before = picture(one.pool), picture(other.pool)
    for wrong in (moves[0], None, "move", 3):
        for call in (other.pool.commit, other.pool.cancel):
            with pytest.raises(InvalidBlock, match="stale"):
                call(wrong)
    assert (picture(one.pool), picture(other.pool)) == before


def test_blocks_come_and_go_during_moves_but_not_in_the_hole_being_made(kind: Any) -> None:
    dice = random.Random(8)
    device = checkered(kind, 128)
    for move in device.pool.defragment(24 * 1024):
        device.copy(move)
        device.allocate(512)
        staying = [block for block in device.live if block != move.block]
        device.free(dice.choice(staying))
        device.check()
        if move.block in device.live:
            device.pool.commit(move)
        device.check()
    assert device.pool.stats().largest_free >= 24 * 1024
    device.allocate(24 * 1024)
    device.check()


def test_another_defragmentation_ends_the_one_before(kind: Any) -> None:
    device = checkered(kind)
    first = device.pool.defragment(8 * 1024)
    move = next(first)
    second = device.pool.defragment(4 * 1024)
    with pytest.raises(InvalidBlock, match="cancelled"):
        device.pool.commit(move)
    assert list(first) == []
    first.close()
    for move in second:
        device.copy(move)
        device.pool.commit(move)
    device.check()


def test_a_bound_in_bytes_is_kept_and_the_next_call_goes_on(kind: Any) -> None:
    device = checkered(kind)
    calls = 0
    while device.pool.stats().largest_free < 12 * 1024:
        before = device.pool.stats().moved_bytes
        device.move(12 * 1024, max_moved_bytes=2500)
        moved = device.pool.stats().moved_bytes - before
        assert 0 < moved <= 2500
        device.check()
        calls += 1
    assert calls == 3
    assert device.move(16 * 1024, max_moved_bytes=0) == 0
    assert device.pool.stats().held == 0


def test_a_window_within_the_bound_is_taken_before_a_cheaper_looking_one_above_it(kind: Any) -> None:
    device, blocks = laid_out(kind, "a.....bb.cdef......gggggggg......")
    del blocks
    moves = device.pool.defragment(7 * UNIT, max_moved_bytes=UNIT)
    assert moves.planned_bytes <= UNIT
    moves.close()
    assert device.pool.stats().held == 0


def test_the_price_is_known_before_a_byte_is_moved(kind: Any) -> None:
    device = checkered(kind)
    moves = device.pool.defragment(8 * 1024, max_moved_bytes=1024)
    assert (moves.planned_bytes, moves.want_bytes) == (4 * 1024, 8 * 1024)
    assert sum(move.size for move in moves) == 1024


def test_nothing_moves_for_a_size_that_has_a_hole(kind: Any) -> None:
    device = checkered(kind)
    assert device.move(1024) == 0
    assert device.pool.defragment(1024).planned_bytes == 0
    assert Device(kind(1024)).move() == 0


def test_more_than_is_free_is_refused_and_ends_no_other(kind: Any) -> None:
    device = checkered(kind)
    moves = device.pool.defragment(8 * 1024)
    with pytest.raises(OutOfDeviceMemory, match="free blocks first"):
        device.pool.defragment(17 * 1024)
    assert len(list(moves)) == 4


@pytest.mark.parametrize("bound", [-1, 1.5, float("nan"), "1", True])
def test_what_is_no_bound_is_refused(kind: Any, bound: Any) -> None:
    with pytest.raises(BadRequest, match="bound in bytes"):
        checkered(kind).pool.defragment(8 * 1024, max_moved_bytes=bound)


def test_a_bound_of_any_size_is_taken(kind: Any) -> None:
    assert checkered(kind).move(8 * 1024, max_moved_bytes=10**30) == 4


def test_without_a_size_the_largest_hole_that_can_be_had_is_made(kind: Any) -> None:
    device = checkered(kind)
    before = device.pool.stats()
    assert device.move() > 0
    device.check()
    after = device.pool.stats()
    assert after.fragmentation < before.fragmentation
    assert after.largest_free >= after.free // 2


def test_blocks_too_large_for_any_hole_stay_unless_overlap_is_allowed(kind: Any) -> None:
    device, _ = laid_out(kind, "..aaaaa.bbbbbb..")
    assert device.move(4 * UNIT) == 0
    moves = device.pool.defragment(4 * UNIT)
    assert (moves.planned_bytes, moves.hole_bytes) == (0, 0)
    assert device.move(4 * UNIT, allow_overlap=True) > 0
    device.check()
    device.allocate(4 * UNIT)
    device.check()


def test_a_hole_that_cannot_be_made_at_once_is_made_in_steps(kind: Any) -> None:
    """No hole takes ``bbb`` until ``a`` has moved; then it goes there, and with it the last that was in the way."""
    device, blocks = laid_out(kind, "..a.dddddddd..bbb..eeeeeeee.")
    first = device.pool.defragment(7 * UNIT)
    assert 0 < first.hole_bytes < 7 * UNIT == first.want_bytes
    assert [move.block for move in first] == [blocks["a"]]
    rounds = 0
    while device.pool.stats().largest_free < 7 * UNIT:
        assert device.move(7 * UNIT) > 0
        rounds += 1
    assert rounds == 2
    device.check()


def test_an_overlapping_move_comes_in_chunks_that_do_not_overlap(kind: Any) -> None:
    device, blocks = laid_out(kind, "..aaaaa.")
    (move,) = moves = list(device.pool.defragment(allow_overlap=True))
    assert (move.overlaps, move.block) == (True, blocks["a"])
    assert list(move.chunks()) == [(2 * UNIT, 0, 2 * UNIT), (4 * UNIT, 2 * UNIT, 2 * UNIT), (6 * UNIT, 4 * UNIT, UNIT)]
    assert repr(move) == f"Move(source={2 * UNIT}, destination=0, size={5 * UNIT})"
    device.copy(move)
    device.pool.commit(move)
    moves.clear()
    device.check()
    assert device.pool.segments() == [Segment(0, 5 * UNIT, "used"), Segment(5 * UNIT, 3 * UNIT, "free")]


def test_with_overlap_all_that_is_free_becomes_one_hole(kind: Any) -> None:
    dice = random.Random(12)
    for _ in range(20):
        device = Device(kind(300 * UNIT))
        while device.pool.stats().used < 250 * UNIT:
            device.allocate(dice.randrange(1, 30 * UNIT))
        for block in dice.sample(list(device.live), len(device.live) // 3):
            device.free(block)
        device.move(allow_overlap=True)
        device.check()
        stats = device.pool.stats()
        assert (stats.largest_free, stats.fragmentation, stats.held) == (stats.free, 0.0, 0)


def test_sliding_keeps_its_bound_and_stops_at_what_is_not_committed(kind: Any) -> None:
    device, _ = laid_out(kind, ".aaaa.bbbb.cccc.")
    moves = device.pool.defragment(3 * UNIT, max_moved_bytes=4 * UNIT, allow_overlap=True)
    assert moves.planned_bytes == 8 * UNIT
    first = next(moves)
    assert list(moves) == [], "the next block can move only when this one has"
    device.copy(first)
    device.pool.commit(first)
    device.check()
    assert device.pool.stats().held == 0
    moved = device.move(4 * UNIT, allow_overlap=True)
    device.check()
    assert moved > 0
    assert device.pool.stats().fragmentation == 0.0


def test_a_block_freed_while_others_slide_joins_the_hole(kind: Any) -> None:
    device, blocks = laid_out(kind, ".aaaa.bbbb.cccc.")
    for move in device.pool.defragment(allow_overlap=True):
        if move.block == blocks["b"]:
            device.free(blocks["b"])
            with pytest.raises(InvalidBlock):
                device.pool.commit(move)
            continue
        device.copy(move)
        device.pool.commit(move)
        device.check()
    device.check()
    assert device.pool.stats().held == 0


def test_planning_stays_within_its_work_however_hopeless(kind: Any) -> None:
    """Many windows, none of which can be cleared: every hole is smaller than every block."""
    pool = kind(2**24, 64)
    blocks = [pool.allocate(64 if at % 2 else 128) for at in range(3000)]
    pool.allocate(pool.stats().largest_free)
    pool.free_many(blocks[1::2])
    before = pool.segments()
    assert list(pool.defragment(64 * 100)) == []
    assert list(pool.defragment()) == []
    assert pool.segments() == before
