"""The client as a concurrent.futures.Executor."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from actorgrid.client.client import Client
from actorgrid.errors import BadRequest, ClientClosed
from tests.client.stand_in import StandIn, wait_until


@pytest.fixture(scope="module")
def host() -> Iterator[StandIn]:
    host = StandIn(workers_max=40)  # it takes leases back one by one only, not with their session
    yield host
    host.close()


def read(path: str) -> str:
    return Path(path).read_text()


def increment(number: int) -> int:
    return number + 1


def test_leaving_the_block_waits_for_what_was_submitted_and_takes_nothing_more(host: StandIn) -> None:
    with Client(host.url, host.token) as client:
        assert isinstance(client, concurrent.futures.Executor)
        futures = [client.submit(increment, number) for number in range(100)]
        last = client.submit(sum, futures)
    assert last.result(0) == 5050
    with pytest.raises(RuntimeError, match="closed"):
        client.submit(increment, 1)
    client.shutdown()


def test_leaving_the_block_by_an_exception_cancels(host: StandIn, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    with pytest.raises(KeyError), Client(host.url, host.token) as client:
        future = client.submit(read, str(tmp_path / "gate"))
        wait_until(future.running)
        raise KeyError("mine")
    assert future.cancelled()
    (tmp_path / "gate").write_text("")  # a real host would have killed its worker


def test_a_shutdown_that_cancels_lets_what_runs_end(host: StandIn, tmp_path: Path) -> None:
    client = Client(host.url, host.token)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    running = client.submit(read, str(gate))
    wait_until(running.running)
    waiting = [client.submit(increment, running) for _ in range(20)]
    held = client.submit(sum, waiting)
    client.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in waiting) and held.done()
    with pytest.raises(ClientClosed):
        client.submit(increment, 1)
    gate.write_text("x")
    assert running.result(60) == "x"
    wait_until(lambda: client._closed)


def test_the_first_exception_ends_a_wait_for_it(host: StandIn, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    client = Client(host.url, host.token)
    slow = client.submit(read, str(tmp_path / "gate"))
    failed = client.submit(divmod, 1, 0)
    done, left = concurrent.futures.wait([slow, failed], 20, concurrent.futures.FIRST_EXCEPTION)
    assert (done, left) == ({failed}, {slow})
    (tmp_path / "gate").write_text("")
    client.shutdown()


def test_values_of_a_map_are_waited_for_so_long(host: StandIn, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    with Client(host.url, host.token) as client:
        values = client.map(read, [os.devnull, str(tmp_path / "gate")], timeout=60)
        assert next(values) == ""
        with pytest.raises(TimeoutError):
            next(values.within(0.01))
        (tmp_path / "gate").write_text("")
        assert list(client.map(pow, range(7), [2] * 7, chunksize=3, buffersize=1, timeout=60)) == [
            n * n for n in range(7)
        ]
        for wrong in ({"chunksize": 0}, {"buffersize": 0}):
            with pytest.raises(BadRequest, match="at least 1"):
                client.map(abs, [1], **wrong)


def test_a_loop_runs_functions_in_it(host: StandIn) -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(client, increment, number) for number in range(5)))

    with Client(host.url, host.token) as client:
        assert asyncio.run(main()) == [1, 2, 3, 4, 5]
        assert client.submit(time.sleep, 0).result(60) is None
