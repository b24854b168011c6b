"""What mypy makes of calls, as people write them. ``make types`` checks it; nothing runs it.

``assert_type`` says what a call gives. A line that ends in ``type: ignore[...]`` must be refused with that code: an
ignore without an error is one itself.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any, assert_type

import actorgrid
from actorgrid.client.futures import JobFuture, LazyFuture
from actorgrid.client.map_results import MapResults
from actorgrid.client.streams import TaskStream


def square(number: int) -> int:
    return number * number


def greet(text: str, times: int = 1, *, name: str = "you") -> str:
    return f"{text} {name}" * times


def total(numbers: list[int]) -> int:
    return sum(numbers)


async def fetch(number: int) -> bytes:
    return bytes(number)


def count(upto: int) -> Iterator[int]:
    yield from range(upto)


async def count_slowly(upto: int) -> AsyncIterator[str]:
    for number in range(upto):
        yield str(number)


class Model:
    def __init__(self, size: int) -> None:
        self.size = size

    def predict(self, x: float) -> float:
        return x * self.size


@actorgrid.task
def halve(number: int) -> float:
    return number / 2


@actorgrid.task(gpus=0.5, gpu_memory="2GiB", retries=3)
def train(model: str, steps: int = 10) -> dict[str, float]:
    return {model: float(steps)}


@actorgrid.task(gpus=1)
def tokens(prompt: str) -> Iterator[str]:
    yield from prompt


@actorgrid.task
async def fetch_task(number: int) -> bytes:
    return bytes(number)


def submit(client: actorgrid.Client) -> None:
    assert_type(client.submit(square, 3), LazyFuture[int])
    assert_type(client.submit(square, 3).result(), int)
    assert_type(client.submit(square, number=3), LazyFuture[int])
    assert_type(client.submit(greet, "hello", 2, name="Ann"), LazyFuture[str])
    assert_type(client.submit(fetch, 3), LazyFuture[bytes])
    assert_type(client.submit(Model, 3), LazyFuture[Model])
    assert_type(client.submit(Model(3).predict, 0.5), LazyFuture[float])
    assert_type(client.submit(functools.partial(greet, name="Ann"), "hello"), LazyFuture[str])
    assert_type(client.submit(lambda: 3), LazyFuture[int])
    assert_type(client.submit(abs, -1), LazyFuture[int])
    assert_type(client.submit(halve, 3), LazyFuture[float])
    client.submit(square, "3")  # type: ignore[arg-type]
    client.submit(square)  # type: ignore[arg-type, call-arg]
    client.submit(square, 3, 4)  # type: ignore[call-arg, arg-type]
    client.submit(greet, "hello", name=3)  # type: ignore[arg-type]
    client.submit(greet, "hello", nam="Ann")  # type: ignore[call-arg, arg-type]
    client.submit(halve, "3")  # type: ignore[arg-type]
    client.submit(square, 3).cancel(cooperative=True)


def submit_with_options(client: actorgrid.Client) -> None:
    assert_type(client.submit(square, 3, gpus=0.25, gpu_memory="2GiB", timeout=30), LazyFuture[int])
    assert_type(client.submit(greet, "hello", gpus=1), LazyFuture[str])
    assert_type(client.submit(greet, "hello", 2, gpus=1, kwargs={"name": "Ann"}), LazyFuture[str])
    assert_type(client.submit(fetch, 3, retries=1), LazyFuture[bytes])
    job = client.submit(square, 3, durable=True, priority=80)
    assert_type(job, JobFuture[int])
    assert_type(client.submit(square, job, durable=True, depends_on=[job]).job_id, str)
    client.submit(square, "3", gpus=1)  # type: ignore[arg-type, call-arg]
    client.submit(square, 3, gpuz=1)  # type: ignore[arg-type, call-arg]
    client.submit(square, 3, gpus="one")  # type: ignore[arg-type, call-arg]
    # Own keywords beside options are beyond what types can say. In full, with both checked:
    assert_type(client.options(gpus=1).submit(greet, "hello", name="Ann"), LazyFuture[str])
    client.options(gpus=1).submit(greet, "hello", name=3)  # type: ignore[arg-type]
    client.options(gpus=1).submit(square, "3")  # type: ignore[arg-type]
    client.options(gpuz=1)  # type: ignore[call-arg]


def futures_as_arguments(client: actorgrid.Client) -> None:
    three = client.submit(square, 3)
    assert_type(client.submit(square, three), LazyFuture[int])
    assert_type(client.submit(total, [three, three]), LazyFuture[int])
    assert_type(client.submit(greet, "hello", three), LazyFuture[str])
    assert_type(client.submit(square, three, gpus=1), LazyFuture[int])
    assert_type(client.options(gpus=1).submit(fetch, three), LazyFuture[bytes])
    assert_type(halve.submit(three), LazyFuture[float])
    assert_type(client.map(square, [three]), MapResults[Any])
    client.submit(total, ["3"])  # type: ignore[arg-type]


def over_items(client: actorgrid.Client) -> None:
    assert_type(client.map(square, range(3)), MapResults[int])
    assert_type(list(client.map(square, [1, 2], chunksize=2, progress=True, gpus=1)), list[int])
    assert_type(client.map(greet, ["a"], [1], timeout=5), MapResults[str])
    assert_type(client.map(greet, ["a"], name="Ann"), MapResults[str])
    assert_type(client.map(fetch, [1]), MapResults[bytes])
    assert_type(client.options(gpus=1).map(greet, ["a"], name="Ann"), MapResults[str])
    assert_type(halve.map([1, 2]), MapResults[float])
    assert_type(halve.map([1, 2], chunksize=2, client=client), MapResults[float])
    client.map(square, ["a"])  # type: ignore[arg-type]
    client.map(greet, ["a"], name=3)  # type: ignore[list-item]
    client.map(square, [1], chunksiz=2)  # type: ignore[list-item]
    halve.map(["a"])  # type: ignore[list-item]


def streams(client: actorgrid.Client) -> None:
    assert_type(client.stream(count, 3), TaskStream[int])
    assert_type(client.stream(count_slowly, 3), TaskStream[str])
    assert_type(client.stream(count, 3, window=4, gpus=1), TaskStream[int])
    assert_type(client.stream(count, client.submit(square, 3)), TaskStream[int])
    assert_type(tokens.stream("hello"), TaskStream[str])
    assert_type(tokens.stream("hello", window=4, client=client), TaskStream[Any])
    assert_type(client.options(gpus=1).stream(count, 3), TaskStream[int])
    client.stream(count, "3")  # type: ignore[arg-type]
    client.stream(square, 3)  # type: ignore[arg-type]
    tokens.stream(3)  # type: ignore[call-overload]


def tasks(client: actorgrid.Client) -> None:
    assert_type(train("m", 3), dict[str, float])
    assert_type(train.submit("m", steps=3), LazyFuture[dict[str, float]])
    assert_type(train.options(gpus=2).submit("m", client=client), LazyFuture[dict[str, float]])
    assert_type(fetch_task.submit(3), LazyFuture[bytes])
    train("m", "3")  # type: ignore[arg-type]
    train.submit("m", steps="3")  # type: ignore[arg-type]
    train.options(gpuz=2)  # type: ignore[call-arg]
    actorgrid.task(gpuz=2)  # type: ignore[call-overload]


async def awaited(client: actorgrid.Client, awaiting: actorgrid.AsyncClient) -> None:
    assert_type(await client.submit(square, 3), int)
    assert_type(await client.submit(fetch, 3), bytes)
    assert_type(await actorgrid.gather(client.submit(square, 1), client.submit(square, 2)), list[int])
    assert_type(await awaiting.submit(square, 3), int)
    assert_type(await awaiting.submit(square, 3, gpus=1), int)
    assert_type(await awaiting.submit(fetch, 3), bytes)
    assert_type(awaiting.start(square, 3, gpus=0.5), asyncio.Future[int])
    assert_type(await awaiting.options(gpus=1).submit(greet, "hello", name="Ann"), str)
    async for value in awaiting.map(square, [1, 2]):
        assert_type(value, int)
    async for word in awaiting.stream(count_slowly, 3):
        assert_type(word, str)
    await awaiting.submit(square, "3")  # type: ignore[arg-type]
    await awaiting.options(gpus=1).submit(square, "3")  # type: ignore[arg-type]
    awaiting.start(square, 3, gpus="one")  # type: ignore[arg-type, call-arg]
    awaiting.map(square, ["a"])  # type: ignore[arg-type]
