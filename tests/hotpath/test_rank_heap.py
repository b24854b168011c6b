"""Items by rank that move: one contract for the compiled kernel and its twin."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorgrid.hotpath
from actorgrid.errors import BadRequest
from actorgrid.hotpath.reference.rank_heap import RankHeap as Reference

KINDS: dict[str, Any] = {"reference": Reference}
if actorgrid.hotpath.COMPILED:
    KINDS["compiled"] = actorgrid.hotpath.RankHeap


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]


def drained(heap: Any, handles: dict[Any, int]) -> list[Any]:
    found = []
    while (item := heap.first()) is not None:
        assert heap.remove(handles[item]) is item
        found.append(item)
    return found


def test_rank_comes_before_level_before_order_before_sequence(kind: Any) -> None:
    heap = kind()
    places = [(0.5, 1, 0, 0), (0.5, 0, 9, 9), (0.25, 9, 9, 9), (0.5, 1, 0, -1), (0.5, 1, -1, 5)]
    handles = {place: heap.insert(*place, place) for place in places}
    assert len(heap) == 5
    assert drained(heap, handles) == sorted(places)
    assert heap.first() is None
    assert len(heap) == 0


def test_what_is_moved_keeps_its_handle(kind: Any) -> None:
    heap = kind()
    handles = {item: heap.insert(float(at), 0, 0, at, item) for at, item in enumerate("abc")}
    heap.move(handles["a"], 9.0, 0, 0, 0)
    assert heap.first() == "b"
    heap.move(handles["c"], -1.0, 0, 0, 2)
    assert heap.first() == "c"
    assert drained(heap, handles) == ["c", "b", "a"]


def test_a_void_handle_is_told(kind: Any) -> None:
    heap = kind()
    handle = heap.insert(0.0, 0, 0, 0, "x")
    heap.remove(handle)
    for act in (lambda: heap.remove(handle), lambda: heap.move(handle, 0.0, 0, 0, 0), lambda: heap.remove(-1)):
        with pytest.raises(AssertionError, match="nothing is held"):
            act()


def test_a_rank_that_is_no_number_is_refused_and_changes_nothing(kind: Any) -> None:
    heap = kind()
    handle = heap.insert(1.0, 0, 0, 0, "x")
    with pytest.raises(BadRequest):
        heap.insert(float("nan"), 0, 0, 1, "y")
    with pytest.raises(BadRequest):
        heap.move(handle, float("nan"), 0, 0, 0)
    with pytest.raises(OverflowError):
        heap.insert(0.0, 2**63, 0, 1, "y")
    assert len(heap) == 1
    assert heap.first() == "x"


def test_what_was_taken_out_is_let_go(kind: Any) -> None:
    class Item:
        pass

    heap, item = kind(), Item()
    gone = weakref.ref(item)
    handle = heap.insert(0.0, 0, 0, 0, item)
    del item
    heap.remove(handle)
    gc.collect()
    assert gone() is None


numbers = st.integers(-3, 3)
ranks = st.one_of(st.floats(-2, 2).map(lambda rank: round(rank, 1)), st.just(float("inf")))
steps = st.lists(st.tuples(st.sampled_from("imr"), st.integers(0, 30), ranks, numbers, numbers), max_size=80)


@given(steps)
def test_both_do_as_a_sorted_list_does(given_steps: list[tuple[str, int, float, int, int]]) -> None:
    for each in KINDS.values():
        heap, held = each(), {}
        for number, (what, which, rank, level, order) in enumerate(given_steps):
            place = rank, level, order, number
            if what == "i" or not held:
                held[heap.insert(*place, number)] = place, number
                continue
            handle = sorted(held)[which % len(held)]
            if what == "m":
                heap.move(handle, *place)
                held[handle] = place, held[handle][1]
            else:
                assert heap.remove(handle) == held.pop(handle)[1]
            assert len(heap) == len(held)
            assert heap.first() == (min(held.values())[1] if held else None)


def test_a_thousand_that_change_places_stay_in_order(kind: Any) -> None:
    heap, dice = kind(), random.Random(7)
    handles = {item: heap.insert(dice.random(), 0, 0, item, item) for item in range(1000)}
    places = {}
    for _ in range(5000):
        item = dice.randrange(1000)
        places[item] = dice.random()
        heap.move(handles[item], places[item], 0, 0, item)
    for item in handles.keys() - places.keys():
        places[item] = dice.random()
        heap.move(handles[item], places[item], 0, 0, item)
    assert drained(heap, handles) == sorted(places, key=lambda item: (places[item], item))
