"""The linearizability checker: known histories, and random ones that were made by a real register."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.chaos.checkers.linearizability import UNKNOWN, Operation, apply_register, check


def read(value: Any, called: int, returned: int, key: str = "x") -> Operation:
    return Operation(key, ("read",), value, called, returned)


def swap(value: Any, previous: Any, called: int, returned: int | None, key: str = "x") -> Operation:
    return Operation(key, ("swap", value), previous, called, returned)


def verdict(*history: Operation) -> bool | None:
    return check(history, None, apply_register).linearizable


def test_calls_one_after_the_other_must_see_each_other() -> None:
    assert verdict(swap(1, None, 0, 1), read(1, 2, 3))
    assert verdict(swap(1, None, 0, 1), read(None, 2, 3)) is False


def test_overlapping_calls_may_take_effect_in_either_order() -> None:
    assert verdict(swap(1, None, 0, 10), read(None, 1, 2), read(1, 3, 4))
    assert verdict(swap(1, None, 0, 10), read(1, 1, 2), read(None, 3, 4)) is False


def test_a_lost_update_is_found() -> None:
    assert verdict(swap(1, None, 0, 5), swap(2, None, 0, 5)) is False
    assert verdict(swap(1, None, 0, 5), swap(2, 1, 0, 5))


def test_a_call_of_unknown_fate_may_take_effect_late_or_never() -> None:
    lost = Operation("x", ("swap", 1), UNKNOWN, 0, None)
    assert verdict(lost, read(None, 5, 6), read(1, 100, 101))
    assert verdict(lost, read(None, 5, 6), read(None, 100, 101))
    assert verdict(lost, read(1, 5, 6), read(None, 100, 101)) is False


def test_an_effect_that_happens_twice_is_found() -> None:
    """A retried swap applied twice: its value comes back over a later one."""
    assert verdict(swap(1, None, 0, 20), swap(2, 1, 5, 6), read(2, 7, 8), read(1, 9, 10)) is False


def test_keys_are_judged_by_themselves() -> None:
    assert verdict(swap(1, None, 0, 1), read(None, 2, 3, key="y"))
    assert check([swap(1, None, 0, 1), read(7, 2, 3, key="y")], None, apply_register).key == "y"


def test_a_verdict_names_the_calls_that_nothing_explains() -> None:
    found = check([swap(1, None, 0, 1), read(9, 2, 3)], None, apply_register)
    assert found.explained == 1
    assert [operation.answer for operation in found.stuck] == [9]


def test_the_search_is_bounded_and_says_so() -> None:
    crowd = [Operation("x", ("swap", value), UNKNOWN, 0, 1000) for value in range(14)]
    found = check([*crowd, read(99, 2000, 2001)], None, apply_register, steps_max=500)
    assert found.linearizable is None


def history_of(seed: int, clients: int, calls: int) -> list[Operation]:
    """What clients see of one atomic register: each call takes effect at a moment between its ends."""
    rng = Random(seed)
    planned = []
    for client in range(clients):
        at = 0
        for number in range(calls):
            called = at + rng.randrange(1, 20)
            effect = called + rng.randrange(1, 30)
            at = effect + rng.randrange(1, 30)
            write = (client * 1000 + number) if rng.random() < 0.5 else None
            planned.append((effect, client, called, at, write))
    value: Any = None
    history = []
    for _effect, _client, called, returned, write in sorted(planned, key=lambda each: each[:2]):
        if write is None:
            history.append(read(value, called, returned))
        else:
            known = rng.random() < 0.8
            history.append(
                Operation("x", ("swap", write), value if known else UNKNOWN, called, returned if known else None)
            )
            value = write
    return history


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), clients=st.integers(1, 5), calls=st.integers(1, 8))
def test_what_a_real_register_answered_is_linearizable(seed: int, clients: int, calls: int) -> None:
    assert verdict(*history_of(seed, clients, calls)) is True


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), clients=st.integers(1, 5), calls=st.integers(1, 8))
def test_a_value_never_written_is_never_explained(seed: int, clients: int, calls: int) -> None:
    history = history_of(seed, clients, calls)
    end = max(operation.returned_us or 0 for operation in history)
    assert verdict(*history, read(-1, end + 1, end + 2)) is False


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), calls=st.integers(2, 8))
def test_a_read_of_an_older_value_after_a_newer_one_is_found(seed: int, calls: int) -> None:
    rng = Random(seed)
    at, value, history = 0, None, []
    for number in range(calls):
        history.append(swap(number, value, at, at + rng.randrange(1, 9)))
        at, value = at + 10, number
    stale = rng.randrange(calls - 1)
    assert verdict(*history, read(value, at, at + 1), read(stale, at + 2, at + 3)) is False
