from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from actorgrid.client.client import Client
from actorgrid.errors import (
    ActorDown,
    BadRequest,
    HostUnreachable,
    NotFound,
    NotSupported,
    TaskCancelled,
    TaskFailed,
    TaskTimedOut,
    TooManyGpus,
    UnpicklableFunction,
    UnpicklableResult,
    WorkerLost,
)
from tests.client.stand_in import StandIn, wait_until


class Odd(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(f"{number} is odd")
        self.number = number


def refuse_odd(number: int) -> int:
    if number % 2:
        raise Odd(number)
    return number


def test_a_function_runs_in_another_process_and_gives_its_value(client: Client) -> None:
    assert client.submit(os.getpid).result(60) != os.getpid()
    assert client.submit(lambda x, y: x * y, 6, kwargs={"y": 7}).result(60) == 42


def test_ten_thousand_tasks_all_come_back_in_their_places(client: Client) -> None:
    futures = [client.submit(divmod, number, 7) for number in range(10_000)]
    assert [future.result(60) for future in futures] == [divmod(number, 7) for number in range(10_000)]


def test_map_keeps_the_order_also_in_chunks_and_with_a_small_window(client: Client) -> None:
    assert list(client.map(pow, range(50), [2] * 50)) == [n * n for n in range(50)]
    assert list(client.map(pow, range(50), [2] * 50, chunksize=7, buffersize=2)) == [n * n for n in range(50)]
    assert list(client.map(abs, [])) == []


def test_map_raises_a_failure_at_its_place_and_gives_up_the_rest(client: Client) -> None:
    results = client.map(refuse_odd, [0, 2, 3, 4])
    assert next(results) == 0
    assert next(results) == 2
    with pytest.raises(TaskFailed):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


def test_a_failure_is_caught_by_its_own_type_and_carries_the_remote_traceback(client: Client) -> None:
    future = client.submit(refuse_odd, 3)
    with pytest.raises(TaskFailed, match="3 is odd") as caught:
        future.result(60)
    assert "in refuse_odd" in caught.value.remote_traceback
    assert isinstance(caught.value, Odd)
    assert caught.value.number == 3
    assert future.exception() is caught.value
    with pytest.raises(Odd):
        future.result()


def test_futures_are_those_of_the_standard_library(client: Client) -> None:
    futures = [client.submit(abs, -n) for n in range(20)]
    done, not_done = concurrent.futures.wait(futures, 20)
    assert len(done) == 20 and not not_done
    assert sorted(future.result() for future in concurrent.futures.as_completed(futures)) == list(range(20))
    heard = threading.Event()
    client.submit(abs, -1).add_done_callback(lambda _: heard.set())
    assert heard.wait(60)


def test_asyncio_awaits_them(client: Client) -> None:
    async def both() -> tuple[int, BaseException | None]:
        good = await asyncio.wrap_future(client.submit(abs, -4))
        bad = asyncio.wrap_future(client.submit(refuse_odd, 1))
        await asyncio.wait([bad])
        return good, bad.exception()

    value, error = asyncio.run(both())
    assert value == 4
    assert isinstance(error, TaskFailed)


def test_two_long_tasks_do_not_queue_behind_each_other(client: Client, tmp_path: Path) -> None:
    def meet(mine: str, other: str) -> bool:
        Path(mine).touch()
        until = time.monotonic() + 20
        while not Path(other).exists() and time.monotonic() < until:
            time.sleep(0.005)
        return Path(other).exists()

    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert [f.result(60) for f in (client.submit(meet, a, b), client.submit(meet, b, a))] == [True, True]


def test_tasks_behind_one_that_turns_out_long_are_taken_elsewhere(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def sometimes_long(number: int, path: str) -> int:
        if number == 1000:
            until = time.monotonic() + 30
            while not Path(path).exists() and time.monotonic() < until:
                time.sleep(0.005)
        return number

    list(client.map(sometimes_long, range(500), [str(gate)] * 500))  # learns that it is short
    futures = [client.submit(sometimes_long, n, str(gate)) for n in range(1000, 1500)]
    assert [future.result(30) for future in futures[1:]] == list(range(1001, 1500))
    assert not futures[0].done()
    gate.touch()
    assert futures[0].result(30) == 1000


def test_tasks_of_a_killed_worker_run_elsewhere(client: Client, host: StandIn, tmp_path: Path) -> None:
    def die_once(path: str, number: int) -> int:
        if number == 50 and not Path(path).exists():
            Path(path).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    flag = str(tmp_path / "died")
    assert list(client.map(die_once, [flag] * 100, range(100))) == list(range(100))
    assert Path(flag).exists()


def test_a_task_that_kills_every_worker_is_lost_after_its_retries(client: Client) -> None:
    future = client.submit(os._exit, 1, retries=1)
    with pytest.raises(WorkerLost):
        future.result(60)
    assert client.submit(abs, -1).result(60) == 1


def test_a_task_past_its_time_limit_is_stopped(client: Client) -> None:
    with pytest.raises(TaskTimedOut):
        client.submit(time.sleep, 60, timeout=0.2).result(60)
    assert client.submit(abs, -1).result(60) == 1


def test_a_task_that_cannot_be_interrupted_loses_its_worker(client: Client, host: StandIn) -> None:
    def deaf() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        time.sleep(60)

    with pytest.raises(TaskTimedOut, match="worker was killed"):
        client.submit(deaf, timeout=0.2).result(60)
    assert client.submit(abs, -1).result(60) == 1


def test_a_waiting_task_can_be_cancelled_and_a_running_one_only_by_force(client: Client, host: StandIn) -> None:
    host.workers_max = 1
    running = client.submit(time.sleep, 60)
    wait_until(running.running)
    waiting = client.submit(abs, -1)
    assert waiting.cancel() and waiting.cancelled()
    assert not running.cancel()
    assert concurrent.futures.wait([waiting], 5).done == {waiting}
    beside = client.submit(abs, -2)
    assert client.cancel(running, force=True)
    with pytest.raises(TaskCancelled):
        running.result(60)
    assert beside.result(60) == 2


def test_higher_priority_goes_first(client: Client, host: StandIn, tmp_path: Path) -> None:
    host.workers_max = 1
    gate = tmp_path / "gate"

    def wait_for(path: str) -> None:
        until = time.monotonic() + 20
        while not Path(path).exists() and time.monotonic() < until:
            time.sleep(0.005)

    first = client.submit(wait_for, str(gate))
    wait_until(first.running)
    order: list[str] = []
    low = client.submit(abs, -1, priority=10)
    high = client.submit(abs, -2, priority=90)
    low.add_done_callback(lambda _: order.append("low"))
    high.add_done_callback(lambda _: order.append("high"))
    gate.touch()
    concurrent.futures.wait([low, high], 20)
    wait_until(lambda: len(order) == 2)
    assert order == ["high", "low"]


def test_idle_workers_are_given_back(host: StandIn) -> None:
    with Client(host.url, host.token, keep_alive_s=0.05) as client:
        assert client.submit(abs, -1).result(60) == 1
        wait_until(lambda: not host.leases)
        assert client.submit(abs, -2).result(60) == 2


def test_a_lease_whose_grant_was_lost_with_a_server_is_given_back(client: Client, host: StandIn) -> None:
    asked = []

    def allocations(_body: dict[str, Any], _query: dict[str, str]) -> dict[str, Any]:
        asked.append(None)
        if len(asked) == 1:
            raise BadRequest("not this time")
        (session_id,) = host.sessions
        return {"allocations": [{"owner": {"session_id": session_id, "lease_id": "lost"}}]}

    host.routes["GET", "/api/allocations"] = allocations
    host.lease_error = ActorDown("died before it answered")
    future = client.submit(abs, -1)
    wait_until(lambda: bool(host.lease_requests))
    host.lease_error = None
    assert future.result(60) == 1
    wait_until(lambda: any(verb == "DELETE" and path.endswith("/leases/lost") for verb, path in host.requests))


def test_different_resources_get_workers_of_their_own(client: Client, host: StandIn) -> None:
    client.submit(abs, -1).result(60)
    client.submit(abs, -1, gpus=0.25, gpu_memory="2GiB", env={"COLOUR": "blue"}).result(60)
    asked = host.lease_requests[-1]
    assert (asked["gpus"], asked["gpu_memory_bytes"], asked["env"]) == (0.25, "2GiB", {"COLOUR": "blue"})


def test_a_lane_without_workers_gets_room_from_an_idle_one(host: StandIn) -> None:
    host.workers_max = 1
    with Client(host.url, host.token, keep_alive_s=60) as client:
        assert client.submit(abs, -1).result(60) == 1
        assert client.submit(abs, -2, gpus=1).result(60) == 2


def test_what_no_host_has_is_refused_at_once(client: Client, host: StandIn) -> None:
    host.lease_error = TooManyGpus("64 GPUs do not exist", asked="64", found="8")
    with pytest.raises(TooManyGpus, match="do not exist"):
        client.submit(abs, -1, gpus=64).result(60)
    host.lease_error = None
    assert client.submit(abs, -1).result(60) == 1


def test_tasks_go_on_while_the_door_is_closed(client: Client, host: StandIn) -> None:
    assert client.submit(abs, -1).result(60) == 1
    host.shut()
    assert [f.result(60) for f in [client.submit(abs, -n) for n in range(100)]] == list(range(100))
    host.open()
    assert client.submit(abs, -2).result(60) == 2


def test_an_unknown_session_is_opened_anew_and_its_tasks_run_again(
    client: Client, host: StandIn, tmp_path: Path
) -> None:
    gate = str(tmp_path / "gate")

    def wait_for(path: str) -> str:
        until = time.monotonic() + 20
        while not Path(path).exists() and time.monotonic() < until:
            time.sleep(0.005)
        return "done"

    future = client.submit(wait_for, gate)
    wait_until(future.running)
    for worker in list(host.leases.values()):
        worker.stop()
    host.leases.clear()
    host.sessions.clear()
    wait_until(lambda: len(host.sessions) == 1 and future.running())
    Path(gate).touch()
    assert future.result(30) == "done"


def test_closing_cancels_what_is_unfinished_and_returns_everything(host: StandIn) -> None:
    client = Client(host.url, host.token)
    future = client.submit(time.sleep, 60)
    wait_until(future.running)
    client.close()
    assert future.cancelled()
    assert not host.sessions
    with pytest.raises(HostUnreachable, match="closed"):
        client.submit(abs, -1)
    client.close()


def test_what_tasks_print_is_shown_with_their_names(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    def greet() -> None:
        print("hello\nthere")

    client.submit(greet).result(60)
    shown = ""

    def seen() -> bool:
        nonlocal shown
        shown += capsys.readouterr().out
        return "there" in shown

    wait_until(seen)
    assert "(greet w" in shown and ") hello\n" in shown


def test_an_unpicklable_function_is_refused_by_name(client: Client) -> None:
    lock = threading.Lock()

    def uses_lock() -> None:
        lock.acquire()

    with pytest.raises(UnpicklableFunction, match="variable 'lock' of uses_lock"):
        client.submit(uses_lock)
    with pytest.raises(UnpicklableFunction, match="argument 0 → item 0"):
        client.submit(len, [lock])
    future = client.submit(abs, -1)
    with pytest.raises(UnpicklableFunction, match="pass it as an argument of a session task"):
        client.submit(lambda: future)


def test_too_much_for_one_task_is_refused(client: Client) -> None:
    with pytest.raises(UnpicklableFunction, match="too much"):
        client.submit(len, b"x" * (65 * 2**20))


def test_large_arguments_and_results_get_through(client: Client) -> None:
    data = os.urandom(5 * 2**20)
    assert client.submit(lambda raw: raw[::-1], data).result(60) == data[::-1]


def test_a_result_that_cannot_be_pickled_says_so(client: Client) -> None:
    with pytest.raises(UnpicklableResult):
        client.submit(threading.Lock).result(60)


def test_a_changed_global_is_seen_by_the_next_submit(client: Client) -> None:
    scope: dict[str, object] = {"__name__": "__main__"}
    exec("factor = 2\ndef scale(x): return x * factor", scope)
    scale = scope["scale"]
    assert client.submit(scale, 10).result(60) == 20  # type: ignore[arg-type]
    scope["factor"] = 3
    assert client.submit(scale, 10).result(60) == 30  # type: ignore[arg-type]


def test_more_functions_than_a_worker_remembers(client: Client) -> None:
    functions = [eval(f"lambda: {number}") for number in range(300)]
    for _ in range(2):
        assert [f.result(60) for f in [client.submit(fn) for fn in functions]] == list(range(300))


def test_a_wrong_option_is_named_with_the_right_one(client: Client) -> None:
    with pytest.raises(BadRequest, match="did you mean gpus"):
        client.submit(abs, -1, gpu=1)
    with pytest.raises(BadRequest, match="priority"):
        client.submit(abs, -1, priority=101)


def test_a_machine_that_is_no_host_hears_what_to_do_where_its_host_does_not_relay(
    host: StandIn, client: Client
) -> None:
    lease = host._lease
    host._lease = lambda session_id, body: {**lease(session_id, body), "socket_path": "/no/such/machine/w1"}  # type: ignore[method-assign]
    host.routes["GET", "/api/relay"] = _of_the_version_before
    with pytest.raises(NotSupported, match="durable=True"):
        client.submit(refuse_odd, 2).result(30)
    wait_until(lambda: not host.leases)


def _of_the_version_before(_body: Any, _query: dict[str, str]) -> Any:
    raise NotFound("there is no such path")


def test_a_poisoned_task_is_given_up_after_its_retries_and_harms_no_other(client: Client, tmp_path: Path) -> None:
    def poisoned(folder: str) -> None:
        Path(folder, str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGSEGV)

    good = [client.submit(divmod, number, 7) for number in range(200)]
    poison = client.submit(poisoned, str(tmp_path), retries=2)
    good += [client.submit(divmod, number, 7) for number in range(200, 400)]
    with pytest.raises(WorkerLost, match="no retry is left"):
        poison.result(60)
    met = len(os.listdir(tmp_path))
    # A worker that dies within a millisecond of its last result takes that along: then the death is taken for that of
    # the task before, which loses a try in place of this one.
    assert 3 <= met <= 6, "each try met another worker, and there was an end to it"
    assert [future.result(60) for future in good] == [divmod(number, 7) for number in range(400)]
    assert list(client.map(abs, range(20))) == list(range(20)), "and the workers of now go on"
    assert len(os.listdir(tmp_path)) == met
