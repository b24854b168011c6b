"""Timers by tick: one contract for the compiled kernel and its twin."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorgrid.hotpath
from actorgrid.errors import BadRequest
from actorgrid.hotpath.reference.timer_wheel import TICK_MAX
from actorgrid.hotpath.reference.timer_wheel import TimerWheel as Reference

KINDS: dict[str, Any] = {"reference": Reference}
if actorgrid.hotpath.COMPILED:
    KINDS["compiled"] = actorgrid.hotpath.TimerWheel


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]


def test_a_timer_is_due_at_its_tick_and_not_before(kind: Any) -> None:
    wheel = kind(1000)
    wheel.add(70_000, "late")
    wheel.add(1001, "soon")
    assert wheel.next_tick() == 1001
    assert wheel.advance(1000) == []
    assert wheel.advance(1001) == ["soon"]
    assert wheel.advance(69_999) == []
    assert wheel.next_tick() == 70_000
    assert wheel.advance(70_000) == ["late"]
    assert wheel.next_tick() is None


def test_one_set_for_the_past_is_due_at_once(kind: Any) -> None:
    wheel = kind(500)
    wheel.add(3, "past")
    assert wheel.next_tick() == 500
    assert wheel.advance(500) == ["past"]


def test_those_due_at_one_tick_come_as_they_were_set(kind: Any) -> None:
    wheel = kind()
    wheel.add(5000, "first")
    wheel.advance(4990)
    wheel.add(5000, "second")
    assert wheel.advance(6000) == ["first", "second"]


def test_a_cancelled_timer_is_never_due(kind: Any) -> None:
    wheel = kind()
    handle = wheel.add(10, "x")
    assert wheel.cancel(handle) == "x"
    assert wheel.advance(100) == []
    with pytest.raises(AssertionError, match="no timer"):
        wheel.cancel(handle)


def test_a_clock_that_goes_back_changes_nothing(kind: Any) -> None:
    wheel = kind(100)
    wheel.add(150, "x")
    assert wheel.advance(-5) == wheel.advance(0) == []
    assert wheel.advance(150) == ["x"]


def test_it_reaches_to_the_last_tick_there_is(kind: Any) -> None:
    wheel = kind()
    wheel.add(TICK_MAX, "end")
    assert wheel.next_tick() == TICK_MAX
    assert wheel.advance(TICK_MAX - 1) == []
    assert wheel.advance(2 * TICK_MAX) == ["end"]
    for tick in (-1, TICK_MAX + 1):
        with pytest.raises(BadRequest):
            wheel.add(tick, "x")
        with pytest.raises(BadRequest):
            kind(tick)


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "cancel", "advance"]),
        st.one_of(st.integers(0, 70), st.integers(0, 5000), st.integers(0, 2**40)),
    ),
    max_size=60,
)


@pytest.mark.parametrize("name", sorted(KINDS))
@given(start=st.sampled_from([0, 63, 4095, 2**41 - 1]), steps=steps)
def test_it_is_a_list_sorted_by_tick(name: str, start: int, steps: list[tuple[str, int]]) -> None:
    wheel = KINDS[name](start)
    now = start
    model: dict[int, tuple[int, int]] = {}  # handle: tick, count
    for count, (what, amount) in enumerate(steps):
        if what == "add":
            handle = wheel.add(now + amount, count)
            assert handle not in model
            model[handle] = (now + amount, count)
        elif what == "cancel" and model:
            handle = sorted(model)[amount % len(model)]
            assert wheel.cancel(handle) == model.pop(handle)[1]
        elif what == "advance":
            now += amount
            due = sorted((tick, item, handle) for handle, (tick, item) in model.items() if tick <= now)
            assert wheel.advance(now) == [item for _, item, _ in due]
            for _, _, handle in due:
                del model[handle]
        assert len(wheel) == len(model)
        assert wheel.next_tick() == min((tick for tick, _ in model.values()), default=None)
