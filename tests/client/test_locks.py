"""Locks and semaphores of the client, against a real host: who holds, who waits, and how a loss is told."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid.client.client import Client
from actorgrid.client.local_cluster import LocalCluster
from actorgrid.client.lock_hold import LockToken
from actorgrid.client.locks import Lock
from actorgrid.errors import BadRequest, LockHeld, LockLost, LockSlotsDiffer, LockTimeout, StaleToken, WrongState
from tests.client import lock_user
from tests.processes import until

ROOT = Path(__file__).resolve().parents[2]
NAMES = (f"lock {number}" for number in itertools.count())


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(gpus=1) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with actorgrid.connect(cluster.url, cluster.token) as client:
        yield client


@pytest.fixture
def other(cluster: LocalCluster) -> Iterator[Client]:
    with actorgrid.connect(cluster.url, cluster.token) as client:
        yield client


@pytest.fixture
def name() -> str:
    return next(NAMES)


def entry(client: Client, name: str) -> dict[str, Any]:
    return next((lock for lock in client.locks(name) if lock["name"] == name), {"holders": [], "waiters": []})


def waiting(client: Client, name: str, count: int) -> None:
    until(lambda: len(entry(client, name)["waiters"]) == count, f"{count} to wait")


def test_a_lock_is_held_inside_the_block_and_by_nobody_else(client: Client, other: Client, name: str) -> None:
    with client.lock(name) as lock:
        lock.check()
        first = lock.token
        assert not lock.lost and entry(client, name)["holders"][0]["owner"] == lock.owner
        with pytest.raises(LockHeld):
            other.lock(name).acquire(wait_s=0)
        with pytest.raises(LockTimeout):
            other.lock(name, wait_s=0.05).acquire()
    assert not lock.lost and entry(client, name)["holders"] == []
    with pytest.raises(LockLost, match="does not hold"):
        lock.check()
    with other.lock(name) as again:
        assert again.token > first and int(again.token) > int(first)


def test_the_threads_of_one_client_that_share_a_lock_are_owners_of_their_own(client: Client, name: str) -> None:
    lock, inside, most, done = client.lock(name), [], [], []

    def work() -> None:
        for _ in range(3):
            with lock:
                inside.append(1)
                most.append(len(inside))
                lock.check()
                inside.pop()
        done.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 4 and max(most) == 1


def test_a_semaphore_lets_so_many_in_and_no_more(client: Client, name: str) -> None:
    lock, inside, most = client.semaphore(name, slots=2), [], []
    full = threading.Barrier(2)

    def work() -> None:
        with lock:
            inside.append(1)
            most.append(len(inside))
            full.wait(30)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert max(most) == 2
    with client.semaphore(name, slots=3, wait_s=0), pytest.raises(LockSlotsDiffer):
        client.lock(name).acquire()


def test_it_is_not_reentrant_and_says_so_instead_of_waiting_for_itself(client: Client, name: str) -> None:
    lock = client.lock(name)
    with lock, pytest.raises(WrongState, match="held by this thread"):
        lock.acquire()
    with pytest.raises(LockLost):
        lock.release()


@pytest.mark.parametrize("wrong", ["", "a\nb", "x" * 257])
def test_a_name_that_cannot_be_one_is_refused_before_anything_is_asked(client: Client, wrong: str) -> None:
    with pytest.raises(BadRequest):
        client.lock(wrong)


def test_who_waits_gets_it_as_soon_as_it_is_free(client: Client, other: Client, name: str) -> None:
    got: list[LockToken] = []

    def wait() -> None:
        with other.lock(name) as lock:
            got.append(lock.token)

    with client.lock(name) as lock:
        thread = threading.Thread(target=wait)
        thread.start()
        waiting(client, name, 1)
        mine = lock.token
    thread.join(30)
    assert got[0] > mine


def test_a_lock_outlives_its_time_to_live_while_its_thread_lives(client: Client, name: str) -> None:
    with client.lock(name, ttl_s=2.0) as lock:
        since = entry(client, name)["holders"][0]["since"]
        # One of the same length that nobody renews runs out meanwhile.
        assert client.http.post("/api/locks/unrenewed/acquire", {"owner": "gone", "ttl_s": 2.0})["held"]
        with client.lock("unrenewed"):
            pass
        lock.check()
        assert entry(client, name)["holders"][0]["since"] == since


def break_lock(client: Client, lock: Lock) -> None:
    body = {"owner": lock.owner, "force": True, "user_id": "root"}
    assert client.http.post(f"/api/locks/{lock.name.replace(' ', '%20')}/release", body)["released"]


def test_a_loss_is_told_once_and_ends_the_block(client: Client, name: str) -> None:
    losses: list[LockLost] = []
    with pytest.raises(LockLost), client.lock(name, ttl_s=0.6, on_lost=losses.append) as lock:
        break_lock(client, lock)
        until(lambda: losses, "the loss to be told")
        assert lock.lost
        with pytest.raises(LockLost):
            lock.check()
    assert len(losses) == 1
    with client.lock(name, wait_s=0):
        pass


def test_an_exception_under_way_is_not_hidden_by_the_loss(client: Client, name: str) -> None:
    def work() -> None:
        with client.lock(name, ttl_s=0.6) as lock:
            break_lock(client, lock)
            until(lambda: lock.lost, "the loss")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()


def test_a_release_that_finds_the_lock_broken_says_so(client: Client, name: str) -> None:
    lock = client.lock(name, ttl_s=60)
    lock.acquire()
    break_lock(client, lock)
    with pytest.raises(LockLost):
        lock.release()


def test_who_cannot_renew_stops_by_the_own_clock_before_another_is_let_in(
    client: Client, other: Client, name: str
) -> None:
    losses: list[LockLost] = []
    lock = client.lock(name, ttl_s=3.0, on_lost=losses.append)
    lock.acquire()
    right, client.http.token = client.http.token, "not the token"
    got: list[bool] = []

    def wait() -> None:
        with other.lock(name):
            got.append(bool(losses))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(30)
    client.http.token = right
    assert got == [True], "the loss is known before the next holder is let in"
    assert lock.lost and "no renewal was confirmed" in losses[0].found
    with pytest.raises(LockLost):
        lock.release()


def test_a_thread_that_ends_with_a_lock_gives_it_back(client: Client, name: str) -> None:
    thread = threading.Thread(target=client.lock(name, ttl_s=0.6).acquire)
    thread.start()
    thread.join(30)
    with client.lock(name, wait_s=30):
        pass


def test_a_client_that_closes_gives_its_locks_back(cluster: LocalCluster, other: Client, name: str) -> None:
    with actorgrid.connect(cluster.url, cluster.token) as client:
        client.lock(name, ttl_s=60).acquire()
    with other.lock(name, wait_s=5):
        pass


def test_a_stopped_holder_finds_its_write_refused(cluster: LocalCluster, client: Client, tmp_path: Path) -> None:
    path = str(tmp_path / "guarded.db")
    program = [sys.executable, "-m", "tests.client.lock_user", cluster.url, cluster.token, path, "0.6"]
    user = subprocess.Popen(
        program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert user.stdin is not None and user.stdout is not None
    try:
        assert user.stdout.readline() == "written\n"
        user.send_signal(signal.SIGSTOP)
        with client.lock("guarded", wait_s=60) as lock:
            lock_user.write(path, int(lock.token), "second")
        user.stdin.write("\n")
        user.stdin.flush()
        user.send_signal(signal.SIGCONT)
        assert user.stdout.readline() == "StaleToken\n"
        assert user.stdout.readline() == "LockLost\n"
        assert user.wait(30) == 0
    finally:
        user.kill()
        user.wait(30)
        user.stdin.close()
        user.stdout.close()
    store = sqlite3.connect(path)
    assert store.execute("SELECT value FROM guarded").fetchone() == ("second",)
    store.close()
    with pytest.raises(StaleToken):
        lock_user.write(path, 1, "older still")


def test_a_forked_child_has_no_lock_of_its_parents(client: Client, name: str) -> None:
    with client.lock(name) as lock:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                lock.check()
            except LockLost:
                code = 7
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        lock.check()


# -- asyncio


def test_tasks_are_owners_and_any_number_may_wait(cluster: LocalCluster, name: str) -> None:
    async def work() -> None:
        async with await actorgrid.AsyncClient.connect(cluster.url, cluster.token) as client:
            lock, inside, most = client.lock(name), [], []

            async def one() -> None:
                async with lock:
                    inside.append(1)
                    most.append(len(inside))
                    lock.check()
                    assert not lock.lost and lock.token.log_index > 0
                    await asyncio.sleep(0)
                    inside.pop()

            await asyncio.gather(*(one() for _ in range(40)))
            assert max(most) == 1
            with pytest.raises(LockLost):
                await lock.release()
            async with client.semaphore(name, slots=2, wait_s=0), client.semaphore(name, slots=2):
                assert [len(each["holders"]) for each in await client.locks(name)] == [2]

    asyncio.run(work())


def test_a_task_that_is_cancelled_while_it_waits_leaves_the_line(
    cluster: LocalCluster, client: Client, name: str
) -> None:
    async def work() -> None:
        async with await actorgrid.AsyncClient.connect(cluster.url, cluster.token) as asking:
            lock = asking.lock(name)
            task = asyncio.create_task(lock.acquire())
            await asyncio.to_thread(waiting, client, name, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(waiting, client, name, 0)

    with client.lock(name):
        asyncio.run(work())


def test_a_loss_is_told_in_the_loop_and_ends_the_async_block(cluster: LocalCluster, client: Client, name: str) -> None:
    async def work() -> None:
        async with await actorgrid.AsyncClient.connect(cluster.url, cluster.token) as asking:
            told = asyncio.get_running_loop().create_future()
            lock = asking.lock(name, ttl_s=0.6, on_lost=told.set_result)
            with pytest.raises(LockLost):
                async with lock:
                    owner = (await asking.locks(name))[0]["holders"][0]["owner"]
                    body = {"owner": owner, "force": True}
                    await asyncio.to_thread(client.http.post, f"/api/locks/{name.replace(' ', '%20')}/release", body)
                    assert isinstance(await asyncio.wait_for(told, 30), LockLost)
                    assert lock.lost

    asyncio.run(work())


def test_a_task_that_ends_with_a_lock_gives_it_back(cluster: LocalCluster, client: Client, name: str) -> None:
    async def work() -> None:
        async with await actorgrid.AsyncClient.connect(cluster.url, cluster.token) as asking:
            await asyncio.create_task(asking.lock(name, ttl_s=0.6).acquire())
            await asyncio.wait_for(asking.lock(name).acquire(), 30)

    asyncio.run(work())
    with client.lock(name, wait_s=5):
        pass
