"""wait, as_completed, gather and await, over futures of session tasks and of others."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

import actorgrid
from actorgrid.client.client import Client
from actorgrid.errors import BadRequest
from tests.client.stand_in import client_of_stand_in

client = pytest.fixture(scope="module")(client_of_stand_in)


def fail(text: str) -> None:
    raise KeyError(text)


def test_wait_and_as_completed_take_our_futures_and_others(client: Client) -> None:
    other: Future[int] = Future()
    futures = [client.submit(abs, -number) for number in range(3)]
    done, left = actorgrid.wait([*futures, other], timeout=60, return_when="FIRST_COMPLETED")
    assert done and other in left
    other.set_result(3)
    assert sorted(future.result() for future in actorgrid.as_completed([*futures, other], timeout=60)) == [0, 1, 2, 3]


def test_gather_gives_the_values_in_order_whoever_ends_first(client: Client) -> None:
    slow = client.submit(time.sleep, 0.1)
    assert actorgrid.gather(slow, client.submit(abs, -1)).result(60) == [None, 1]
    assert actorgrid.gather(client.submit(abs, -number) for number in range(50)).result(60) == list(range(50))
    assert actorgrid.gather().result(0) == []
    with pytest.raises(BadRequest, match="takes futures"):
        actorgrid.gather(client.submit(abs, 1), 7)  # type: ignore[arg-type]


def test_the_first_failure_fails_a_gather_while_others_go_on(client: Client) -> None:
    never: Future[int] = Future()
    gathered = actorgrid.gather(never, client.submit(fail, "here"))
    error = gathered.exception(60)
    assert "here" in str(error) and not never.done()
    with pytest.raises(type(error), match="here"):
        gathered.result(0)
    never.cancel()
    assert gathered.exception(0) is error


def test_gather_gives_errors_among_the_values_when_asked(client: Client) -> None:
    gone: Future[int] = Future()
    parts: list[Future[Any]] = [client.submit(abs, -1), client.submit(fail, "x"), gone]
    values = actorgrid.gather(parts, return_exceptions=True)
    gone.cancel()
    gone.set_running_or_notify_cancel()
    one, failed, cancelled = values.result(60)
    assert one == 1 and "x" in str(failed) and isinstance(cancelled, CancelledError)


def test_a_cancelled_gather_cancels_what_has_not_started() -> None:
    parts: list[Future[int]] = [Future(), Future()]
    parts[0].set_running_or_notify_cancel()
    gathered = actorgrid.gather(*parts)
    assert gathered.cancel() and gathered.cancelled() and parts[1].cancelled() and not parts[0].cancelled()
    parts[0].set_result(1)
    assert gathered.cancel() and actorgrid.gather(parts[0]).cancel() is False


def test_futures_and_gathers_are_awaited(client: Client) -> None:
    async def main() -> tuple[int, list[int], str]:
        one = await client.submit(abs, -1)
        many = await actorgrid.gather(client.submit(abs, -2), client.submit(abs, -3))
        failed = client.submit(fail, "awaited")
        with pytest.raises(Exception, match="awaited") as raised:
            await failed
        return one, many, str(raised.value)

    one, many, text = asyncio.run(main())
    assert (one, many) == (1, [2, 3]) and "awaited" in text


def test_cancelling_who_awaits_cancels_the_future() -> None:
    future = actorgrid.gather(Future(), Future())  # type: ignore[var-annotated]
    entered = threading.Event()

    async def main() -> None:
        async def waits() -> None:
            entered.set()
            await future

        task = asyncio.ensure_future(waits())
        while not entered.is_set():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert future.cancelled()
