"""Futures among the arguments of session tasks: their values get there, and so do their failures."""

from __future__ import annotations

import functools
import os
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid.client.client import Client
from actorgrid.client.dependencies import MAX_FOLLOWED_INPUTS
from actorgrid.client.futures import LazyFuture
from actorgrid.client.options import TaskOptions
from actorgrid.client.pickling import FunctionCode, arguments
from actorgrid.errors import DependencyFailed, MalformedBody, NotSupported, UnknownKey, UnpicklableFunction
from actorgrid.transports.task_frames import (
    CancelTask,
    InputValue,
    Recall,
    encode_failure,
    encode_recalled,
)
from actorgrid.transports.task_inputs import MAX_KEPT_BYTES, MAX_KEPT_VALUES, LatestValues, input_value
from tests.client.scripted_workers import Leases, Worker
from tests.client.stand_in import StandIn

CODE = FunctionCode(b"0" * 16, b"", "f", "f")
FAST = TaskOptions()


@pytest.fixture(scope="module")
def host() -> Iterator[StandIn]:
    host = StandIn()
    yield host
    host.close()


@pytest.fixture(scope="module")
def client(host: StandIn) -> Iterator[Client]:
    client = Client(host.url, host.token)
    yield client
    client.close()


@dataclass
class Box:
    inside: Any
    more: dict[str, Any]


def increment(number: int) -> int:
    return number + 1


def total(*numbers: Any) -> int:
    return sum(sum(number) if isinstance(number, list) else number for number in numbers)


def fail(text: str) -> None:
    raise KeyError(text)


def gives_in_time(future: Any) -> Any:
    return future.result(60)


# -- values


def test_futures_are_values_wherever_they_stand_in_the_arguments(client: Client) -> None:
    one, two = client.submit(increment, 0), client.submit(increment, 1)
    assert gives_in_time(client.submit(total, one, two, 3)) == 6
    assert gives_in_time(client.submit(total, [one, two, one], 4)) == 8
    nested = client.submit(
        lambda boxes, *, key: (boxes[0].inside, boxes[0].more, key),
        [Box(one, {"two": two, "list": [(two,)]})],
        kwargs={"key": {"x": one}},
    )
    assert gives_in_time(nested) == (1, {"two": 2, "list": [(2,)]}, {"x": 1})
    assert gives_in_time(client.submit(lambda a, b: a is b, *[client.submit(list)] * 2)), "one future, one object"


def test_a_future_that_has_ended_is_a_value_whether_it_was_asked_for_or_not(client: Client) -> None:
    asked, unasked = client.submit(increment, 0), client.submit(increment, 1)
    assert gives_in_time(asked) == 1
    actorgrid.wait([unasked])
    assert gives_in_time(client.submit(total, asked, unasked)) == 3


def test_a_chain_a_fan_and_a_diamond_give_their_values(client: Client) -> None:
    link = client.submit(increment, 0)
    for _ in range(199):
        link = client.submit(increment, link)
    assert gives_in_time(link) == 200
    root = client.submit(increment, 0)
    assert gives_in_time(client.submit(total, [client.submit(increment, root) for _ in range(998)])) == 1996
    left, right = client.submit(increment, root), client.submit(total, root, 10)
    assert gives_in_time(client.submit(total, left, right, root)) == 14


def test_what_waits_in_a_lane_of_another_shape_does_not_hold_up_what_it_waits_for(client: Client) -> None:
    # One worker each, as the host has two: dependents that held workers would starve their inputs.
    first = [client.submit(increment, number, cpus=1) for number in range(20)]
    second = [client.submit(increment, future, cpus=2) for future in first]
    third = [client.submit(increment, future, cpus=1) for future in second]
    assert [gives_in_time(future) for future in reversed(third)] == [number + 3 for number in reversed(range(20))]


def test_values_that_no_worker_keeps_any_more_are_sent_again(client: Client) -> None:
    size = MAX_KEPT_BYTES // 2 - 4096
    large = [client.submit(bytes, size) for _ in range(3)]
    actorgrid.wait(large)
    lengths = [client.submit(lambda *values: [len(value) for value in values], *large) for _ in range(2)]
    assert [gives_in_time(future) for future in lengths] == [[size] * 3] * 2


def test_gathers_and_futures_of_other_clients_are_values_too(host: StandIn, client: Client) -> None:
    with Client(host.url, host.token) as other:
        foreign = other.submit(increment, 5)
        gathered = actorgrid.gather(client.submit(increment, 0), foreign)
        assert gives_in_time(client.submit(total, gathered, foreign)) == 13


def test_a_future_outside_of_arguments_is_refused_by_name(client: Client) -> None:
    future = client.submit(increment, 0)
    with pytest.raises(UnpicklableFunction, match="variable 'future'"):
        client.submit(lambda: future.result())
    with pytest.raises(UnpicklableFunction):
        client.submit(increment, future, durable=True)
    with pytest.raises(MalformedBody, match="an input that the task does not have"):
        input_value(0)


def test_the_argument_to_blame_is_found_beside_a_future(client: Client) -> None:
    with pytest.raises(UnpicklableFunction, match="argument 1"):
        client.submit(total, client.submit(increment, 0), threading.Lock())


# -- failures


def test_a_failed_input_fails_what_waits_for_it_with_the_same_error(client: Client) -> None:
    failed = client.submit(fail, "the first")
    chain: Any = failed
    for _ in range(3000):  # longer than Python's stack
        chain = client.submit(increment, chain)
    error = chain.exception(60)
    assert type(error) is type(failed.exception(0)) and "the first" in str(error) and error is not failed.exception(0)
    late = client.submit(increment, [failed])
    assert "the first" in str(late.exception(60))
    assert client._session is not None and client._session.figures()["unfinished"] == 0


def test_a_cancelled_input_fails_what_waits_for_it(client: Client, tmp_path: Path) -> None:
    gates = [tmp_path / "one", tmp_path / "two"]
    for gate in gates:
        os.mkfifo(gate)
    holders = [client.submit(_read, str(gate)) for gate in gates]
    first = client.submit(increment, 0)
    second = client.submit(increment, first)
    third = client.submit(increment, second)
    assert first.cancel()
    for future in (second, third):
        with pytest.raises(DependencyFailed, match="was cancelled"):
            future.result(60)
    waits = client.submit(total, holders)
    assert waits.cancel()
    with pytest.raises(CancelledError):
        waits.result(0)
    for gate in gates:
        gate.write_text("x")
    actorgrid.wait(holders, 60)


def _read(path: str) -> int:
    return len(Path(path).read_text())


def die_once(marker: str, number: int) -> int:
    if not os.path.exists(marker):
        Path(marker).touch()
        os._exit(1)
    return number + 1


def test_a_worker_that_dies_with_inputs_out_costs_nothing_but_time(client: Client, tmp_path: Path) -> None:
    values = [client.submit(increment, number) for number in range(4)]
    died = [client.submit(die_once, str(tmp_path / str(index)), value) for index, value in enumerate(values)]
    after = [client.submit(increment, value) for value in died]
    assert gives_in_time(client.submit(total, after, values)) == sum(range(3, 7)) + sum(range(1, 5))


def test_closing_cancels_what_is_held(host: StandIn, tmp_path: Path) -> None:
    client = Client(host.url, host.token)
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    holder = client.submit(_read, gate)
    held = client.submit(increment, client.submit(increment, holder))
    client.close()
    assert held.cancelled() and holder.cancelled()


# -- what is sent when, with workers that say what they are told


def test_a_short_call_is_sent_behind_what_it_waits_for_without_its_value() -> None:
    with Leases() as leases:
        worker = _warm(leases)
        first = leases.dispatcher.submit(CODE, b"", FAST)
        second = leases.dispatcher.submit(CODE, b"", FAST, [first])
        sent = [worker.task(), worker.task()]
        assert sent[1].inputs == (sent[0].task_id,)
        worker.succeed(*(task.task_id for task in sent))
        actorgrid.wait([second], 20)
        third = leases.dispatcher.submit(CODE, b"", FAST, [second])
        assert worker.task().inputs == (sent[1].task_id,), "the worker keeps its own results"
        other = LazyFuture[Any]()
        other.settle(pickle.loads, pickle.dumps("made here"))
        leases.dispatcher.submit(CODE, b"", FAST, [other])
        value, task = worker.read(), worker.read()
        assert isinstance(value, InputValue) and task.inputs == (value.key,)
        assert pickle.loads(value.body) == "made here" and not third.done()


def test_what_was_given_back_with_its_input_follows_it_elsewhere() -> None:
    with Leases() as leases:
        slow = _warm(leases)
        busy, first = (leases.dispatcher.submit(CODE, b"", FAST) for _ in range(2))
        second = leases.dispatcher.submit(CODE, b"", FAST, [first])
        sent = [slow.task().task_id for _ in range(3)]
        idle = Worker(leases, "idle", 2)
        while not isinstance(slow.read(), Recall):
            pass
        slow.socket.sendall(encode_recalled(sent[1:]))
        again = [idle.task(), idle.task()]
        assert [task.task_id for task in again] == sent[1:] and again[1].inputs == (sent[1],)
        slow.succeed(sent[0])
        assert busy.result(60)
        idle.succeed(*sent[1:])
        assert second.result(60) == f"value of {sent[2]}" and leases.dispatcher.figures()["unfinished"] == 0


def test_a_worker_that_lacks_a_value_is_sent_it() -> None:
    with Leases() as leases:
        worker = _warm(leases)
        first = leases.dispatcher.submit(CODE, b"", FAST)
        worker.succeed(worker.task().task_id)
        actorgrid.wait([first], 20)
        second = leases.dispatcher.submit(CODE, b"", FAST, [first])
        task = worker.task()
        lacks = UnknownKey("forgotten", value_keys=list(task.inputs))
        worker.socket.sendall(encode_failure(task.task_id, lacks))
        value = worker.read()
        assert isinstance(value, InputValue) and value.key == task.inputs[0]
        assert worker.task() == task
        worker.succeed(task.task_id)
        assert second.result(60) == f"value of {task.task_id}"


def test_cancelling_an_input_cancels_what_was_sent_behind_it() -> None:
    with Leases() as leases:
        worker = _warm(leases)
        leases.dispatcher.submit(CODE, b"", FAST)
        first = leases.dispatcher.submit(CODE, b"", FAST)
        second = leases.dispatcher.submit(CODE, b"", FAST, [first])
        sent = [worker.task().task_id for _ in range(3)]
        assert first.cancel()
        assert isinstance(second.exception(60), DependencyFailed)
        assert [worker.read() for _ in range(2)] == [CancelTask(sent[1]), CancelTask(sent[2])]


def test_a_call_with_many_inputs_is_not_sent_before_they_have_ended() -> None:
    with Leases() as leases:
        worker = _warm(leases)
        inputs = [leases.dispatcher.submit(CODE, b"", FAST) for _ in range(MAX_FOLLOWED_INPUTS + 1)]
        last = leases.dispatcher.submit(CODE, b"", FAST, inputs)
        sent = [worker.task().task_id for _ in inputs]
        worker.succeed(*sent[:-1])
        actorgrid.wait(inputs[:-1], 20)
        leases.dispatcher._pace._by_kin["f"] = 0.00001  # however long that took: the worker has room for another
        assert leases.dispatcher.submit(CODE, b"", FAST)
        other = worker.task()
        assert other.inputs == ()
        worker.succeed(sent[-1], other.task_id)  # and nothing stands before it, however slow the last one was
        assert set(worker.task().inputs) == set(sent) and not last.done()


def test_a_worker_of_an_earlier_version_is_not_sent_what_it_does_not_know() -> None:
    with Leases() as leases:
        first = leases.dispatcher.submit(CODE, b"", FAST)
        worker = Worker(leases, "old", 1, takes_values=False)
        second = leases.dispatcher.submit(CODE, b"", FAST, [first])
        worker.succeed(worker.task().task_id)
        with pytest.raises(NotSupported, match="earlier version"):
            second.result(60)
        assert leases.dispatcher.figures()["unfinished"] == 0


def _warm(leases: Leases) -> Worker:
    """A worker whose calls are known as short."""
    leases.dispatcher._pace._by_kin["f"] = 0.00001
    first = leases.dispatcher.submit(CODE, b"", FAST)
    worker = Worker(leases, "first", 7)
    worker.succeed(worker.task().task_id)
    first.result(60)
    leases.dispatcher._pace._by_kin["f"] = 0.00001
    return worker


# -- pieces


def test_plain_arguments_name_their_futures_in_order_and_once() -> None:
    one, two = LazyFuture[Any](), LazyFuture[Any]()
    for args in ((two, one, two), ([two, one], two), ({"a": two, "b": functools.partial(len, one)},)):
        inputs: dict[LazyFuture[Any], int] = {}
        arguments(args, {}, inputs)
        assert list(inputs) == [two, one]


def test_the_oldest_values_give_way_to_the_latest() -> None:
    values: LatestValues[int] = LatestValues()
    for key in range(MAX_KEPT_VALUES + 3):
        values.add(key, key, 1)
    assert 2 not in values and 3 in values and len(values) == MAX_KEPT_VALUES
    values.add(1, 1, MAX_KEPT_BYTES)
    assert 1 in values and len(values) == 1
    values.add(2, 2, MAX_KEPT_BYTES + 1)
    assert 2 not in values and values.get(1) == 1
    values.add(1, 5, 2)
    values.add(3, 3, MAX_KEPT_BYTES - 2)
    assert values.get(1) == 5 and 3 in values
