from __future__ import annotations

import concurrent.futures
import threading
from typing import Any

import pytest

from actorgrid.client.dependencies import TaskInput, hold
from actorgrid.client.futures import TaskFuture
from actorgrid.client.lanes import Lane, LeasedWorker, TaskCall
from actorgrid.client.lending import LEND_AFTER_S, AskForWorker, Lending, Return, SendCall, own_cpus
from actorgrid.client.options import WorkerShape
from actorgrid.client.pickling import FunctionCode
from tests.client.stand_in import wait_until

CODE = FunctionCode(b"0" * 16, b"", "f", "f")


class Owner:
    """Notes who waits, as the dispatcher does."""

    lends = True

    def __init__(self, lending: Lending) -> None:
        self._lending = lending

    def wait_begins(self, future: TaskFuture[Any], *, blocked: bool) -> None:
        self._lending.begins(future)

    def wait_ends(self, future: TaskFuture[Any]) -> None:
        self._lending.ends(future)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nobody asks for {name}")


def waiting_call(lane: Lane, lending: Lending, number: int) -> TaskCall:
    future: TaskFuture[Any] = TaskFuture(Owner(lending))
    call = TaskCall(number, CODE, b"", None, 50, 3, lane, future)
    future.call = call
    lane.push(call, 0.0)
    return call


def blocked_on(call: TaskCall) -> threading.Thread:
    thread = threading.Thread(target=call.future.result, daemon=True)
    thread.start()
    wait_until(call.future.is_awaited)
    return thread


def borrowed(lane: Lane, lending: Lending) -> LeasedWorker:
    link = LeasedWorker(lane, "l", "w", None, None, 0.0, token=(1, 5))
    link.on_loan, lending.link = True, link
    lane.links.append(link)
    return link


def test_only_what_a_thread_waits_for_is_lent_to_and_one_at_a_time() -> None:
    lending, lane = Lending(1.0), Lane(WorkerShape())
    calls = [waiting_call(lane, lending, number) for number in range(3)]
    assert lending.decide(0.0, ()) is None and lending.decide(1.0, ()) is None
    thread = blocked_on(calls[1])
    assert lending.decide(1.0, ()) is None  # it may get a worker of its own yet
    assert lending.decide(1.0 + LEND_AFTER_S, ()) == AskForWorker(lane)
    assert lending.decide(1.0 + LEND_AFTER_S, {calls[1]}) is None
    link = borrowed(lane, lending)
    assert lending.decide(2.0, ()) == SendCall(link, calls[1]) and not link.has_capacity(0.0)
    lane.take(calls[1])
    link.took(calls[1], 0.0, 2.0)
    other = blocked_on(calls[2])
    assert lending.decide(3.0, ()) is None
    link.gave(1, 3.0)
    calls[1].done = True
    assert lending.decide(3.0, ()) == SendCall(link, calls[2])
    for call in calls:
        call.future.set_result(None)
    thread.join(60)
    other.join(60)
    assert lending.decide(4.0, ()) is None


def test_a_worker_that_serves_nothing_that_is_waited_for_is_given_back() -> None:
    lending, lane, elsewhere = Lending(1.0), Lane(WorkerShape()), Lane(WorkerShape(gpus=1.0))
    link = borrowed(elsewhere, lending)
    call = waiting_call(lane, lending, 1)
    thread = blocked_on(call)
    assert lending.decide(0.0, ()) == Return(link)
    again = borrowed(lane, lending)
    call.may_have_begun((1, 5))
    assert lending.decide(0.0, ()) == Return(again)  # of no newer lease than that
    call.future.set_result(None)
    thread.join(60)


def test_waits_of_the_standard_library_count_while_they_sleep() -> None:
    lending, lane = Lending(1.0), Lane(WorkerShape())
    calls = [waiting_call(lane, lending, number) for number in range(2)]
    link = borrowed(lane, lending)
    found = concurrent.futures.as_completed([call.future for call in calls])
    values: list[Any] = []
    thread = threading.Thread(target=lambda: values.append(next(found).result()), daemon=True)
    thread.start()
    wait_until(
        lambda: (
            lending.decide(1.0, ()) == SendCall(link, calls[0]) or lending.decide(1.0, ()) == SendCall(link, calls[1])
        )
    )
    calls[0].done = True
    calls[0].future.set_result(7)
    thread.join(60)
    assert values == [7]
    assert lending.decide(2.0, ()) is None  # whoever iterates is at work on the value
    calls[1].future.set_result(8)
    assert [future.result() for future in found] == [8]


def test_what_this_process_holds_is_what_was_granted_and_what_was_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACTORGRID_CPU_MILLI", "ACTORGRID_LENT_CPU_MILLI"):
        monkeypatch.delenv(name, raising=False)
    assert own_cpus() == 0
    monkeypatch.setenv("ACTORGRID_LENT_CPU_MILLI", "1500")
    assert own_cpus() == 1.5
    monkeypatch.setenv("ACTORGRID_CPU_MILLI", "500")
    assert own_cpus() == 2.0
    monkeypatch.setenv("ACTORGRID_CPU_MILLI", "many")
    assert own_cpus() == 1.5


def test_what_is_lent_is_not_asked_for_again() -> None:
    shape = WorkerShape(cpus=2.0, env=(("A", "b"),))
    whole, part = shape.lease_request("3.11", 1.0, "l"), shape.lease_request("3.11", 1.0, "l", 1.5)
    assert whole["cpus"] == 2.0 and whole["env"] == {"A": "b"}
    assert part["cpus"] == 0.5 and part["env"] == {"A": "b", "ACTORGRID_LENT_CPU_MILLI": "1500", "OMP_NUM_THREADS": "2"}
    assert shape.lease_request("3.11", 1.0, "l", 64.0)["cpus"] == 0


def test_who_waits_for_a_call_that_lacks_an_input_lends_to_the_call_of_that_input() -> None:
    lending, lane = Lending(1.0), Lane(WorkerShape())
    first = waiting_call(lane, lending, 1)
    second = TaskCall(2, CODE, b"", None, 50, 3, lane, TaskFuture(Owner(lending)))
    second.future.call = second
    used = TaskInput(1, first)
    assert hold(second, (used,)) is None and second.missing == 1
    lane.push(second, 0.0)
    assert lane.waiting == 1 and second in lane.held
    thread = blocked_on(second)
    link = borrowed(lane, lending)
    assert lending.decide(1.0, ()) == SendCall(link, first)
    used.call = None  # of a future that no call gives: nothing can be lent to it
    assert lending.decide(2.0, ()) is None
    second.future.set_result(None)
    thread.join(60)
