"""The store's decisions: who keeps an object alive, what makes room, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.objects.block_allocator import StoreLimits
from actorgrid.actors.objects.core import COPY_S, GIFT_S, OWNERLESS_S, ROOM_S, ObjectStoreCore
from actorgrid.actors.objects.records import Answer, CloseFiles, HangUp, ReadPiece, ReadSmall, Reserve, SpillCopy
from actorgrid.errors import MalformedBody, ObjectLost, ObjectStoreFull
from actorgrid.transports.object_frames import (
    DISK,
    MEMORY,
    CloseSpace,
    CreateObject,
    DealtWith,
    DropObjects,
    Failed,
    GetObject,
    GetPiece,
    GiveObject,
    HoldObject,
    Made,
    ObjectKey,
    OpenSpace,
    Place,
    PutObject,
    SealObject,
    SpaceAbout,
    UnpinObjects,
)

MIB = 2**20
SECRET, OTHER = b"s" * 32, b"o" * 32
STORE = "5" * 16
OWNER, WORKER, THIRD = 1, 2, 3


class Town:
    """A core, and processes that are connected to it; each has opened the space in slot 0."""

    def __init__(self, memory: int = 8 * MIB, disk: int = 64 * MIB, **limits: int) -> None:
        self.core = ObjectStoreCore(STORE, "h1", StoreLimits(memory, disk, **limits))
        self.now = 0.0
        self.orders: list[Any] = []
        self.last = 0
        self.disk_takes = True
        for number in (OWNER, WORKER, THIRD):
            self.join(number)

    def join(self, number: int, secret: bytes = SECRET, uid: int = 0) -> None:
        self.core.connect(number, uid)
        self.say(number, OpenSpace(0, 0, secret, SpaceAbout(owner=number == OWNER)))

    def say(self, number: int, frame: Any) -> list[Any]:
        self.core.take(number, frame, self.now)
        return self.obey()

    def obey(self) -> list[Any]:
        done = []
        while orders := self.core.take_orders():
            for order in orders:
                done.append(order)
                if isinstance(order, Reserve):
                    self.core.reserved(order.ticket, self.disk_takes, self.now)
        self.orders += done
        return done

    def ask(self, number: int, kind: Any, *fields: Any) -> Any:
        """The frame that answers, or None while there is none."""
        self.last += 1
        question = self.last
        orders = self.say(number, kind(question, *fields))
        return self.answer(orders, question)

    def answer(self, orders: list[Any], question: int) -> Any:
        for order in orders:
            if isinstance(order, Answer) and order.frame.question == question:
                return order.frame
            if isinstance(order, ReadSmall) and order.question == question:
                return order
        return None

    def make(self, number: int, size: int = MIB, refers: tuple[ObjectKey, ...] = ()) -> ObjectKey:
        place = self.ask(number, CreateObject, 0, size)
        assert isinstance(place, Place), place
        assert isinstance(self.ask(number, SealObject, 0, place.number, refers), DealtWith)
        return ObjectKey(STORE, place.number, "h1", size)

    def get(self, number: int, key: ObjectKey) -> Any:
        return self.ask(number, GetObject, 0, key, None)

    def tick(self, seconds: float) -> list[Any]:
        self.now += seconds
        self.core.tick(self.now)
        return self.obey()

    def leave(self, number: int) -> list[Any]:
        self.core.disconnect(number, self.now)
        return self.obey()

    def finish_moves(self, ok: bool = True) -> list[Any]:
        done = []
        for move in [order for order in self.orders if isinstance(order, SpillCopy)]:
            self.orders.remove(move)
            self.core.moved(move.ticket, ok, self.now)
            done += self.obey()
        return done


def drop(key: ObjectKey, count: int = 1) -> DropObjects:
    return DropObjects(0, ((key, count),))


def is_lost(found: Any) -> bool:
    return isinstance(found, Failed) and isinstance(found.error, ObjectLost)


def test_an_object_stays_as_long_as_its_maker_refers_to_it() -> None:
    town = Town()
    key = town.make(OWNER)
    assert isinstance(town.get(WORKER, key), Place)
    town.say(WORKER, UnpinObjects(0, (key,)))
    town.say(OWNER, drop(key))
    assert is_lost(town.get(WORKER, key)) and town.core.objects == 0


def test_whoever_holds_it_keeps_it_when_its_maker_lets_go_or_dies() -> None:
    town = Town()
    key = town.make(WORKER)
    town.say(OWNER, HoldObject(0, key, 0))
    town.leave(WORKER)
    assert isinstance(town.get(THIRD, key), Place)
    town.say(THIRD, UnpinObjects(0, (key,)))
    town.say(OWNER, drop(key))
    assert town.core.objects == 0


def test_references_are_counted_and_dropping_more_than_there_are_ends_at_none() -> None:
    town = Town()
    key = town.make(OWNER)
    town.say(OWNER, HoldObject(0, key, 0))
    town.say(OWNER, drop(key))
    assert town.core.objects == 1
    town.say(OWNER, drop(key, 100))
    town.say(OWNER, drop(key))
    assert town.core.objects == 0


def test_what_is_read_stays_until_it_is_not_read_any_more() -> None:
    town = Town()
    key = town.make(OWNER)
    first, second = town.get(WORKER, key), town.get(WORKER, key)
    assert first.comes_fd and not second.comes_fd, "a process gets a descriptor once"
    town.say(OWNER, drop(key))
    town.say(WORKER, UnpinObjects(0, (key,)))
    assert town.core.objects == 1
    town.say(WORKER, UnpinObjects(0, (key, key)))
    assert town.core.objects == 0


def test_a_gift_stays_for_whoever_takes_it_by_its_token() -> None:
    town = Town()
    key = town.make(WORKER)
    town.say(WORKER, GiveObject(0, key, 77))
    town.say(WORKER, drop(key))
    town.say(THIRD, HoldObject(0, key, 0))  # not by the token
    town.say(THIRD, drop(key))
    assert town.core.objects == 1
    town.say(OWNER, HoldObject(0, key, 77))
    town.say(OWNER, drop(key))
    assert town.core.objects == 0


def test_a_gift_that_is_taken_before_word_of_it_comes_does_not_stay_for_ever() -> None:
    town = Town()
    key = town.make(WORKER)
    town.say(OWNER, HoldObject(0, key, 77))  # by another socket than the gift
    town.say(WORKER, GiveObject(0, key, 77))
    town.say(WORKER, drop(key))
    assert town.core.objects == 1
    town.say(OWNER, drop(key))
    assert town.core.objects == 0


def test_a_gift_of_a_process_that_died_stays_for_a_while() -> None:
    town = Town()
    key = town.make(WORKER)
    town.say(WORKER, GiveObject(0, key, 77))
    town.leave(WORKER)
    town.tick(GIFT_S / 2)
    assert town.core.objects == 1 and not town.core.is_idle
    town.tick(GIFT_S)
    assert town.core.objects == 0 and town.core.is_idle


def test_a_gift_that_was_taken_in_time_stays_with_who_took_it() -> None:
    town = Town()
    key = town.make(WORKER)
    town.say(WORKER, GiveObject(0, key, 77))
    town.leave(WORKER)
    town.say(OWNER, HoldObject(0, key, 77))
    town.tick(2 * GIFT_S)
    assert isinstance(town.get(OWNER, key), Place)


def test_an_object_keeps_what_its_value_refers_to_however_long_the_chain() -> None:
    town = Town(memory=64 * MIB, disk=0)
    keys = [town.make(OWNER, 100_000)]
    for _ in range(500):
        keys.append(town.make(OWNER, 100_000, (keys[-1],)))
        town.say(OWNER, drop(keys[-2]))
    assert isinstance(town.get(WORKER, keys[0]), Place)
    town.say(WORKER, UnpinObjects(0, (keys[0],)))
    town.say(OWNER, drop(keys[-1]))
    assert town.core.objects == 0


def test_all_ends_with_the_connection_of_the_owner() -> None:
    town = Town()
    key = town.make(WORKER)
    town.get(THIRD, key)
    orders = town.leave(OWNER)
    assert any(isinstance(order, CloseFiles) for order in orders)
    assert is_lost(town.get(WORKER, key)) and town.core.objects == 0
    refused = town.ask(WORKER, CreateObject, 0, MIB)
    assert is_lost(refused) and "owner's session" in refused.error.message
    town.core.connect(9)
    late = town.ask(9, OpenSpace, 0, SECRET, SpaceAbout())
    assert is_lost(late)
    figures = town.core.figures()
    assert figures["objects_memory_bytes"] == figures["object_spaces"] == 0


def test_a_space_whose_owner_does_not_come_ends() -> None:
    town = Town()
    town.core.connect(9)
    town.ask(9, OpenSpace, 0, OTHER, SpaceAbout())
    assert not town.core.is_idle
    town.tick(OWNERLESS_S + 1)
    assert is_lost(town.ask(9, CreateObject, 0, MIB))
    assert isinstance(town.ask(WORKER, CreateObject, 0, MIB), Place), "and no other does"


def test_only_who_knows_the_secret_reads_a_space() -> None:
    town = Town()
    key = town.make(OWNER)
    town.core.connect(9)
    town.ask(9, OpenSpace, 0, OTHER, SpaceAbout())
    assert is_lost(town.get(9, key))
    town.say(9, HoldObject(0, key, 0))
    town.say(9, drop(key, 5))
    assert isinstance(town.get(OWNER, key), Place)


@pytest.mark.parametrize(
    "frame",
    [
        CreateObject(1, 7, MIB),
        DropObjects(7, ((ObjectKey(STORE, 1, "", 1), 1),)),
        CloseSpace(7),
        SealObject(1, 0, 12345, ()),
        OpenSpace(1, 0, OTHER, SpaceAbout()),
        OpenSpace(1, 1, SECRET, SpaceAbout(owner=True)),
    ],
)
def test_who_breaks_the_protocol_is_hung_up_on_and_nobody_else(frame: Any) -> None:
    town = Town()
    key = town.make(OWNER)
    orders = town.say(WORKER, frame)
    assert [type(order.error) for order in orders if isinstance(order, HangUp)] == [MalformedBody]
    assert isinstance(town.get(OWNER, key), Place)


def test_what_is_not_written_yet_is_nobodys_to_read_and_goes_with_its_maker() -> None:
    town = Town()
    place = town.ask(WORKER, CreateObject, 0, MIB)
    key = ObjectKey(STORE, place.number, "h1", MIB)
    assert is_lost(town.get(OWNER, key))
    town.leave(WORKER)
    assert town.core.objects == 0 and town.core.figures()["objects_memory_bytes"] == 0


def test_small_objects_come_with_the_frames() -> None:
    town = Town()
    made = town.ask(OWNER, PutObject, 0, b"x" * 100, ())
    assert isinstance(made, Made)
    found = town.get(WORKER, ObjectKey(STORE, made.number, "h1", 100))
    assert isinstance(found, ReadSmall) and found.size == 100


def test_what_was_read_longest_ago_goes_to_the_disk_to_make_room() -> None:
    town = Town()
    keys = [town.make(OWNER, 2 * MIB) for _ in range(4)]
    town.get(WORKER, keys[0])
    town.say(WORKER, UnpinObjects(0, (keys[0],)))
    assert town.ask(OWNER, CreateObject, 0, 2 * MIB) is None, "it waits for room"
    orders = town.finish_moves()
    place = next(order.frame for order in orders if isinstance(order, Answer))
    assert isinstance(place, Place) and place.kind == MEMORY
    assert [town.get(WORKER, key).kind for key in keys] == [MEMORY, DISK, MEMORY, MEMORY]


def test_what_is_read_does_not_move_and_what_finds_no_memory_is_made_on_the_disk() -> None:
    town = Town()
    keys = [town.make(OWNER, 2 * MIB) for _ in range(4)]
    for key in keys:
        town.get(WORKER, key)
    assert town.ask(OWNER, CreateObject, 0, 2 * MIB).kind == DISK
    assert not town.core.figures()["objects_spilled_total"]


def test_an_object_that_is_read_while_it_is_copied_stays_in_memory() -> None:
    town = Town()
    keys = [town.make(OWNER, 2 * MIB) for _ in range(4)]
    town.ask(OWNER, CreateObject, 0, 2 * MIB)
    assert town.get(WORKER, keys[0]).kind == MEMORY
    town.finish_moves()
    assert town.get(WORKER, keys[0]).kind == MEMORY


def test_an_object_that_is_dropped_while_it_is_copied_is_freed_after() -> None:
    town = Town()
    keys = [town.make(OWNER, 2 * MIB) for _ in range(4)]
    town.ask(OWNER, CreateObject, 0, 2 * MIB)
    town.say(OWNER, drop(keys[0]))
    town.finish_moves()
    assert town.core.figures()["objects_disk_bytes"] == 0
    assert town.core.figures()["objects_memory_bytes"] == 8 * MIB


def test_the_end_of_a_space_whose_objects_are_being_copied_leaves_nothing() -> None:
    town = Town()
    for _ in range(4):
        town.make(OWNER, 2 * MIB)
    town.ask(OWNER, CreateObject, 0, 2 * MIB)
    town.leave(OWNER)
    town.finish_moves()
    figures = town.core.figures()
    assert figures["objects"] == figures["objects_memory_bytes"] == figures["objects_disk_bytes"] == 0


def test_a_full_store_says_so_after_a_while_and_takes_more_when_something_is_dropped() -> None:
    town = Town(memory=4 * MIB, disk=4 * MIB)
    keys = [town.make(OWNER, 2 * MIB) for _ in range(2)]
    for key in keys:
        town.get(OWNER, key)
    town.make(OWNER, 4 * MIB)
    assert town.ask(OWNER, CreateObject, 0, 2 * MIB) is None
    question = town.last
    refused = town.answer(town.tick(ROOM_S + 1), question)
    assert isinstance(refused, Failed) and isinstance(refused.error, ObjectStoreFull)
    assert "objects.memory" in refused.error.hint
    assert town.ask(OWNER, CreateObject, 0, 2 * MIB) is None
    question = town.last
    town.say(OWNER, UnpinObjects(0, (keys[0],)))
    assert isinstance(town.answer(town.say(OWNER, drop(keys[0])), question), Place)


def test_copies_that_take_long_are_not_taken_for_a_full_store() -> None:
    town = Town(memory=4 * MIB, disk=8 * MIB)
    for _ in range(2):
        town.make(OWNER, 2 * MIB)
    assert town.ask(OWNER, CreateObject, 0, 4 * MIB) is None, "it waits for both to be copied"
    place = town.answer(town.tick(ROOM_S + 1), town.last)
    assert isinstance(place, Place) and place.kind == DISK
    town.finish_moves()
    assert town.core.figures()["objects_disk_bytes"] >= 8 * MIB

    town = Town(memory=4 * MIB, disk=4 * MIB)
    for _ in range(2):
        town.make(OWNER, 2 * MIB)
    assert town.ask(OWNER, CreateObject, 0, 4 * MIB) is None
    question = town.last
    assert not town.tick(ROOM_S + 1), "the disk has room for the copies alone"
    place = town.answer(town.finish_moves(), question)
    assert isinstance(place, Place) and place.kind == MEMORY

    town = Town(memory=4 * MIB, disk=4 * MIB)
    for _ in range(2):
        town.make(OWNER, 2 * MIB)
    assert town.ask(OWNER, CreateObject, 0, 4 * MIB) is None
    question = town.last
    assert not town.tick(ROOM_S + 1)
    refused = town.answer(town.tick(COPY_S + 1), question)
    assert isinstance(refused, Failed) and isinstance(refused.error, ObjectStoreFull)


def test_what_is_larger_than_the_store_is_refused_at_once() -> None:
    town = Town(memory=4 * MIB, disk=4 * MIB)
    refused = town.ask(OWNER, CreateObject, 0, 5 * MIB)
    assert isinstance(refused, Failed) and isinstance(refused.error, ObjectStoreFull)


def test_an_object_of_more_than_the_memory_is_made_on_the_disk() -> None:
    town = Town(memory=MIB)
    assert town.ask(OWNER, CreateObject, 0, 5 * MIB).kind == DISK


def test_a_disk_that_takes_no_more_is_not_asked_for_a_while() -> None:
    town = Town(memory=2 * MIB)
    town.disk_takes = False
    assert town.ask(OWNER, CreateObject, 0, 5 * MIB) is None
    question = town.last
    assert isinstance(town.answer(town.tick(ROOM_S + 1), question), Failed)
    town.disk_takes = True
    town.now += 60
    assert isinstance(town.ask(OWNER, CreateObject, 0, 5 * MIB), Place)


def test_a_copy_that_failed_leaves_the_object_in_memory() -> None:
    town = Town()
    keys = [town.make(OWNER, 2 * MIB) for _ in range(4)]
    town.ask(OWNER, CreateObject, 0, 2 * MIB)
    town.finish_moves(ok=False)
    assert all(town.get(WORKER, key).kind == MEMORY for key in keys)


def test_the_number_of_objects_is_bounded() -> None:
    town = Town(objects_max=2)
    for _ in range(2):
        town.make(OWNER, 100_000)
    refused = town.ask(OWNER, CreateObject, 0, 100_000)
    assert isinstance(refused, Failed) and isinstance(refused.error, ObjectStoreFull)


def test_a_reference_of_before_the_store_began_again_is_lost_and_says_why() -> None:
    town = Town()
    lost = town.get(OWNER, ObjectKey("4" * 16, 1, "h1", MIB))
    assert is_lost(lost) and "started again" in lost.error.message
    assert lost.error.details["objects"] == [["4" * 16, 1, "h1", MIB]]


def test_a_piece_is_read_by_who_knows_the_space_and_nothing_behind_the_end() -> None:
    town = Town()
    key = town.make(OWNER, MIB)
    orders = town.say(WORKER, GetPiece(7, 0, key, 1000, 24))
    assert next(order for order in orders if isinstance(order, ReadPiece)).size == 24
    assert is_lost(town.ask(WORKER, GetPiece, 0, key._replace(number=99), 0, 10))
    assert [type(order) for order in town.say(WORKER, GetPiece(8, 0, key, MIB - 10, 11))] == [HangUp]
    town.join(9, OTHER)
    assert is_lost(town.ask(9, GetPiece, 0, key, 0, 10))


def test_a_space_of_another_hosts_session_ends_when_it_is_unused_and_is_opened_again() -> None:
    core = ObjectStoreCore(STORE, "h1", StoreLimits(8 * MIB, 64 * MIB))
    for round_number in range(3):
        core.connect(1)
        core.take(1, OpenSpace(1, 0, SECRET, SpaceAbout(home="h2")), 0.0)
        assert isinstance(core.take_orders()[-1], Answer) and core.figures()["object_spaces"] == 1
        core.tick(OWNERLESS_S * (round_number + 1))
        assert core.figures()["object_spaces"] == 1, "it is in use"
        if round_number:
            core.take(1, CloseSpace(0), 0.0)
        core.disconnect(1, 0.0)
        assert core.figures()["object_spaces"] == 0


def test_a_gift_that_another_hosts_client_never_took_ends_with_its_space() -> None:
    core = ObjectStoreCore(STORE, "h1", StoreLimits(8 * MIB, 64 * MIB))
    core.connect(1)
    core.take(1, OpenSpace(1, 0, SECRET, SpaceAbout(home="h2")), 0.0)
    core.take(1, PutObject(2, 0, b"x", ()), 0.0)
    key = ObjectKey(STORE, 1, "h1", 1)
    core.take(1, GiveObject(0, key, 5), 0.0)
    core.disconnect(1, 0.0)
    assert core.figures()["objects"] == 1
    core.tick(GIFT_S + 1)
    core.tick(GIFT_S + OWNERLESS_S + 2)
    assert core.figures()["objects"] == 0 and core.figures()["object_spaces"] == 0
