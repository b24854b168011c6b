"""The condition of a client's futures does what every condition does, and keeps nothing before somebody waits."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import Future

import pytest

from actorgrid.client.futures import LazyFuture
from actorgrid.client.lean_condition import LeanCondition
from tests.processes import until


def test_a_future_has_what_one_of_the_library_has() -> None:
    ours, library = vars(LazyFuture()), vars(Future())  # type: ignore[var-annotated]
    assert set(library) == set(ours) - {"_process"}
    assert {name: value for name, value in library.items() if name != "_condition"} == {
        name: ours[name] for name in library if name != "_condition"
    }


def test_those_who_wait_are_woken_one_by_one_or_together() -> None:
    condition, woken = LeanCondition(), []

    def wait(number: int) -> None:
        with condition:
            condition.wait()
            woken.append(number)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: len(condition._waiters) == 4, "all wait")
    with condition:
        condition.notify()
    until(lambda: len(woken) == 1, "one is woken")
    with condition:
        condition.notify_all()
    for thread in threads:
        thread.join(30)
    assert sorted(woken) == [0, 1, 2, 3]


def test_it_is_reentrant_times_out_and_is_of_who_holds_it() -> None:
    condition = LeanCondition()
    with condition, condition:
        assert not condition.wait(0.01)
        assert condition.wait_for(lambda: True, 1)
        seen: list[bool] = []
        other = threading.Thread(target=lambda: seen.append(condition.acquire(blocking=False)))
        other.start()
        other.join()
        assert seen == [False]
    for call in (condition.wait, condition.notify, condition.notify_all):
        with pytest.raises(RuntimeError):
            call()
    assert condition.acquire(timeout=1)
    condition.release()


def test_nothing_is_kept_before_somebody_waits() -> None:
    lean, library = LeanCondition(), threading.Condition()
    size = sum(map(sys.getsizeof, [lean, vars(lean), *vars(lean).values()])) - sys.getsizeof(lean._waiters)
    assert size < sum(map(sys.getsizeof, [library, vars(library), *vars(library).values()])) / 2
    assert lean._waiters is LeanCondition()._waiters
