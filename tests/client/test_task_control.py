"""What a running task knows of itself, how it is asked to stop, and ``async def`` functions."""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid import task_context
from actorgrid.client.client import Client
from actorgrid.client.options import TaskOptions
from actorgrid.errors import TaskCancelled, TaskFailed, TaskTimedOut
from actorgrid.fencing import FencingToken
from actorgrid.task_context import CurrentTask, RunningCall
from tests.client.stand_in import wait_until

ENV = {"ACTORGRID_TOKEN": str(FencingToken(1, 7)), "ACTORGRID_ATTEMPT_NUMBER": "1", "ACTORGRID_LEASE_ID": "l1"}
WAIT_S = 60.0


async def add(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


def about_me() -> CurrentTask:
    return actorgrid.current_task()


def until_told(begun: str, raises: bool) -> int:
    Path(begun).touch()
    task, rounds, pause = actorgrid.current_task(), 0, threading.Event()
    until = time.monotonic() + WAIT_S
    while not task.cancelled and time.monotonic() < until:
        pause.wait(0.002)
        rounds += 1
    if raises:
        task.raise_if_cancelled()
    return rounds


async def until_cancelled(begun: str, ended: str) -> None:
    Path(begun).touch()
    try:
        await asyncio.sleep(WAIT_S)
    finally:
        Path(ended).touch()


def test_async_functions_run_to_their_end(client: Client) -> None:
    assert client.submit(add, 1, 2).result(60) == 3
    assert list(client.map(add, range(5), [10] * 5)) == [10, 11, 12, 13, 14]

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("async")

    with pytest.raises(KeyError, match="async") as caught:
        client.submit(fail).result(60)
    assert "in fail" in caught.value.remote_traceback  # type: ignore[attr-defined]


def test_what_an_async_function_leaves_behind_is_cancelled_and_what_it_sets_is_its_own(client: Client) -> None:
    async def leaves() -> tuple[int, int]:
        made: Any = contextvars.ContextVar("variable", default=0)
        variable = vars(sys).setdefault("variable_of_this_test", made)  # the same one in each task of a worker
        before = variable.get()
        variable.set(before + 1)
        asyncio.get_running_loop().create_task(asyncio.sleep(WAIT_S))
        return before, len(asyncio.all_tasks())

    one = client.options(affinity="one")
    assert [one.submit(leaves).result(60) for _ in range(3)] == [(0, 2)] * 3


def test_an_async_function_past_its_time_limit_may_clean_up(client: Client, tmp_path: Path) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    with pytest.raises(TaskTimedOut, match=r"past 0\.2 s"):
        client.options(timeout=0.2).submit(until_cancelled, str(begun), str(ended)).result(60)
    assert ended.exists()

    async def deaf() -> None:
        while True:
            try:
                await asyncio.sleep(WAIT_S)
            except asyncio.CancelledError:
                continue

    with pytest.raises(TaskTimedOut):
        client.options(timeout=0.1).submit(deaf).result(60)
    assert client.submit(add, 1, 2).result(60) == 3


def test_a_task_knows_what_it_is(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = client.options(env=ENV, affinity="one")
    first, second = (calls.submit(about_me).result(60) for _ in range(2))
    assert first.id != second.id and first.id.partition(".")[0] == second.id.partition(".")[0]
    assert (first.name, first.retries_left, first.deadline, first.parent) == ("about_me", 3, None, None)
    assert not first.cancelled
    monkeypatch.setattr(task_context, "running", RunningCall(("session", 5), None))
    before = datetime.now(UTC)
    named = calls.options(name="nightly", timeout=60, retries=1).submit(about_me).result(60)
    assert (named.name, named.retries_left, named.parent) == ("nightly", 1, "session.5")
    assert named.deadline is not None and 59 < (named.deadline - before).total_seconds() < 90


def test_a_task_that_lost_its_worker_knows_that_it_has_fewer_retries(client: Client, tmp_path: Path) -> None:
    def dies_once(flag: str) -> CurrentTask:
        if not Path(flag).exists():
            Path(flag).touch()
            os._exit(1)
        return actorgrid.current_task()

    task = client.options(env=ENV).submit(dies_once, str(tmp_path / "died")).result(30)
    assert (task.attempt_number, task.retries_left) == (2, 2)


@pytest.mark.parametrize("raises", [False, True])
def test_a_running_task_is_asked_to_stop_and_sees_it(client: Client, tmp_path: Path, raises: bool) -> None:
    begun = tmp_path / "begun"
    future = client.options(env=ENV).submit(until_told, str(begun), raises)
    wait_until(begun.exists)
    assert future.cancel() is False, "it runs, and nobody was told"
    assert client.cancel(future, cooperative=True) is True
    if raises:
        with pytest.raises(TaskCancelled):
            future.result(60)
    else:
        assert future.result(60) > 0, "it came to its end"
    assert future.cancel(cooperative=True) is False  # type: ignore[call-arg]
    assert client.options(env=ENV).submit(about_me).result(60).cancelled is False


def test_a_running_async_task_that_is_asked_to_stop_is_cancelled_where_it_awaits(
    client: Client, tmp_path: Path
) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    one = client.options(affinity="one")
    worker = one.submit(os.getpid).result(60)
    future: Any = one.submit(until_cancelled, str(begun), str(ended))
    wait_until(begun.exists)
    assert future.cancel(cooperative=True) is True
    with pytest.raises(TaskCancelled, match="asked to stop"):
        future.result(60)
    assert ended.exists()
    assert one.submit(os.getpid).result(60) == worker, "the worker lives on"


def test_a_task_that_has_not_started_is_taken_back_by_either_cancel(client: Client, tmp_path: Path) -> None:
    begun = [tmp_path / f"{number}" for number in range(2)]
    running: list[Any] = [client.options(env=ENV).submit(until_told, str(path), False) for path in begun]
    for path in begun:
        wait_until(path.exists)
    waiting: Any = client.options(env=ENV).submit(about_me)
    assert waiting.cancel(cooperative=True) is True and waiting.cancelled()
    for future in running:
        future.cancel(cooperative=True)
        assert future.result(60) > 0


def test_a_cancelled_error_of_its_own_is_a_failure_like_any_other(client: Client) -> None:
    async def cancels_itself() -> None:
        raise asyncio.CancelledError

    with pytest.raises(TaskFailed) as caught:
        client.submit(cancels_itself).result(60)
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)


def test_retries_unsaid_are_the_same_on_both_sides() -> None:
    assert TaskOptions().worker_losses == task_context.SESSION_RETRIES
