"""Actors of the user's: over the real worker code, on a small stand-in of a host."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid.client.actor_links import links
from actorgrid.client.client import Client
from actorgrid.errors import (
    ActorDied,
    ActorRestarted,
    BadRequest,
    NotSupported,
    OutsideTask,
    TaskCancelled,
    TaskFailed,
    TaskTimedOut,
    WorkerLost,
)
from actorgrid.task_context import CHECKPOINT_FROM
from tests.client.stand_in import StandIn, wait_until


@actorgrid.actor(cpus=0.5)
class Counter:
    """Counts, and remembers who asked."""

    def __init__(self, start: int = 0) -> None:
        self.total = start
        self.seen: list[Any] = []

    def add(self, by: int = 1, *, times: int = 1) -> int:
        self.total += by * times
        return self.total

    def note(self, what: object) -> None:
        self.seen.append(what)

    def notes(self) -> list[Any]:
        return self.seen

    def pid(self) -> int:
        return os.getpid()

    def fail(self) -> None:
        raise KeyError("nothing there")

    def wait_for(self, path: str) -> str:
        Path(path + ".begun").touch()
        wait_until(lambda: os.path.exists(path), 60.0)
        return path

    def forever(self) -> None:
        threading.Event().wait()

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def me(self) -> Any:
        return actorgrid.current_actor()

    def unpicklable(self) -> Any:
        return threading.Lock()


class Gate:
    """Lets those through that wait, when it is opened."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.order: list[int] = []

    async def wait(self, number: int) -> int:
        self.order.append(number)
        await self.is_open.wait()
        return number

    async def open(self) -> list[int]:
        self.is_open.set()
        return self.order

    async def sleep_on(self) -> None:
        await asyncio.sleep(3600)

    def plain(self) -> str:
        return threading.current_thread().name


@pytest.fixture(scope="module")
def shared_host() -> Iterator[StandIn]:
    host = StandIn(workers_max=6)
    yield host
    host.close()


@pytest.fixture
def client(shared_host: StandIn) -> Iterator[Client]:
    client = Client(shared_host.url, shared_host.token)
    yield client
    client.close()
    while shared_host.leases:  # a real host ends them with their session
        shared_host.leases.popitem()[1].stop()


def add_elsewhere(counter: Any, by: int) -> int:
    total: int = counter.add(by).result(30)
    return total


# -- calls


def test_methods_give_futures_and_keep_state(client: Client) -> None:
    counter = Counter.on(client).create(5)
    assert counter.add(2).result(30) == 7
    assert counter.add(by=1, times=3).result(30) == 10
    assert counter.call(Counter.cls.add, 5).result(30) == 15
    assert counter.ready().result(30) is None
    assert counter.pid().result(30) != os.getpid()
    assert asyncio.run(_awaited(counter)) == 16


async def _awaited(counter: Any) -> int:
    total: int = await counter.add()
    return total


def test_a_decorated_class_still_makes_objects_here_and_can_be_a_base() -> None:
    class Twice(Counter):  # type: ignore[misc, valid-type]
        def add(self, by: int = 1, *, times: int = 1) -> int:
            return super().add(by, times=2 * times)

    assert Counter(3).add(4) == 7
    assert Twice(0).add(2) == 4


def test_what_a_method_raises_is_raised_by_its_own_type_and_does_no_harm(client: Client) -> None:
    counter = Counter.on(client).create()
    with pytest.raises(KeyError, match="nothing there") as caught:
        counter.fail().result(30)
    assert isinstance(caught.value, TaskFailed) and "in fail" in caught.value.remote_traceback
    with pytest.raises(ActorDied, match="it could not be begun"):
        Counter.on(client).create(start=1, oops=2).ready().result(30)  # type: ignore[call-arg]
    with pytest.raises(actorgrid.ActorGridError, match="cannot be pickled"):
        counter.unpicklable().result(30)
    with pytest.raises(AttributeError, match="did you mean add"):
        counter.ad()
    assert counter.add().result(30) == 1


def test_calls_of_one_caller_begin_in_their_order(client: Client) -> None:
    counter = Counter.on(client).create()
    late = client.submit(time.sleep, 0.05)
    futures = [counter.note(late if number == 10 else number) for number in range(3000)]
    assert [future.result(30) for future in futures] == [None] * 3000
    assert counter.notes().result(30) == [None if number == 10 else number for number in range(3000)]


@pytest.mark.system
def test_many_callers_each_in_order(client: Client) -> None:
    counter = Counter.on(client).create()

    def call(name: int) -> None:
        for number in range(300):
            counter.note((name, number))

    threads = [threading.Thread(target=call, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    notes = counter.notes().result(30)
    for name in range(4):
        assert [number for who, number in notes if who == name] == list(range(300))
    totals = client.map(add_elsewhere, [counter] * 4, [1] * 4)
    assert sorted(totals) == [1, 2, 3, 4]


def test_futures_among_the_arguments_stand_for_their_values(client: Client) -> None:
    counter = Counter.on(client).create(client.submit(pow, 2, 3))
    assert counter.add(client.submit(pow, 2, 2)).result(30) == 12
    assert client.submit(sum, [counter.add(), counter.add()]).result(30) == 27
    counter.note([counter.add(0)])
    assert counter.notes().result(30) == [[14]]
    with pytest.raises(ZeroDivisionError):
        counter.add(client.submit(divmod, 1, 0)).result(30)
    assert counter.add().result(30) == 15


# -- handles


@pytest.mark.system
def test_handles_work_in_tasks_and_in_other_actors(client: Client) -> None:
    counter = Counter.on(client).create()
    assert client.submit(add_elsewhere, counter, 5).result(30) == 5
    other = Counter.on(client).create()
    other.note(counter)
    (found,) = other.notes().result(30)
    assert found == counter and found.add().result(30) == 6
    assert counter.me().result(30) == counter
    with pytest.raises(OutsideTask):
        actorgrid.current_actor()


def test_a_forked_child_calls_over_a_connection_of_its_own(client: Client) -> None:
    counter = Counter.on(client).create()
    assert counter.add().result(30) == 1
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(add_elsewhere, (counter, 2)) == 3
    assert counter.add().result(30) == 4


@pytest.mark.system
def test_it_ends_with_its_last_handle_unless_that_was_passed_on(client: Client, shared_host: StandIn) -> None:
    counter = Counter.on(client).create()
    future = counter.pid()
    del counter
    gc.collect()
    pid = future.result(30)
    wait_until(lambda: not _is_alive(pid))
    kept = Counter.on(client).create()
    reference = pickle.dumps(kept)
    pid = kept.pid().result(30)
    del kept
    gc.collect()
    assert pickle.loads(reference).pid().result(30) == pid


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# -- ends


def test_stop_lets_it_finish_what_it_was_asked_before(client: Client) -> None:
    with Counter.on(client).create() as counter:
        futures = [counter.add() for _ in range(500)]
    assert futures[-1].result(30) == 500
    with pytest.raises(ActorDied, match="it was stopped"):
        counter.add().result(30)
    never = Counter.on(client).create()
    never.stop(force=True)
    with pytest.raises(ActorDied):
        never.add().result(30)


def test_stop_by_force_ends_what_runs(client: Client) -> None:
    counter = Counter.on(client).create()
    counter.ready().result(30)
    future = counter.forever()
    wait_until(future.running)
    with pytest.raises(NotSupported):
        client.submit(lambda handle: handle.stop(force=True), counter).result(30)
    counter.stop(force=True)
    with pytest.raises(ActorDied, match="stopped by force"):
        future.result(30)


@pytest.mark.system
def test_closing_the_client_ends_its_actors_and_tells_who_holds_their_handles(
    client: Client, shared_host: StandIn
) -> None:
    counter = Counter.on(client).create()
    client.submit(add_elsewhere, counter, 1).result(30)
    reference = pickle.dumps(counter)
    with Client(shared_host.url, shared_host.token) as other:
        waits = other.submit(_hold, reference)
        client.close()
        with pytest.raises(ActorDied):
            counter.add().result(30)
        with pytest.raises(ActorDied, match="is no more"):
            waits.result(30)


def _hold(reference: bytes) -> None:
    handle = pickle.loads(reference)
    while True:
        handle.add().result(30)


def test_leaving_with_waits_for_calls_and_then_ends_actors(shared_host: StandIn) -> None:
    with Client(shared_host.url, shared_host.token) as client:
        counter = Counter.create()  # of the innermost client
        futures = [counter.add() for _ in range(50)]
        task = client.submit(add_elsewhere, counter, 1)
    assert futures[-1].result(0) == 50 or futures[-1].result(0) == 51
    assert task.result(0)


def test_its_death_is_told_with_its_cause(client: Client) -> None:
    counter = Counter.on(client).create()
    with pytest.raises(ActorDied, match="it died: its worker died") as caught:
        counter.die().result(30)
    assert isinstance(caught.value, WorkerLost) and isinstance(caught.value.__cause__, WorkerLost)
    with pytest.raises(ActorDied, match="its worker died"):
        counter.add().result(30)


# -- restarts


def test_a_restart_fails_what_had_begun_and_sends_what_had_not(client: Client, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    counter = Counter.options(max_restarts=1).on(client).create(100)
    first = counter.pid().result(30)
    begun = counter.wait_for(gate)
    after = [counter.add() for _ in range(20)]
    wait_until(lambda: os.path.exists(gate + ".begun"))
    assert begun.running() and not after[0].running()
    os.kill(first, signal.SIGKILL)
    with pytest.raises(ActorRestarted, match="wait_for"):
        begun.result(30)
    assert [future.result(30) for future in after] == list(range(101, 121)), "a new one, to which all came in order"
    second = counter.pid().result(30)
    assert second != first
    os.kill(second, signal.SIGKILL)
    with pytest.raises(ActorDied) as caught:
        counter.add().result(30)
    assert not isinstance(caught.value, ActorRestarted)


def test_what_may_be_repeated_is_begun_again_in_its_place(client: Client, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    counter = Counter.options(max_restarts=1).on(client).create()
    pid = counter.pid().result(30)
    begun = counter.wait_for.options(retries=1)(gate)
    after = counter.add()
    wait_until(lambda: os.path.exists(gate + ".begun"))
    os.kill(pid, signal.SIGKILL)
    Path(gate).touch()
    assert begun.result(30) == gate and after.result(30) == 1


@pytest.mark.system
def test_who_holds_a_handle_elsewhere_goes_on_after_a_restart(client: Client) -> None:
    counter = Counter.options(max_restarts=1).on(client).create()
    other = Counter.on(client).create()
    assert client.submit(_add_over_a_restart, counter).result(30) == ("ActorRestarted", 1)
    assert client.submit(_add_over_a_restart, counter).result(30) == ("ActorDied", "ActorDied")
    assert other.add().result(30) == 1


def _add_over_a_restart(counter: Any) -> tuple[str, Any]:
    counter.add().result(30)
    try:
        counter.die().result(30)
    except ActorDied as error:
        try:
            return type(error).__name__, counter.add().result(30)
        except ActorDied as last:
            return type(error).__name__, type(last).__name__
    raise AssertionError("it did not die")


# -- limits, cancelling, concurrency


def test_a_method_past_its_limit_is_interrupted_and_the_actor_lives(client: Client) -> None:
    counter = Counter.on(client).create()
    with pytest.raises(TaskTimedOut):
        counter.forever.options(timeout=0.05)().result(30)
    handle = actorgrid.actor(Gate).on(client).create()
    with pytest.raises(TaskTimedOut):
        handle.sleep_on.options(timeout=0.05)().result(30)
    threaded = Counter.options(max_concurrency=2).on(client).create()
    with pytest.raises(TaskTimedOut):
        threaded.forever.options(timeout=0.05)().result(30)
    assert counter.add().result(30) == 1 and threaded.add().result(30) == 1


def test_calls_can_be_taken_back(client: Client, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    counter = Counter.on(client).create()
    waits = counter.add(client.submit(_until, gate))
    assert waits.cancel() and waits.cancelled()
    held, sent = counter.wait_for(gate), counter.add()
    wait_until(held.running)
    assert not sent.cancel() and sent.cancel(cooperative=True)
    Path(gate).touch()
    assert held.result(30) == gate
    with pytest.raises(TaskCancelled):
        sent.result(30)
    assert counter.add().result(30) == 1


def _until(path: str) -> int:
    wait_until(lambda: os.path.exists(path), 60.0)
    return 1


def test_coroutines_run_side_by_side_as_many_as_may(client: Client) -> None:
    gate = actorgrid.actor(max_concurrency=3)(Gate).on(client).create()
    waiting = [gate.wait(number) for number in range(2)]
    slow = gate.sleep_on()
    wait_until(slow.running)
    assert slow.cancel(cooperative=True)
    with pytest.raises(TaskCancelled):
        slow.result(30)
    assert gate.open().result(30) == [0, 1]
    assert [future.result(30) for future in waiting] == [0, 1]
    one_by_one = actorgrid.actor(Gate).on(client).create()
    first, second = one_by_one.wait(1), one_by_one.wait(2)
    wait_until(first.running)
    assert not second.running() and not second.done()
    assert first.cancel(cooperative=True)
    wait_until(second.running)


def test_other_methods_run_in_threads(client: Client, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    counter = Counter.options(max_concurrency=2).on(client).create()
    held = counter.wait_for(gate)
    assert [counter.add().result(30) for _ in range(50)][-1] == 50
    assert not held.done()
    Path(gate).touch()
    assert held.result(30) == gate
    counter.stop()


# -- checkpoints


class Tally:
    """Counts, and can go on from what it had."""

    def __init__(self) -> None:
        self.count = 0
        self.ballast = b""

    def add(self, by: int = 1) -> int:
        self.count += by
        return self.count

    def weigh(self, ballast: bytes) -> None:
        self.ballast = ballast

    def told(self) -> tuple[int, bytes, str]:
        return self.count, self.ballast, os.environ.get(CHECKPOINT_FROM, "")

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def save(self) -> Any:
        if self.count == 13:
            raise KeyError("thirteen")
        return self.count, self.ballast

    def load(self, state: Any) -> None:
        self.count, self.ballast = state
        if self.count == 12:
            raise ValueError("twelve")


@pytest.mark.parametrize("most", [1, 3])
def test_the_next_incarnation_goes_on_from_what_the_one_before_has_saved(client: Client, most: int) -> None:
    kept = actorgrid.actor(Tally).options(max_restarts=3, checkpoint_every=2, max_concurrency=most)
    tally = kept.on(client).create()
    assert [tally.add().result(30) for _ in range(3)] == [1, 2, 3]
    assert tally.die().exception(30) is not None
    assert tally.told.options(retries=1)().result(30) == (2, b"", "1"), "the third came behind the last one"
    # Several pieces; and what is entered once checkpoint() is done is there, whatever else was not.
    ballast = os.urandom(9_000_000)
    tally.weigh(ballast).result(30)
    told = tally.checkpoint().result(30)
    assert told.attempt_number == 2 and told.size_bytes > len(ballast)
    tally.add(10).result(30)
    tally.die().exception(30)
    assert tally.told.options(retries=1)().result(30) == (2, ballast, "2")
    # One that saves nothing before it dies leaves what there was.
    tally.die().exception(30)
    assert tally.told.options(retries=1)().result(30) == (2, ballast, "2")


def test_what_save_and_load_raise(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    kept = actorgrid.actor(Tally).options(max_restarts=3, checkpoint_every=0)
    tally = kept.on(client).create()
    tally.add(5).result(30)
    tally.checkpoint().result(30)
    tally.add(8).result(30)
    with pytest.raises(KeyError, match="thirteen"):
        tally.checkpoint().result(30)
    tally.die().exception(30)
    assert tally.told.options(retries=1)().result(30)[0] == 5
    tally.add(7).result(30)
    tally.checkpoint().result(30)
    tally.die().exception(30)
    with pytest.raises(ActorDied, match="twelve"):
        tally.told.options(retries=1)().result(30)
    with pytest.raises(NotSupported, match="keeps no checkpoints"):
        actorgrid.actor(Tally).on(client).create().checkpoint().result(30)


# -- bounds and refusals


def test_options_and_classes_that_cannot_be_are_refused() -> None:
    with pytest.raises(BadRequest, match="no option 'timeout'"):
        Counter.options(timeout=3)
    with pytest.raises(BadRequest, match="no option 'max_restart'"):
        actorgrid.actor(max_restart=3)
    with pytest.raises(BadRequest, match="max_concurrency is from 1"):
        Counter.options(max_concurrency=0)
    with pytest.raises(BadRequest, match="of a class"):
        actorgrid.actor(_until)  # type: ignore[type-var]

    class Stops:
        def stop(self) -> None:
            """What the handle has too."""

    with pytest.raises(BadRequest, match="of its own"):
        actorgrid.actor(Stops)
    for option, value in (("checkpoint_every", -1), ("checkpoint_every", 1.5), ("checkpoint_every_s", 0.1)):
        with pytest.raises(BadRequest, match=option):
            Counter.options(**{option: value})
    for detached in (False, True):
        with pytest.raises(BadRequest, match="save"):
            Counter.options(checkpoint_every=0, detached=detached).create()


def test_more_calls_than_may_be_unfinished_wait(client: Client, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    counter = Counter.options(max_pending=3).on(client).create()
    futures = [counter.wait_for(gate), counter.add(), counter.add()]
    fourth: list[int] = []
    thread = threading.Thread(target=lambda: fourth.append(counter.add().result(30)))
    thread.start()
    link = links.use(counter._reference).link
    wait_until(lambda: bool(link.room._waiters))  # type: ignore[attr-defined]
    Path(gate).touch()
    thread.join(30)
    assert fourth == [3] and futures[2].result(30) == 2


def test_a_worker_on_another_host_is_refused_by_name(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorgrid.client.owned_actors.ELSEWHERE_S", 0.0)
    monkeypatch.setattr(
        "actorgrid.client.owned_actors.OwnedActors._own_folder", lambda _: Path("/of/another/machine"), raising=True
    )
    with pytest.raises(ActorDied, match="got a worker on another") as caught:
        Counter.on(client).create().ready().result(30)
    assert isinstance(caught.value.__cause__, NotSupported)


def test_a_stranger_is_refused_before_anything_is_unpickled(client: Client) -> None:
    counter = Counter.on(client).create()
    counter.ready().result(30)
    forged = counter._reference._replace(actor_id="0" * 16, secret="wrong")
    with pytest.raises(ActorDied, match="not of this actor"):
        actorgrid.ActorHandle(forged).add().result(30)
    assert counter.add().result(30) == 1
