"""Batches at work: on threads and as coroutines, with callers that leave, functions that raise, threads that die."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from actorgrid.errors import ExecutorDied, ItemExpired, ServiceEnding, ServingError, WrongResultLength
from actorgrid.serving.batch_runner import BatchRunner
from actorgrid.serving.batching import BatchLimits
from actorgrid.serving.model_threads import ModelThreads


def on_threads(
    function: Callable[[list[Any]], Any], play: Callable[[BatchRunner], Awaitable[None]], **limits: Any
) -> None:
    async def course() -> None:
        threads = ModelThreads(asyncio.get_running_loop(), 1)
        try:
            await play(BatchRunner(function, BatchLimits(**limits), threads))
        finally:
            threads.close()

    asyncio.run(asyncio.wait_for(course(), 60))


class Gate:
    """A function that waits to be let on, and keeps what it was called with."""

    def __init__(self) -> None:
        self.called: list[list[Any]] = []
        self.inside = threading.Event()
        self.opened = threading.Event()

    def __call__(self, values: list[Any]) -> list[Any]:
        self.called.append(values)
        self.inside.set()
        assert self.opened.wait(30)
        return [value * 2 for value in values]


def test_what_arrives_together_runs_together() -> None:
    gate = Gate()
    gate.opened.set()

    async def play(runner: BatchRunner) -> None:
        assert await asyncio.gather(*(runner.submit(number) for number in range(10))) == [2 * n for n in range(10)]
        assert [len(values) for values in gate.called] == [4, 4, 2]

    on_threads(gate, play, max_size=4)


def test_what_arrives_while_a_batch_runs_goes_into_the_next() -> None:
    gate = Gate()

    async def play(runner: BatchRunner) -> None:
        first = asyncio.ensure_future(runner.submit(1))
        await asyncio.to_thread(gate.inside.wait)
        others = [asyncio.ensure_future(runner.submit(number)) for number in (2, 3, 4)]
        await asyncio.sleep(0)
        gate.opened.set()
        assert await asyncio.gather(first, *others) == [2, 4, 6, 8]
        assert gate.called == [[1], [2, 3, 4]]

    on_threads(gate, play)


def test_a_caller_that_leaves_is_not_in_the_batch() -> None:
    gate = Gate()

    async def play(runner: BatchRunner) -> None:
        first = asyncio.ensure_future(runner.submit(1))
        await asyncio.to_thread(gate.inside.wait)
        leaver, stayer = asyncio.ensure_future(runner.submit(2)), asyncio.ensure_future(runner.submit(3))
        await asyncio.sleep(0)
        leaver.cancel()
        first.cancel()  # runs, and nobody waits for it any more
        await asyncio.wait([leaver, first])
        gate.opened.set()
        assert await stayer == 6
        assert gate.called == [[1], [3]]
        assert runner.waiting == 0

    on_threads(gate, play)


def test_many_cancellations_leave_it_working() -> None:
    def double(values: list[int]) -> list[int]:
        return [2 * value for value in values]

    async def play(runner: BatchRunner) -> None:
        for turn in range(50):
            tasks = [asyncio.ensure_future(runner.submit(number)) for number in range(20)]
            await asyncio.sleep(0)
            for task in tasks[turn % 3 :: 2]:
                task.cancel()
            await asyncio.wait(tasks)
        assert await runner.submit(21) == 42
        assert runner.waiting == 0

    on_threads(double, play)


def test_one_bad_item_fails_alone_though_the_batch_raised() -> None:
    def inverse(values: list[int]) -> list[float]:
        return [1 / value for value in values]

    async def play(runner: BatchRunner) -> None:
        found = await asyncio.gather(*(runner.submit(number) for number in (1, 0, 2)), return_exceptions=True)
        assert [found[0], found[2]] == [1.0, 0.5]
        assert isinstance(found[1], ZeroDivisionError)

    on_threads(inverse, play)


@pytest.mark.parametrize("end", [lambda: sys.exit(3), lambda: (_ for _ in ()).throw(KeyboardInterrupt())])
def test_a_thread_that_ends_fails_its_batch_at_once_and_the_next_is_served(end: Callable[[], Any]) -> None:
    def ends(values: list[str]) -> list[str]:
        if "end" in values:
            end()
        return values

    async def play(runner: BatchRunner) -> None:
        found = await asyncio.gather(runner.submit("end"), runner.submit("a"), return_exceptions=True)
        assert [type(each) for each in found] == [ExecutorDied, ExecutorDied]
        assert await runner.submit("b") == "b"

    on_threads(ends, play)


def test_a_wrong_number_of_results_is_told_to_all_and_ends_nothing() -> None:
    async def play(runner: BatchRunner) -> None:
        found = await asyncio.gather(runner.submit(1), runner.submit(2), return_exceptions=True)
        assert [type(each) for each in found] == [WrongResultLength] * 2
        assert await runner.submit(3) == 3

    on_threads(lambda values: values[:1], play)


def test_a_stop_iteration_reaches_its_caller_as_an_error() -> None:
    async def play(runner: BatchRunner) -> None:
        with pytest.raises(ServingError, match="StopIteration"):
            await runner.submit(1)

    on_threads(lambda values: [StopIteration("x") for _ in values], play)


def test_who_waits_longer_than_the_time_given_hears_so_while_others_run() -> None:
    gate = Gate()

    async def play(runner: BatchRunner) -> None:
        first = asyncio.ensure_future(runner.submit(1))
        await asyncio.to_thread(gate.inside.wait)
        with pytest.raises(ItemExpired):
            await runner.submit(2, timeout_s=0.01)
        gate.opened.set()
        assert await first == 2
        assert gate.called == [[1]]

    on_threads(gate, play)


def test_a_runner_that_ends_finishes_what_waits_and_takes_nothing_new() -> None:
    gate = Gate()

    async def play(runner: BatchRunner) -> None:
        first = asyncio.ensure_future(runner.submit(1))
        await asyncio.to_thread(gate.inside.wait)
        second = asyncio.ensure_future(runner.submit(2))
        await asyncio.sleep(0)
        runner.end()
        with pytest.raises(ServiceEnding):
            await runner.submit(3)
        gate.opened.set()
        assert await asyncio.gather(first, second) == [2, 4]

    on_threads(gate, play)


def test_abandoned_items_hear_that_the_service_ended() -> None:
    gate = Gate()

    async def play(runner: BatchRunner) -> None:
        first = asyncio.ensure_future(runner.submit(1))
        await asyncio.to_thread(gate.inside.wait)
        second = asyncio.ensure_future(runner.submit(2))
        await asyncio.sleep(0)
        runner.abandon()
        with pytest.raises(ServiceEnding):
            await second
        gate.opened.set()
        assert await first == 2

    on_threads(gate, play)


def test_two_functions_share_one_thread_and_neither_starves() -> None:
    inside: list[str] = []
    at_once: list[int] = []

    def one_of(name: str) -> Callable[[list[int]], list[int]]:
        def run(values: list[int]) -> list[int]:
            inside.append(name)
            at_once.append(len(inside))
            inside.remove(name)
            return values

        return run

    async def course() -> None:
        threads = ModelThreads(asyncio.get_running_loop(), 1)
        one, two = (BatchRunner(one_of(name), BatchLimits(max_size=1), threads) for name in "ab")
        await asyncio.gather(*(runner.submit(number) for number in range(50) for runner in (one, two)))
        threads.close()

    asyncio.run(asyncio.wait_for(course(), 60))
    assert at_once == [1] * 100


def test_coroutine_functions_run_in_the_loop_one_batch_at_a_time() -> None:
    running, most, sizes = 0, 0, []

    async def double(values: list[int]) -> list[int]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        sizes.append(len(values))
        await asyncio.sleep(0)
        running -= 1
        return [2 * value for value in values]

    async def play(runner: BatchRunner) -> None:
        assert await asyncio.gather(*(runner.submit(number) for number in range(12))) == [2 * n for n in range(12)]
        assert (most, sizes) == (1, [5, 5, 2])

    on_threads(double, play, max_size=5)
