"""A loop that runs with room for its frames asks the kernel for none, at whatever depth it sits."""

from __future__ import annotations

import resource
from typing import Any

from actorgrid.transports.stack_room import with_stack_room

LOOPS, CALLS = 200, 12
DEPTHS = range(0, 400, 3)


def _nested(depth: int) -> int:
    return _nested(depth - 1) + 1 if depth else 0


def _faults_at(depth: int) -> int:
    """Pages that were asked of the kernel by a loop of calls, *depth* calls down."""
    if depth:
        return _faults_at(depth - 1)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(LOOPS):
        _nested(CALLS)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def _loops_that_ask() -> int:
    return sum(_faults_at(depth) >= LOOPS for depth in DEPTHS)


def test_without_room_some_depths_ask_with_each_call_and_with_it_none() -> None:
    assert _loops_that_ask() > 0, "this Python keeps its frames otherwise: then the room is for nothing"
    assert with_stack_room(_loops_that_ask) == 0


def test_arguments_results_and_errors_pass_through() -> None:
    def told(*given: int, **named: int) -> Any:
        if not given:
            raise KeyError("none")
        return given, named

    assert with_stack_room(told, 1, 2, three=3) == ((1, 2), {"three": 3})
    try:
        with_stack_room(told)
    except KeyError as error:
        assert error.args == ("none",)
    else:
        raise AssertionError("the error was lost")
