"""Splitting tasks by weight: exact totals, never over a limit, never a whole task away from the exact share."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.gpu.distribution import allot, distribute
from actorgrid.errors import BadRequest, RequestTooLarge

weights_of_devices = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3),
    st.one_of(st.integers(0, 1000), st.floats(0, 1e6), st.floats(0, 1e-300)),
    min_size=1,
    max_size=12,
)


def test_equal_weights_split_evenly_and_the_first_take_the_rest() -> None:
    assert allot(10, {"a": 1, "b": 1, "c": 1}) == {"a": 4, "b": 3, "c": 3}


def test_the_largest_remainders_win_the_seats_left() -> None:
    # Exact shares 4.7, 3.1, 2.2: seven tenths are the largest fraction.
    assert allot(10, {"a": 47, "b": 31, "c": 22}) == {"a": 5, "b": 3, "c": 2}
    assert allot(3, {"a": 1.0, "b": 2.0}) == {"a": 1, "b": 2}


def test_what_a_full_device_cannot_take_goes_to_the_others_in_proportion() -> None:
    assert allot(100, {"a": 8, "b": 1, "c": 1}, {"a": 20}) == {"a": 20, "b": 40, "c": 40}
    assert allot(12, {"a": 8, "b": 2, "c": 1}, {"a": 2, "b": 3}) == {"a": 2, "b": 3, "c": 7}


def test_a_device_filled_by_overflow_passes_it_on() -> None:
    # b would get 2 of 10, but 5 after a is full: then it is full as well.
    assert allot(10, {"a": 7, "b": 2, "c": 1}, {"a": 2, "b": 4}) == {"a": 2, "b": 4, "c": 4}


def test_more_than_all_limits_together_is_refused_with_the_room_there_is() -> None:
    with pytest.raises(RequestTooLarge, match="room for 5 on 2 devices"):
        allot(6, {"a": 1, "b": 1, "off": 0}, {"a": 2, "b": 3, "off": 100})
    assert allot(5, {"a": 1, "b": 1}, {"a": 2, "b": 3}) == {"a": 2, "b": 3}


def test_no_devices_take_no_tasks_and_not_one() -> None:
    assert allot(0, {}) == {}
    assert allot(0, {"a": 0}) == {"a": 0}
    for weights in ({}, {"a": 0.0}):
        with pytest.raises(RequestTooLarge):
            allot(1, weights)


@pytest.mark.parametrize("weight", [-1, -0.5, float("nan"), float("inf"), True, "1", None, 10**400])
def test_a_weight_that_is_no_weight_is_refused(weight: Any) -> None:
    with pytest.raises(BadRequest, match="a"):
        allot(1, {"a": weight})


@pytest.mark.parametrize("limit", [-1, 1.5, True, "1", None])
def test_a_limit_that_is_no_limit_is_refused(limit: Any) -> None:
    with pytest.raises(BadRequest):
        allot(1, {"a": 1}, {"a": limit})


def test_a_limit_of_a_stranger_is_refused() -> None:
    with pytest.raises(BadRequest, match="'b'"):
        allot(1, {"a": 1}, {"b": 1})


@pytest.mark.parametrize("total", [-1, 1.0, True, 2**54])
def test_a_number_of_tasks_that_is_none_is_refused(total: Any) -> None:
    with pytest.raises(BadRequest):
        allot(total, {"a": 1})


def test_very_large_and_very_small_weights_lose_nothing() -> None:
    assert allot(2**53, {"a": 1e300, "b": 5e-324}) == {"a": 2**53, "b": 0}
    assert allot(3, {"a": 5e-324, "b": 1e-323}) == {"a": 1, "b": 2}
    assert allot(2**53, {"a": 1, "b": 1e300}, {"b": 1}) == {"a": 2**53 - 1, "b": 1}


@given(st.integers(0, 10_000), weights_of_devices)
def test_without_limits_everyone_is_within_one_of_the_exact_share(total: int, weights: dict[str, float]) -> None:
    if not any(weights.values()):
        return
    counts = allot(total, weights)
    whole = sum(Fraction(weight) for weight in weights.values())
    assert sum(counts.values()) == total
    for name, weight in weights.items():
        assert abs(counts[name] - total * Fraction(weight) / whole) < 1


@given(st.data(), weights_of_devices, st.integers(0, 200))
def test_limits_hold_totals_are_exact_and_only_full_devices_fall_behind(
    data: st.DataObject, weights: dict[str, float], total: int
) -> None:
    limits = data.draw(st.dictionaries(st.sampled_from(sorted(weights)), st.integers(0, 50)))
    room = sum(limits.get(name, total) for name, weight in weights.items() if weight)
    if total > room:
        with pytest.raises(RequestTooLarge):
            allot(total, weights, limits)
        return
    counts = allot(total, weights, limits)
    assert list(counts) == list(weights)
    assert sum(counts.values()) == total
    assert all(counts[name] <= limits.get(name, total) for name in weights)
    assert all(counts[name] == 0 for name, weight in weights.items() if not weight)
    # Whoever is not full has, per weight, at most a task less than anyone who is not empty.
    open_ones = [name for name, weight in weights.items() if weight and counts[name] < limits.get(name, total)]
    for name in open_ones:
        for other in weights:
            if counts[other]:
                ahead, behind = Fraction(weights[other]), Fraction(weights[name])
                assert (counts[other] - 1) / ahead <= (counts[name] + 1) / behind


@given(st.lists(st.integers()), weights_of_devices)
def test_every_task_is_given_to_one_device_in_order(tasks: list[int], weights: dict[str, float]) -> None:
    if not any(weights.values()):
        return
    given_out = distribute(tasks, weights)
    assert [task for part in given_out.values() for task in part] == tasks


@pytest.mark.parametrize("tasks", [5, None, "abc", b"abc", {1, 2}])
def test_what_is_not_a_list_of_tasks_is_refused(tasks: Any) -> None:
    with pytest.raises(BadRequest, match="not a list"):
        distribute(tasks, {"a": 1})


@given(
    total=st.integers(0, 5_000),
    weights=st.lists(st.integers(0, 9) | st.floats(0, 9), min_size=1, max_size=12).filter(any),
)
def test_where_nobody_has_a_limit_it_is_as_where_the_limits_bind_nobody(total: int, weights: list[float]) -> None:
    named = {f"g{number}": weight for number, weight in enumerate(weights)}
    assert allot(total, named) == allot(total, named, dict.fromkeys(named, total))
