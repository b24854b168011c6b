"""What a step that streams leaves while it runs, whom it waits for, and what its takers make of its end."""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.links.step_items import ItemRequest, ItemTaker
from actorgrid.actors.work import live_items
from actorgrid.actors.work.attempt_dir import AttemptDir
from actorgrid.actors.work.item_spool import AHEAD_ITEMS, TAKER_S, TAKERS_MAX, ItemSpool, note_taken, taken
from actorgrid.actors.work.live_items import LiveItems
from actorgrid.dag.step_items import items_of
from actorgrid.errors import BadRequest, HostUnreachable, InputLost, Overloaded, UnpicklableResult
from tests.work.rig import wait_for


def test_where_nobody_takes_nobody_is_waited_for(tmp_path: Path) -> None:
    data = ItemSpool(tmp_path / "items", tmp_path, 2**20).write_all(range(500))
    assert len(list(items_of(data))) == 500 and (tmp_path / "items").read_bytes() == data


def test_it_is_ahead_of_who_takes_by_so_many_items_and_no_more(tmp_path: Path) -> None:
    note_taken(tmp_path, "g.1-1.1", 0)
    ahead: list[int] = []

    def values() -> Iterator[int]:
        for number in range(3 * AHEAD_ITEMS):
            ahead.append(number - min(taken(tmp_path)))
            yield number

    thread = threading.Thread(target=lambda: ItemSpool(tmp_path / "items", tmp_path, 2**20).write_all(values()))
    thread.start()
    for number in range(3 * AHEAD_ITEMS):
        wait_for(lambda number=number: len(ahead) > number, what="the next one is made")  # type: ignore[misc]
        note_taken(tmp_path, "g.1-1.1", number + 1)
    thread.join(60)
    assert len(ahead) == 3 * AHEAD_ITEMS and max(ahead) < AHEAD_ITEMS


def test_who_was_not_heard_of_for_long_holds_up_nobody(tmp_path: Path) -> None:
    note_taken(tmp_path, "g.1-1.1", 0)
    os.utime(tmp_path / "items-taken.g.1-1.1", (time.time() - TAKER_S - 1,) * 2)
    assert taken(tmp_path) == []
    assert len(list(items_of(ItemSpool(tmp_path / "items", tmp_path, 2**20).write_all(range(300))))) == 300


def test_there_are_bounds_on_items_and_takers(tmp_path: Path) -> None:
    with pytest.raises(UnpicklableResult, match="too large together"):
        ItemSpool(tmp_path / "items", tmp_path, 1000).write_all(b"x" * 100 for _ in range(20))
    for number in range(TAKERS_MAX):
        note_taken(tmp_path, f"g.{number}-1.1", 0)
    with pytest.raises(Overloaded):
        note_taken(tmp_path, "g.99-1.1", 0)
    note_taken(tmp_path, "g.1-1.1", 5)
    os.utime(tmp_path / "items-taken.g.2-1.1", (0, 0))
    note_taken(tmp_path, "g.99-1.1", 7)
    assert sorted(taken(tmp_path))[-2:] == [5, 7]


@pytest.mark.parametrize("by", ["", "../x", "a/b", ".", "x" * 101, "a b"])
def test_who_takes_names_an_attempt(by: str, tmp_path: Path) -> None:
    with pytest.raises(BadRequest):
        ItemRequest(AttemptDir(tmp_path, "g.1-1.1"), 0, 10, ItemTaker(by, 0)).read()


class Door:
    """A host's door: the files are real, what the ledger says is told by the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.attempt_id = "g.0-1.1"
        self.state = "running"
        self.is_reached = True

    def post(self, _path: str, body: Any = None, *, repeat: bool = False) -> dict[str, Any]:
        assert repeat
        if not self.is_reached:
            raise HostUnreachable("no")
        if self.state == "away":
            return {"state": "away", "attempt_id": "", "size": 0, "data": ""}
        state = self.state
        folder = AttemptDir(self.folder, self.attempt_id)
        piece = ItemRequest(folder, body["position"], body["size"], ItemTaker(body["by"], body["taken"])).read()
        data = base64.b64encode(piece.data).decode()
        return {"state": state, "attempt_id": self.attempt_id, "size": piece.size, "data": data}


@pytest.fixture
def door(tmp_path: Path) -> Door:
    (tmp_path / "g.0-1.1").mkdir()
    return Door(tmp_path)


def spool(door: Door) -> ItemSpool:
    folder = door.folder / door.attempt_id
    return ItemSpool(folder / "items", folder, 2**20)


def live(door: Door) -> LiveItems:
    return LiveItems(door, "g", 0, "g.1-1.1")


def test_items_come_in_their_order_and_end_when_it_has_succeeded(door: Door) -> None:
    items = live(door)
    made = threading.Event()

    def values() -> Iterator[int]:
        yield 1
        made.wait(60)
        yield 2

    thread = threading.Thread(target=lambda: spool(door).write_all(values()))
    thread.start()
    assert next(items) == 1
    made.set()
    assert next(items) == 2
    thread.join(60)
    door.state = "over"
    assert list(items) == []
    items.settle()
    assert items.broken is None


def test_what_was_taken_counts_only_once_it_has_succeeded(door: Door) -> None:
    items = live(door)
    spool(door).write_all(range(3))
    assert next(items) == 0
    settled: list[str] = []
    thread = threading.Thread(target=lambda: (items.settle(), settled.append(door.state)))
    thread.start()
    # It holds nobody up any more, though it has taken one alone.
    wait_for(lambda: min(taken(door.folder / door.attempt_id)) > 2**50, what="it takes no more")
    assert not settled
    door.state = "over"
    thread.join(60)
    assert settled == ["over"]


@pytest.mark.parametrize("end", ["away", "another", "gone"])
def test_what_came_of_a_run_that_is_over_does_not_count(end: str, door: Door) -> None:
    items = live(door)
    spool(door).write_all(range(3))
    assert next(items) == 0
    if end == "another":
        (door.folder / "g.0-1.2").mkdir()
        door.attempt_id = "g.0-1.2"
    else:
        door.state = end
    with pytest.raises(InputLost) as lost:
        items.settle()
    assert lost.value is items.broken and lost.value.details["steps"] == ([0] if end == "gone" else [])
    with pytest.raises(InputLost):
        next(items)


def test_a_door_that_does_not_answer_is_asked_for_a_while(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_items, "AGAIN_S", 0.01)
    door.is_reached = False
    items = live(door)
    spool(door).write_all(range(3))
    door.is_reached = True
    assert next(items) == 0
    monkeypatch.setattr(live_items, "PATIENCE_S", 0.0)
    door.is_reached = False
    with pytest.raises(InputLost):
        items.settle()
