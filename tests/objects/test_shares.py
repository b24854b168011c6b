"""What the work of one uid may take of the store, what it is lent, and whose objects make room."""

from __future__ import annotations

import random
from typing import Any

import pytest

from actorgrid.actors.objects.block_allocator import pages
from actorgrid.actors.objects.core import ROOM_S
from actorgrid.actors.objects.records import Answer, SpillCopy, State
from actorgrid.errors import ObjectStoreFull, Overloaded
from actorgrid.transports.object_frames import (
    DISK,
    MEMORY,
    CreateObject,
    DropObjects,
    Failed,
    ObjectKey,
    OpenSpace,
    Place,
    SealObject,
    SpaceAbout,
    UnpinObjects,
)
from tests.objects.test_core import MIB, OWNER, Town, drop

ANN, BOB = 1_900_000_001, 1_900_000_002
ANNS, BOBS = 11, 12


@pytest.fixture
def town() -> Town:
    made = Town(memory=8 * MIB, disk=16 * MIB)
    made.join(ANNS, b"a" * 32, ANN)
    made.join(BOBS, b"b" * 32, BOB)
    return made


def place_of(town: Town, number: int, size: int = MIB) -> Any:
    return town.ask(number, CreateObject, 0, size)


def read_for_good(town: Town, number: int, count: int) -> list[str]:
    """Make objects and read each for good; gives where they are."""
    kinds = []
    for _ in range(count):
        found = town.get(number, town.make(number))
        assert isinstance(found, Place)
        kinds.append(found.kind)
    return kinds


def test_a_quarter_of_the_memory_is_for_others_whatever_one_user_reads(town: Town) -> None:
    assert read_for_good(town, ANNS, 8) == [MEMORY] * 6 + [DISK] * 2
    assert read_for_good(town, BOBS, 2) == [MEMORY] * 2


def test_the_agents_own_user_may_have_all(town: Town) -> None:
    assert read_for_good(town, OWNER, 9) == [MEMORY] * 8 + [DISK]


def test_what_was_lent_goes_to_the_disk_first_and_what_is_in_its_share_stays(town: Town) -> None:
    lent = [town.make(ANNS) for _ in range(6)]
    own = [town.make(OWNER) for _ in range(2)]
    assert place_of(town, OWNER) is None  # it waits for the copy
    moved = [order for order in town.orders if isinstance(order, SpillCopy)]
    assert len(moved) == 1
    answers = town.finish_moves()
    assert any(isinstance(order, Answer) and getattr(order.frame, "kind", "") == MEMORY for order in answers)
    assert town.get(ANNS, lent[0]).kind == DISK and town.get(ANNS, lent[1]).kind == MEMORY
    assert all(town.get(OWNER, key).kind == MEMORY for key in own)


def test_who_has_his_share_pushes_out_nobody_else_but_himself(town: Town) -> None:
    own = [town.make(OWNER) for _ in range(4)]
    anns = [town.make(ANNS) for _ in range(4)]
    assert place_of(town, ANNS) is None
    town.finish_moves()
    assert town.get(ANNS, anns[0]).kind == DISK
    assert all(town.get(OWNER, key).kind == MEMORY for key in own)


def test_half_of_the_disk_is_for_others_and_the_refusal_says_what_was_found(town: Town) -> None:
    assert read_for_good(town, ANNS, 14) == [MEMORY] * 6 + [DISK] * 8
    town.orders.clear()
    assert place_of(town, ANNS) is None
    question = town.last
    refused = town.answer(town.tick(ROOM_S), question)
    assert isinstance(refused, Failed) and isinstance(refused.error, ObjectStoreFull)
    assert f"{6 * MIB} of at most {6 * MIB} in memory and {8 * MIB} of at most {8 * MIB} on the disk" in (
        refused.error.found
    )
    assert refused.error.asked == f"{MIB} bytes" and refused.error.hint
    assert read_for_good(town, BOBS, 4) == [MEMORY] * 2 + [DISK] * 2
    large = town.ask(ANNS, CreateObject, 0, 12 * MIB)
    assert isinstance(large, Failed) and "than what one user may have" in large.error.found


def test_half_of_the_objects_the_spaces_and_the_places_to_wait_are_for_others() -> None:
    town = Town(memory=4 * MIB, disk=0, objects_max=8, spaces_max=6, waiting_max=4)
    town.join(ANNS, b"a" * 32, ANN)
    town.join(BOBS, b"b" * 32, BOB)
    for slot in (1, 2):
        town.say(ANNS, OpenSpace(slot, slot, bytes([slot]) * 32, SpaceAbout()))
    refused = town.ask(ANNS, OpenSpace, 3, b"\3" * 32, SpaceAbout())
    assert isinstance(refused, Failed) and isinstance(refused.error, Overloaded)
    kept = [town.make(ANNS, 4096) for _ in range(4)]
    refused = place_of(town, ANNS, 4096)
    assert isinstance(refused, Failed) and "its maximum of 4 objects" in refused.error.found
    for key in kept:
        town.say(ANNS, drop(key))
    assert read_for_good(town, ANNS, 3) == [MEMORY] * 3
    assert [place_of(town, ANNS) for _ in range(2)] == [None, None]
    refused = place_of(town, ANNS)
    assert isinstance(refused, Failed) and "2 others wait for room" in refused.error.found
    assert isinstance(place_of(town, BOBS), Place)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_counted_is_what_there_is(seed: int) -> None:
    dice = random.Random(seed)
    town = Town(memory=8 * MIB, disk=12 * MIB)
    users = {OWNER: 0, ANNS: ANN, BOBS: BOB}
    town.join(ANNS, b"a" * 32, ANN)
    town.join(BOBS, b"b" * 32, BOB)
    keys: dict[int, list[ObjectKey]] = {number: [] for number in users}
    for _ in range(150):
        number = dice.choice(list(users))
        match dice.randrange(6):
            case 0 | 1:
                size = dice.choice([4096, MIB // 2, MIB, 3 * MIB])
                place = place_of(town, number, size)
                if isinstance(place, Place) and dice.random() < 0.9:
                    keys[number].append(ObjectKey(town.core.store_id, place.number, "h1", size))
                    town.ask(number, SealObject, 0, place.number, ())
            case 2 if keys[number]:
                town.get(number, dice.choice(keys[number]))
            case 3 if keys[number]:
                town.say(number, UnpinObjects(0, (dice.choice(keys[number]),)))
            case 4 if keys[number]:
                town.say(number, DropObjects(0, ((keys[number].pop(dice.randrange(len(keys[number]))), 1),)))
            case 5:
                town.finish_moves(dice.random() < 0.8)
        town.tick(dice.random())
        _check(town, users)
    for number in (BOBS, ANNS, OWNER):
        town.leave(number)
        _check(town, users)
    town.finish_moves()
    town.tick(100.0)
    shares = town.core._shares
    assert (shares._held, shares._objects, shares._coming, shares._idle) == ({}, {}, {}, {})


def _check(town: Town, users: dict[int, int]) -> None:
    stored = [each for space in town.core._spaces.values() for each in space.objects.values()]
    shares = town.core._shares
    for uid in {*users.values()}:
        for kind in (MEMORY, DISK):
            there = sum(pages(each.key.size) for each in stored if each.uid == uid and each.kind == kind)
            assert shares.held(uid, kind) == there <= shares.most(uid, kind)
        idle = {each for each in stored if each.uid == uid and each.kind == MEMORY and not each.pins}
        assert set(shares._idle.get(uid, ())) == {each for each in idle if each.state is State.READY}
