"""Large values of session tasks in the object store: with the real workers and the real store, behind a small door."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorgrid
from actorgrid.client.client import Client
from actorgrid.errors import (
    BadRequest,
    NotSupported,
    ObjectLost,
    ObjectStoreFull,
    UnpicklableFunction,
    UnpicklableResult,
    WorkerLost,
)
from tests.client.stand_in import StandIn, wait_until
from tests.objects.rig import MIB, StoreProcess

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    store = StoreProcess(tmp_path_factory.mktemp("store"), 256 * MIB, 512 * MIB)
    yield store
    store.close()


@pytest.fixture(scope="module")
def door(store: StoreProcess) -> Iterator[StandIn]:
    door = StandIn(objects=store.path)
    yield door
    door.close()


@pytest.fixture
def client(door: StandIn) -> Iterator[Client]:
    client = Client(door.url, door.token)
    yield client
    client.close()


def there(client: Client) -> dict[str, Any]:
    """What the client's session has in the store."""
    assert client._session is not None
    space = client._session.objects()
    assert space is not None
    (found,) = space.look()["spaces"]
    return dict(found)


def array(size: int, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def test_a_large_result_stays_where_it_was_made_and_comes_without_a_copy(client: Client) -> None:
    future = client.submit(array, 5 * MIB)
    wait_until(future.done)
    assert there(client)["count"] == 1
    found = future.result(20)
    assert np.array_equal(found, array(5 * MIB)) and not found.flags.writeable and not found.flags.owndata


def test_a_small_result_comes_along(client: Client) -> None:
    found = client.submit(array, MIB - 4096).result(20)
    assert found.flags.writeable and there(client)["count"] == 0


def test_values_of_any_size_go_to_tasks_and_come_back(client: Client) -> None:
    made = array(80 * MIB)
    assert client.submit(np.array_equal, made, client.submit(array, 80 * MIB)).result(60) is True
    text = b"x" * (70 * MIB)
    assert client.submit(len, text).result(60) == len(text)
    assert client.submit(lambda: {"a": [b"y" * (70 * MIB)]}).result(60)["a"][0] == b"y" * (70 * MIB)


def test_a_future_is_passed_on_without_its_value_coming_here(client: Client) -> None:
    first = client.submit(array, 5 * MIB)
    second = client.submit(lambda a: a[::-1].copy(), first)
    third = client.submit(lambda parts: int(parts["x"][0][0]), {"x": [second, first]})
    assert third.result(20) == int(array(5 * MIB)[-1])
    assert not first.is_unfolded() and first._in_store is not None and len(first._in_store.body) < 500


def test_a_kept_result_that_was_looked_at_is_passed_on_by_reference(client: Client) -> None:
    first = client.submit(array, 5 * MIB)
    first.result(20)
    before = there(client)["count"]
    assert client.submit(len, first).result(20) == 5 * MIB
    assert there(client)["count"] == before


def test_a_reference_stands_for_its_value_at_any_depth(client: Client) -> None:
    ref = client.put(array(3 * MIB))
    assert client.submit(len, ref).result(20) == 3 * MIB
    nested = client.submit(lambda tree: [type(each).__name__ for each in tree["a"][0]], {"a": [(ref, [ref], 5)]})
    assert nested.result(20) == ["ndarray", "list", "int"]
    assert client.submit(lambda *, a: a.nbytes, kwargs={"a": ref}).result(20) == 3 * MIB
    assert client.get(ref)[7] == array(3 * MIB)[7] and client.get([ref, ref])[1][7] == client.get(ref)[7]


def test_small_values_go_along_with_their_references(client: Client) -> None:
    ref = client.put({"a": 1})
    assert ref.result() == {"a": 1} and there(client)["count"] == 0
    assert client.submit(lambda a, b: (a, b), ref, [ref]).result(20) == ({"a": 1}, [{"a": 1}])
    assert client.submit(lambda: ref.result()).result(20) == {"a": 1}


def test_a_captured_reference_and_one_passed_as_itself_arrive_as_references(client: Client) -> None:
    ref = client.put(array(3 * MIB))
    kind, first = client.submit(lambda r: (type(r).__name__, int(r.result()[0])), ref.itself).result(20)
    assert (kind, first) == ("Ref", array(3 * MIB)[0])
    future = client.submit(lambda: int(ref.result()[1]))
    assert future.result(20) == array(3 * MIB)[1]


def test_a_reference_that_only_a_function_captures_is_kept_for_its_call(client: Client) -> None:
    gate = client.submit(time.sleep, 0.2)
    future = (lambda ref: client.submit(lambda _: int(ref.result()[1]), gate))(client.put(array(3 * MIB)))
    gc.collect()
    assert future.result(20) == array(3 * MIB)[1]


def test_an_argument_to_many_tasks_is_put_once(client: Client) -> None:
    ref = client.put(array(8 * MIB))
    futures = [client.submit(lambda a, i: (int(a[i]), a.flags.owndata), ref, i) for i in range(8)]
    assert [future.result(20) for future in futures] == [(int(array(8 * MIB)[i]), False) for i in range(8)]
    assert there(client)["count"] == 1


def test_what_nobody_refers_to_is_freed(client: Client) -> None:
    futures = [client.submit(array, 4 * MIB, seed) for seed in range(5)]
    kept = futures[0].result(20)
    ref = client.put([array(2 * MIB), client.put(array(2 * MIB))])
    assert there(client)["count"] >= 3
    for future in futures:
        future.result(20)
    del futures, future, ref
    gc.collect()
    wait_until(lambda: there(client)["count"] == 1)
    assert np.array_equal(kept, array(4 * MIB, 0))


def test_a_value_is_freed_with_its_future_and_not_only_when_the_collector_comes(client: Client) -> None:
    client.submit(abs, -1).result(20)
    gc.collect()
    gc.disable()
    try:
        for seed in range(3):
            assert len(client.submit(array, 4 * MIB, seed).result(20)) == 4 * MIB
        client.submit(lambda: 1 / 0).exception(20)
        wait_until(lambda: there(client)["count"] == 0)
    finally:
        gc.enable()


def test_arguments_are_freed_when_their_task_is_done_or_fails_or_is_cancelled(client: Client) -> None:
    done = client.submit(len, array(4 * MIB))
    failed = client.submit(lambda a: a["no"], array(4 * MIB))
    gate = client.submit(time.sleep, 0.2)
    cancelled = client.submit(lambda a, _: a, array(4 * MIB), gate)
    assert cancelled.cancel()
    assert done.result(20) == 4 * MIB and failed.exception(20) is not None
    gate.result(20)
    wait_until(lambda: there(client)["count"] == 0)


def test_a_result_that_nobody_waits_for_any_more_is_freed(client: Client) -> None:
    client.submit(array, 4 * MIB)
    client.submit(abs, -1).result(20)
    wait_until(lambda: (gc.collect(), there(client)["count"] == 0)[1])


def test_references_in_results_arrive_as_references_and_keep_their_objects(client: Client) -> None:
    def make() -> Any:
        inside = actorgrid.connect()
        return {"refs": [inside.put(array(2 * MIB, seed)) for seed in range(3)]}

    ref = client.put(array(2 * MIB, 9))
    found = client.submit(lambda r: {"refs": [r]}, ref.itself).result(20)
    del ref
    gc.collect()
    assert isinstance(found["refs"][0], actorgrid.Ref)
    assert np.array_equal(found["refs"][0].result(), array(2 * MIB, 9))
    assert make is not None


def test_references_in_a_put_value_keep_their_objects(client: Client) -> None:
    outer = client.put({"inner": [client.put(array(2 * MIB, 4))]})
    gc.collect()
    assert np.array_equal(outer.result()["inner"][0].result(), array(2 * MIB, 4))
    del outer
    wait_until(lambda: (gc.collect(), there(client)["count"] == 0)[1])


def test_a_task_that_keeps_a_reference_keeps_the_object(client: Client) -> None:
    def keep(ref: Any) -> int:
        os.kept = ref  # type: ignore[attr-defined]
        return os.getpid()

    def kept() -> int | None:
        return int(os.kept.result()[3]) if hasattr(os, "kept") else None  # type: ignore[attr-defined]

    def forget() -> bool:
        found = hasattr(os, "kept")
        if found:
            del os.kept  # type: ignore[attr-defined]
        return found

    def of_all(asked: Any) -> list[Any]:
        """Of every worker that there is by now: those that came up late changed what an affinity leads to."""
        return [one.result(20) for one in [client.options(affinity=str(n)).submit(asked) for n in range(32)]]

    ref = client.put(array(2 * MIB, 6))
    client.submit(keep, ref.itself).result(20)
    del ref
    gc.collect()
    wait_until(lambda: array(2 * MIB, 6)[3] in of_all(kept))
    wait_until(lambda: any(of_all(forget)))
    wait_until(lambda: there(client)["count"] == 0)


def test_cyclic_structures_with_references_go_both_ways(client: Client) -> None:
    ref = client.put(array(2 * MIB))
    loop: list[Any] = [ref, {"again": ref}]
    loop.append(loop)
    found = client.submit(lambda a: (a[0].nbytes, a[2] is a, a[1]["again"].nbytes), loop).result(20)
    assert found == (2 * MIB, True, 2 * MIB)

    def make(r: Any) -> Any:
        made: list[Any] = [r, np.zeros(2 * MIB, np.uint8)]
        made.append(made)
        return made

    back = client.submit(make, ref.itself).result(20)
    assert back[2] is back and isinstance(back[0], actorgrid.Ref)
    weak = weakref.ref(back[0])
    del back
    gc.collect()
    assert weak() is None


def test_streams_give_values_of_any_size(client: Client) -> None:
    stream = client.stream(lambda: (np.full(3 * MIB, k, np.uint8) for k in range(6)), window=2)
    assert [int(item[-1]) for item in stream] == list(range(6))
    wait_until(lambda: (gc.collect(), there(client)["count"] == 0)[1])


def test_a_stream_that_is_left_keeps_nothing(client: Client) -> None:
    stream = client.stream(lambda: (np.full(3 * MIB, k, np.uint8) for k in range(50)), window=4)
    next(stream)
    stream.close()
    del stream
    wait_until(lambda: (gc.collect(), there(client)["count"] == 0)[1])


def test_results_of_a_worker_that_died_since_are_still_there(client: Client, door: StandIn) -> None:
    future = client.submit(lambda: (os.getpid(), array(3 * MIB)))
    wait_until(future.done)
    with pytest.raises(WorkerLost):
        client.submit(os._exit, 3, retries=0).result(20)
    assert np.array_equal(future.result(20)[1], array(3 * MIB))


def test_a_task_whose_worker_dies_is_run_again_with_its_large_arguments(client: Client, tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def die_once(a: Any) -> int:
        if not mark.exists():
            mark.touch()
            os._exit(1)
        return int(a[5])

    assert client.submit(die_once, array(3 * MIB)).result(30) == array(3 * MIB)[5]


def test_results_are_readable_after_the_client_was_closed_and_references_are_not(door: StandIn) -> None:
    client = Client(door.url, door.token)
    future, ref = client.submit(array, 3 * MIB), client.put(array(3 * MIB))
    wait_until(future.done)
    client.close()
    assert np.array_equal(future.result(), array(3 * MIB))
    with pytest.raises(ObjectLost):
        ref.result()


def test_references_are_awaited_and_async_clients_put(door: StandIn) -> None:
    async def main() -> int:
        async with actorgrid.AsyncClient(Client(door.url, door.token)) as client:
            ref = await client.put(array(3 * MIB))
            small = await client.put(5)
            value = await ref
            return int(value[2]) + await small

    assert asyncio.run(main()) == int(array(3 * MIB)[2]) + 5


def test_what_put_and_get_refuse(client: Client) -> None:
    ref = client.put(1)
    for wrong in (ref, client.submit(abs, -1)):
        with pytest.raises(BadRequest, match="has its value already"):
            client.put(wrong)
    with pytest.raises(BadRequest, match="takes references"):
        client.get(5)
    with pytest.raises(UnpicklableFunction, match=r"key .lock."):
        client.put({"lock": threading.Lock()})
    with pytest.raises(ObjectStoreFull):
        client.put(np.zeros(600 * MIB, np.uint8))
    with pytest.raises(ObjectStoreFull):
        client.submit(lambda: np.zeros(600 * MIB, np.uint8)).result(30)


def test_without_a_store_values_go_as_before(host: StandIn) -> None:
    with Client(host.url, host.token) as client:
        assert client.submit(array, 3 * MIB).result(20).flags.writeable
        assert client.submit(len, array(3 * MIB)).result(20) == 3 * MIB
        assert client.put(7).result() == 7
        with pytest.raises(NotSupported, match="no object store"):
            client.put(array(3 * MIB))
        with pytest.raises(UnpicklableFunction, match="too much"):
            client.submit(len, b"x" * (65 * MIB))
        with pytest.raises(UnpicklableResult):
            client.submit(lambda: b"x" * (65 * MIB)).result(20)


def test_a_large_function_is_kept_too(client: Client) -> None:
    captured = array(70 * MIB)

    def use() -> int:
        return int(captured[-1])

    assert client.submit(use).result(60) == client.submit(use).result(60) == captured[-1]
    assert there(client)["count"] == 1


def test_a_hundred_thousand_references_go_to_a_task(client: Client) -> None:
    refs = [client.put(number) for number in range(100_000)]
    assert client.submit(sum, refs).result(120) == sum(range(100_000))


def test_objects_are_lost_with_their_store_and_say_so(tmp_path: Path) -> None:
    store = StoreProcess(tmp_path)
    door = StandIn(objects=store.path)
    try:
        with Client(door.url, door.token) as client:
            future, ref = client.submit(array, 3 * MIB), client.put(array(3 * MIB))
            wait_until(future.done)
            store.kill()
            store.start()
            for lost in (future, ref):
                with pytest.raises(ObjectLost, match="started again"):
                    lost.result()
            with pytest.raises(ObjectLost):
                client.submit(len, ref).result(20)
            assert np.array_equal(client.submit(array, 3 * MIB).result(20), array(3 * MIB))
            assert len(client.put(array(3 * MIB)).result()) == 3 * MIB
    finally:
        door.close()
        store.close()


def test_a_reference_says_what_it_is(client: Client) -> None:
    ref = client.put(array(3 * MIB))
    assert repr(ref).startswith("<Ref ") and ref.size_bytes > 3 * MIB and ref.object_id in repr(ref)
    assert pickle.loads(pickle.dumps(ref)).object_id == ref.object_id


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[tuple[StoreProcess, Client]]:
    """A store to be killed, and a client whose values are in it."""
    store = StoreProcess(tmp_path)
    door = StandIn(objects=store.path)
    client = Client(door.url, door.token)
    yield store, client
    client.close()
    door.close()
    store.close()


def begun_again(store: StoreProcess) -> None:
    store.kill()
    store.start()


def counted(path: Path, seed: int, *inputs: Any) -> np.ndarray[Any, Any]:
    """A pure function, but for a mark of each call."""
    with path.open("a") as file:
        file.write(f"{seed}\n")
    return array(2 * MIB, seed + sum(int(each[0]) for each in inputs))


def calls(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]


def test_a_lost_value_of_a_pure_task_is_made_again_when_it_is_asked_for(
    mortal: tuple[StoreProcess, Client], tmp_path: Path
) -> None:
    store, client = mortal
    log = tmp_path / "calls"
    future = client.submit(counted, log, 3, pure=True)
    wait_until(future.done)
    begun_again(store)
    assert np.array_equal(future.result(), array(2 * MIB, 3))
    assert calls(log) == [3, 3]
    assert np.array_equal(future.result(), array(2 * MIB, 3)) and calls(log) == [3, 3]


def test_what_a_lost_value_came_of_is_made_again_with_it_and_only_then(
    mortal: tuple[StoreProcess, Client], tmp_path: Path
) -> None:
    store, client = mortal
    log, pure = tmp_path / "calls", client.options(pure=True)
    first = pure.submit(counted, log, 1)
    last = pure.submit(counted, log, 2, first)
    expected = last.result().copy()
    del first  # the intermediate value is freed; how it came to be is kept
    wait_until(lambda: (gc.collect(), there(client)["count"] == 1)[1])
    chain = pure.submit(counted, log, 5, last)
    wait_until(chain.done)
    begun_again(store)
    assert int(chain.result()[0]) == int(array(2 * MIB, 5 + int(expected[0]))[0])
    assert calls(log) == [1, 2, 5, 1, 2, 5]


def test_a_task_whose_inputs_were_lost_gets_them_made_again(
    mortal: tuple[StoreProcess, Client], tmp_path: Path
) -> None:
    store, client = mortal
    log, pure = tmp_path / "calls", client.options(pure=True)
    inputs = [pure.submit(counted, log, seed) for seed in (1, 2)]
    for future in inputs:
        wait_until(future.done)
    begun_again(store)
    used = client.submit(lambda parts: [int(each[0]) for each in parts], inputs)
    assert used.result(60) == [int(array(2 * MIB, seed)[0]) for seed in (1, 2)]
    assert sorted(calls(log)) == [1, 1, 2, 2]


def test_many_tasks_that_lack_one_lost_value_have_it_made_again_once(
    mortal: tuple[StoreProcess, Client], tmp_path: Path
) -> None:
    store, client = mortal
    log, kept = tmp_path / "calls", array(2 * MIB, 9)
    lost = client.submit(counted, log, 1, pure=True)
    wait_until(lost.done)
    begun_again(store)
    used = [client.submit(lambda part, n: int(part[0]) + n, lost, n) for n in range(20)]
    expected = int(array(2 * MIB, 1)[0])
    assert [each.result(60) for each in used] == [expected + n for n in range(20)]
    assert client.submit(lambda part: int(part[0]), lost).result(60) == expected
    assert np.array_equal(lost.result(), array(2 * MIB, 1)) and calls(log) == [1, 1]
    # What came along with a call is kept for when it is called again, and lost with the store all the same.
    large = client.submit(lambda part: part + 1, kept, pure=True)
    wait_until(large.done)
    begun_again(store)
    with pytest.raises(ObjectLost):
        large.result()


def test_in_a_callback_a_lost_value_is_not_waited_for(mortal: tuple[StoreProcess, Client], tmp_path: Path) -> None:
    store, client = mortal
    lost = client.submit(counted, tmp_path / "calls", 1, pure=True)
    wait_until(lost.done)
    begun_again(store)
    found: list[BaseException | None] = []
    later = client.submit(int, 1)
    later.add_done_callback(lambda _: found.append(lost.exception()))
    assert later.result(60) == 1
    wait_until(lambda: len(found) == 1)
    assert found[0] is None or isinstance(found[0], ObjectLost)


def test_what_is_not_pure_is_lost_by_name_and_not_called_twice(
    mortal: tuple[StoreProcess, Client], tmp_path: Path
) -> None:
    store, client = mortal
    log = tmp_path / "calls"
    impure = client.submit(counted, log, 1)
    pure = client.submit(counted, log, 2, impure, pure=True)
    wait_until(pure.done)
    begun_again(store)
    with pytest.raises(ObjectLost, match="started again"):
        impure.result()
    with pytest.raises(ObjectLost, match="not made by a pure one"):
        pure.result()
    with pytest.raises(ObjectLost):
        client.submit(len, impure).result(60)
    assert calls(log) == [1, 2]


def test_a_pure_task_that_fails_when_it_is_called_again_fails_who_asks(
    mortal: tuple[StoreProcess, Client], tmp_path: Path
) -> None:
    store, client = mortal
    mark = tmp_path / "mark"

    def once() -> Any:
        mark.touch(exist_ok=False)
        return array(2 * MIB)

    future = client.submit(once, pure=True)
    wait_until(future.done)
    begun_again(store)
    dependent = client.submit(len, future)
    assert isinstance(dependent.exception(60), FileExistsError)
    with pytest.raises(FileExistsError):
        future.result()
    with pytest.raises(BadRequest, match="session tasks"):
        client.submit(abs, 1, pure=True, durable=True)
