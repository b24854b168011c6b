"""Lines by priority level: one contract for the compiled kernel and its twin."""

from __future__ import annotations

import gc
import itertools
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorgrid.hotpath
from actorgrid.errors import BadRequest
from actorgrid.hotpath.reference.priority_bitmap import PriorityBitmap as Reference

KINDS: dict[str, Any] = {"reference": Reference}
if actorgrid.hotpath.COMPILED:
    KINDS["compiled"] = actorgrid.hotpath.PriorityBitmap


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]


def test_the_lowest_level_comes_first_and_within_it_the_lowest_order(kind: Any) -> None:
    line = kind(128)
    for level, order, item in [(100, 1, "c"), (3, 9, "b"), (3, 4, "a"), (127, 0, "d")]:
        line.insert(level, order, item)
    assert list(line) == ["a", "b", "c", "d"]
    assert line.first() == "a"


def test_equals_stay_in_the_order_in_which_they_came(kind: Any) -> None:
    line = kind(1)
    for item in "abc":
        line.insert(0, 7, item)
    line.insert(0, 9, "z")
    line.insert(0, 7, "d")
    assert "".join(line) == "abcdz"


def test_what_is_moved_stands_in_its_new_level_by_the_order_it_has(kind: Any) -> None:
    line = kind(3)
    old = line.insert(2, 1, "old")
    line.insert(1, 5, "young")
    line.move(old, 1)
    assert list(line) == ["old", "young"]
    assert line.remove(old) == "old"
    assert list(line) == ["young"]


def test_an_empty_line_has_no_first(kind: Any) -> None:
    line = kind(4096)
    assert line.first() is None
    handle = line.insert(4095, 0, "x")
    assert line.first() == "x"
    assert line.after(handle) is None
    line.remove(handle)
    assert line.first() is None
    assert len(line) == 0


def test_levels_that_do_not_exist_are_refused_and_change_nothing(kind: Any) -> None:
    for levels in (0, -1, 4097):
        with pytest.raises(BadRequest):
            kind(levels)
    line = kind(2)
    handle = line.insert(1, 0, "x")
    for level in (-1, 2):
        with pytest.raises(BadRequest):
            line.insert(level, 0, "y")
        with pytest.raises(BadRequest):
            line.move(handle, level)
    assert list(line) == ["x"]


def test_a_handle_is_void_once_its_item_is_out(kind: Any) -> None:
    line = kind(2)
    handle = line.insert(0, 0, "x")
    line.remove(handle)
    for call in (line.remove, line.after, lambda h: line.move(h, 1)):
        with pytest.raises(AssertionError, match="nothing is held"):
            call(handle)
    with pytest.raises(AssertionError, match="nothing is held"):
        line.remove(99)


def test_an_item_that_was_taken_out_is_let_go(kind: Any) -> None:
    class Thing:
        pass

    line = kind(1)
    thing = Thing()
    watch = weakref.ref(thing)
    line.remove(line.insert(0, 0, thing))
    del thing
    gc.collect()
    assert watch() is None


steps = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "remove", "move"]),
        st.integers(0, 129),
        st.integers(0, 6),
        st.integers(0, 30),
    ),
    max_size=80,
)


@pytest.mark.parametrize("name", sorted(KINDS))
@given(steps=steps)
def test_it_is_a_list_sorted_by_level_and_order(name: str, steps: list[tuple[str, int, int, int]]) -> None:
    line = KINDS[name](130)
    model: dict[int, tuple[int, int, int, str]] = {}  # handle: level, order, how late it came into its level, item
    for count, (what, level, order, pick) in enumerate(steps):
        if what == "insert":
            handle = line.insert(level, order, f"item {count}")
            assert handle not in model
            model[handle] = (level, order, count, f"item {count}")
        elif model:
            handle = sorted(model)[pick % len(model)]
            if what == "remove":
                assert line.remove(handle) == model.pop(handle)[3]
            else:
                _, kept, _, item = model[handle]
                line.move(handle, level)
                model[handle] = (level, kept, count, item)
        ordered = sorted((entry, handle) for handle, entry in model.items())
        assert len(line) == len(model)
        assert list(line) == [entry[3] for entry, _ in ordered]
        assert line.first() == (ordered[0][0][3] if ordered else None)
        for (_, handle), (behind, _) in itertools.pairwise(ordered):
            assert line.after(handle) == behind[3]
