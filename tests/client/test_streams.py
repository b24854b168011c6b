"""Values of generators on workers, taken one after another."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import actorgrid
from actorgrid.client.async_client import AsyncClient
from actorgrid.client.client import Client
from actorgrid.client.task import pop_default, push_default
from actorgrid.errors import AmbiguousKeyword, BadRequest, TaskFailed, TaskTimedOut, UnpicklableResult, WorkerLost
from tests.client.stand_in import wait_until


def count_up(n: int, start: int = 0) -> Iterator[int]:
    yield from range(start, n)


async def count_later(n: int) -> AsyncIterator[int]:
    background = asyncio.get_running_loop().create_task(asyncio.sleep(60))
    for number in range(n):
        await asyncio.sleep(0)
        assert not background.done(), "what it began goes on between two values"
        yield number


def noted(folder: str) -> Iterator[int]:
    """Without end; leaves a mark for each value that it was asked for, and when it is closed."""
    try:
        for number in itertools.count():
            Path(folder, str(number)).touch()
            yield number
    finally:
        Path(folder, "closed").touch()


def fails_after(n: int) -> Iterator[int]:
    yield from range(n)
    raise KeyError("no more")


def marks(folder: Path) -> int:
    return sum(path.name.isdigit() for path in folder.iterdir())


@pytest.mark.parametrize("window", [1, 2, 16, 1024])
def test_all_values_come_in_order(client: Client, window: int) -> None:
    assert list(client.stream(count_up, 100, window=window)) == list(range(100))
    assert list(client.stream(count_later, 40, window=window)) == list(range(40))
    assert list(client.stream(count_up, 5, start=3, window=window)) == [3, 4]


def test_a_task_streams_to_the_default_client_or_to_another(client: Client) -> None:
    counting = actorgrid.task(name="counting")(count_up)
    push_default(client)
    try:
        assert list(counting.stream(3)) == [0, 1, 2]
        assert list(actorgrid.task(count_later).stream(2)) == [0, 1]
    finally:
        pop_default(client)
    with counting.stream(10**9, start=5, window=2, client=client) as stream:
        assert [next(stream), next(stream)] == [5, 6]
    with pytest.raises(BadRequest, match="a job has no stream"):
        counting.options(durable=True).stream(3, client=client)
    with pytest.raises(AmbiguousKeyword):
        actorgrid.task(lambda *, client: [client]).stream(client=client)
    with pytest.raises(AmbiguousKeyword):
        actorgrid.task(lambda *, window: [window]).stream(window=16, client=client)


def test_any_iterable_will_do_and_a_stream_may_be_empty(client: Client) -> None:
    assert list(client.stream(lambda: {"a": 1, "b": 2})) == ["a", "b"]
    assert list(client.stream(count_up, 0)) == []
    stream = client.stream(count_up, 3)
    assert list(stream) == [0, 1, 2] and list(stream) == []
    assert stream.future.result() == 3
    with pytest.raises(TaskFailed, match="not iterable"):
        next(client.stream(abs, -3))


def test_a_generator_runs_ahead_by_its_window_and_no_further(client: Client, tmp_path: Path) -> None:
    stream = client.stream(noted, str(tmp_path), window=4)
    wait_until(lambda: marks(tmp_path) >= 4)
    assert next(stream) == 0
    assert client.submit(abs, -1).result(60) == 1, "time passes"
    assert marks(tmp_path) <= 4 + 1
    assert [next(stream) for _ in range(9)] == list(range(1, 10))
    wait_until(lambda: marks(tmp_path) >= 12)
    assert marks(tmp_path) <= 4 + 10
    stream.close()
    wait_until((tmp_path / "closed").exists)
    with pytest.raises(StopIteration):
        next(stream)


@pytest.mark.parametrize("how", ["with", "dropped", "break", "async"])
def test_who_leaves_early_closes_the_generator_and_its_worker_goes_on(client: Client, tmp_path: Path, how: str) -> None:
    one = client.options(affinity="one")
    worker = one.submit(os.getpid).result(60)
    if how == "with":
        with one.stream(noted, str(tmp_path)) as stream:
            assert next(stream) == 0
    elif how == "dropped":
        dropped = one.stream(noted, str(tmp_path))
        next(dropped)
        del dropped
    elif how == "break":
        for value in one.stream(noted, str(tmp_path)):
            if value == 3:
                break
    else:

        async def some() -> list[int]:
            values = []
            async for value in AsyncClient(client).options(affinity="one").stream(noted, str(tmp_path)):
                values.append(value)
                if value == 3:
                    break
            return values

        assert asyncio.run(some()) == [0, 1, 2, 3]
    gc.collect()
    wait_until((tmp_path / "closed").exists)
    # Another answers while it has anything to do; and workers that come up late change what an affinity leads to.
    several = [client.options(affinity=str(number)) for number in range(32)]
    wait_until(lambda: worker in [asked.result(60) for asked in [one.submit(os.getpid) for one in several]])


def test_what_a_generator_raises_comes_after_its_values(client: Client) -> None:
    stream = client.stream(fails_after, 3)
    assert [next(stream) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="no more") as caught:
        next(stream)
    assert isinstance(caught.value, TaskFailed) and "in fails_after" in caught.value.remote_traceback


def test_a_worker_that_dies_amid_a_stream_is_not_tried_again(client: Client, tmp_path: Path) -> None:
    def dies(folder: str) -> Iterator[int]:
        Path(folder, str(len(os.listdir(folder)))).touch()
        if len(os.listdir(folder)) == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # before a value came: tried again
        yield 7
        os.kill(os.getpid(), signal.SIGKILL)

    stream = client.stream(dies, str(tmp_path), window=1)
    assert next(stream) == 7
    with pytest.raises(WorkerLost, match="after 1 values of its stream"):
        next(stream)
    assert len(os.listdir(tmp_path)) == 2


def test_the_time_limit_counts_while_it_waits_for_its_reader(client: Client, tmp_path: Path) -> None:
    stream = client.options(timeout=0.2).stream(noted, str(tmp_path), window=1)
    wait_until((tmp_path / "closed").exists)
    assert next(stream) == 0
    with pytest.raises(TaskTimedOut):
        next(stream)


def test_two_streams_and_other_tasks_go_on_beside_each_other(client: Client) -> None:
    streams = [client.stream(count_up, 200, start=start) for start in (0, 100)]
    pairs = list(zip(*streams, strict=False))
    assert pairs == [(n, n + 100) for n in range(100)]
    for stream in streams:
        stream.close()
    assert list(client.map(abs, range(50))) == list(range(50))


def test_what_cannot_be_a_stream_is_refused_by_name(client: Client) -> None:
    with pytest.raises(BadRequest, match="a job has no stream"):
        client.stream(count_up, 1, durable=True)
    with pytest.raises(BadRequest, match="from 1 to 1024"):
        client.stream(count_up, 1, window=0)
    with pytest.raises(AmbiguousKeyword):
        client.stream(lambda *, window: [window], window=3)
    with pytest.raises(UnpicklableResult, match=r"client\.stream"):
        client.submit(count_up, 3).result(60)
    with pytest.raises(UnpicklableResult):
        list(client.stream(lambda: [__import__("threading").Lock()]))
