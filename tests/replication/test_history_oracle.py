"""The oracle of client histories catches what is planted, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.replication.types import GCounter, LWWRegister, ORSet
from tests.replication.history_oracle import (
    OK,
    UNKNOWN,
    Operation,
    check_counter,
    check_register,
    check_set,
)


def operation(host: int, name: str, value: Any, began: float, ended: float = 0.0, outcome: str = OK) -> Operation:
    return Operation(host, "k", name, value, began, ended or began + 1, outcome)


COUNTED = [operation(1, "add", 5, 0), operation(2, "add", 7, 1, outcome=UNKNOWN), operation(2, "add", 3, 4)]


@pytest.mark.parametrize(("final", "good"), [(8, True), (15, True), (12, False), (5, False), (16, False), (11, False)])
def test_a_counter_ends_with_all_acknowledged_steps_and_any_of_the_others(final: int, good: bool) -> None:
    assert (check_counter(COUNTED, final) == []) is good


def test_a_counter_shows_a_host_its_own_steps_and_never_goes_back() -> None:
    def shows(host: int, value: int, began: float) -> Operation:
        return operation(host, "read", value, began)

    assert check_counter([*COUNTED, shows(1, 5, 2), shows(1, 8, 9)], 8) == []
    assert "had counted 5" in check_counter([*COUNTED, shows(1, 3, 2)], 8)[0]
    assert "all 12 at most" in check_counter([*COUNTED, shows(1, 13, 2)], 8)[0]
    assert "and then 5" in check_counter([*COUNTED, shows(1, 12, 2), shows(1, 5, 9)], 8)[0]


def test_a_set_keeps_what_no_removal_saw_and_drops_what_its_host_removed() -> None:
    add, seen_remove = operation(1, "add", "x", 0), operation(1, "remove", "x", 2)
    assert check_set([add], ["x"]) == [] and check_set([add], []) != []
    assert check_set([add, seen_remove], []) == [] and check_set([add, seen_remove], ["x"]) != []
    elsewhere = operation(2, "remove", "x", 2)
    assert check_set([add, elsewhere], []) == check_set([add, elsewhere], ["x"]) == [], "it may have seen it, or not"
    again = operation(1, "add", "x", 4)
    assert check_set([add, seen_remove, again], []) != [] and check_set([add, seen_remove, again], ["x"]) == []
    late = operation(2, "remove", "x", 3, outcome=UNKNOWN)
    assert check_set([add, seen_remove, again, late], []) == [], "it may have happened after all"
    maybe = operation(1, "add", "x", 0, outcome=UNKNOWN)
    assert check_set([maybe, seen_remove], ["x"]) == check_set([maybe, seen_remove], []) == []
    assert "there was none" in check_set([], ["made up"])[0]


def test_a_set_shows_a_host_what_it_added() -> None:
    add = operation(1, "add", "x", 0)
    assert check_set([add, operation(1, "read", ["x"], 2)], ["x"]) == []
    assert "did not show it" in check_set([add, operation(1, "read", [], 2)], ["x"])[0]
    assert check_set([add, operation(2, "read", [], 2)], ["x"]) == [], "another host may not have it yet"
    assert "before anybody" in check_set([operation(1, "read", ["x"], 0), operation(1, "add", "x", 2)], ["x"])[0]


def test_a_register_ends_with_a_write_that_nobody_overwrote_knowingly() -> None:
    first, second = operation(1, "put", "a", 0), operation(1, "put", "b", 2)
    assert check_register([first, second], "b") == [] and "overwritten" in check_register([first, second], "a")[0]
    far = operation(2, "put", "c", 4)
    assert check_register([first, far], "a") == check_register([first, far], "c") == [], "clocks differ"
    read = operation(2, "read", "a", 2)
    assert "overwritten" in check_register([first, read, far], "a")[0], "who wrote c had seen a"
    maybe = operation(1, "put", "d", 0, outcome=UNKNOWN)
    assert check_register([maybe, second], "d") == check_register([maybe, second], "b") == []
    assert "nobody wrote" in check_register([first], "z")[0]
    assert "empty" in check_register([first], None)[0] and check_register([maybe], None) == []


def test_a_register_shows_a_host_its_last_write() -> None:
    puts = [operation(1, "put", "a", 0), operation(1, "put", "b", 2)]
    assert check_register([*puts, operation(1, "read", "b", 4)], "b") == []
    assert "a later write" in check_register([*puts, operation(1, "read", "a", 4)], "b")[0]
    assert check_register([*puts, operation(2, "read", "a", 4)], "b") == []
    assert "showed nothing" in check_register([*puts, operation(1, "read", None, 4)], "b")[0]


def test_the_real_types_pass_and_broken_ones_do_not() -> None:
    """A counter that joins by adding, a set whose removal wins, a register that keeps the first."""
    one, other = ("h1", 1), ("h2", 1)
    counters, sets, registers = [GCounter(), GCounter()], [ORSet(), ORSet()], [LWWRegister(), LWWRegister()]
    counted = [counters[0].increment(one, 5), counters[1].increment(other, 3)]
    for counter in counters:
        for delta in (*counted, *counted):
            counter.join(delta)
    history = [operation(1, "add", 5, 0), operation(2, "add", 3, 0)]
    assert check_counter(history, counters[0].value) == []
    assert check_counter(history, sum(delta.value for delta in (*counted, *counted))) != []

    added = sets[0].add(one, "x")
    sets[1].join(added)
    removed, again = sets[1].remove(other, "x"), sets[0].add(one, "x")
    sets[0].join(removed)
    sets[1].join(again)
    came = [operation(1, "add", "x", 0), operation(2, "remove", "x", 2, 3), operation(1, "add", "x", 4)]
    assert sets[0].plain == sets[1].plain == ["x"] and check_set(came, sets[0].plain) == []
    assert check_set(came, []) != [], "a removal that wins over what it has not seen"

    first = registers[0].put(one, "a", 10)
    registers[1].join(first)
    second = registers[1].put(other, "b", 5)  # its clock is behind
    registers[0].join(second)
    wrote = [operation(1, "put", "a", 0), operation(2, "read", "a", 2), operation(2, "put", "b", 4)]
    assert check_register(wrote, registers[0].value) == []
    assert check_register(wrote, "a") != [], "a register that goes by the wall clock alone"
