"""Clients and tasks among processes: what a forked child may go on with, and ``multiprocessing`` inside of tasks."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import actorgrid
from actorgrid import LocalCluster
from actorgrid.client.client import Client
from actorgrid.client.durable import JobFuture
from actorgrid.errors import LockLost, WrongState

WITHIN_S = 60.0
SLOWER = ("spawn", "forkserver")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(gpus=0) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with cluster.client() as client:
        yield client


def in_child(function: Callable[[], Any]) -> Any:
    """What *function* gives, or what it raised, in a forked child, which is killed when it hangs."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            signal.alarm(int(WITHIN_S))
            try:
                found: Any = function()
            except Exception as error:  # noqa: BLE001 - the test looks at it
                traceback.print_exc()
                found = error
            with open(write, "wb") as pipe:
                pickle.dump(found, pipe)
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    assert data, "the child hung, and was killed"
    return pickle.loads(data)


def test_a_forked_child_goes_on_with_its_parents_client(client: Client) -> None:
    assert client.submit(abs, -1).result(WITHIN_S) == 1

    def all_of_it() -> list[Any]:
        client.state.increment("children")
        lock = client.lock("child", ttl_s=10)
        with lock:
            held = lock.token is not None
        values = [client.submit(abs, -2).result(WITHIN_S), client.submit(abs, -3, durable=True).result(WITHIN_S)]
        found = [*values, held, client.cluster()["ready"], actorgrid.task(abs).submit(-4).result(WITHIN_S)]
        client.close()
        return found

    before = client.state.get("children", 0)
    assert in_child(all_of_it) == [2, 3, True, True, 4]
    assert client.submit(abs, -5).result(WITHIN_S) == 5, "the parent's goes on"
    assert client.state.get("children") == before + 1


def test_what_the_parent_submitted_is_the_parents_and_the_child_is_told_so(client: Client) -> None:
    gate = f"gate-{os.getpid()}"

    def waits(url: str, token: str) -> str:
        with actorgrid.connect(url, token) as inside:
            for _ in inside.state.watch(gate, initial=True):
                return "open"
        return "lost"

    ended = client.submit(abs, -1)
    assert ended.result(WITHIN_S) == 1
    pending = client.submit(waits, client.url, client.http.token)
    job = client.submit(waits, client.url, client.http.token, durable=True)
    assert isinstance(job, JobFuture) and job.accepted(WITHIN_S)
    asked: list[Callable[[], Any]] = [
        pending.result,
        job.result,
        pending.exception,
        job.accepted,
        lambda: actorgrid.wait([ended, pending]),
        lambda: list(actorgrid.as_completed([pending])),
        lambda: actorgrid.gather(pending, job),
        lambda: client.submit(str, pending),
    ]
    for ask in asked:
        error = in_child(ask)
        assert isinstance(error, WrongState) and "process that was forked" in error.message
    assert in_child(ended.result) == 1, "what had ended is there"
    assert in_child(lambda: pending.cancel(force=True)) is False
    lock = client.lock("parents", ttl_s=10)
    with lock:
        assert isinstance(in_child(lock.check), LockLost)
    client.state.put(gate, "open")
    assert (pending.result(WITHIN_S), job.result(WITHIN_S)) == ("open", "open")


def test_locks_that_a_thread_of_the_parent_holds_do_not_hold_up_the_child(client: Client) -> None:
    assert client.submit(abs, -1).result(WITHIN_S) == 1
    held, end = threading.Event(), threading.Event()

    def hold() -> None:
        with client.http._lock, client._lock:
            held.set()
            end.wait(WITHIN_S)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(WITHIN_S)
        assert in_child(lambda: client.submit(abs, -2).result(WITHIN_S)) == 2
    finally:
        end.set()
        thread.join()


@pytest.mark.parametrize("method", ["fork", *(pytest.param(name, marks=pytest.mark.system) for name in SLOWER)])
def test_what_a_script_defines_reaches_the_processes_of_a_task_and_comes_back(client: Client, method: str) -> None:
    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

    def squared(x: int) -> Point:
        return Point(x * x)

    def task(method: str) -> list[int]:
        with multiprocessing.get_context(method).Pool(2) as pool:
            return [point.x for point in pool.map(squared, range(4))]

    assert client.submit(task, method).result(WITHIN_S) == [0, 1, 4, 9]
    assert client.submit(task, method, durable=True).result(WITHIN_S) == [0, 1, 4, 9]


IN_A_SUBINTERPRETER = """
try:
    import _interpreters as them
except ImportError:
    import _xxsubinterpreters as them
made = them.create()
told = them.run_string(made, '''
from actorgrid.client.client import Client
from actorgrid.errors import NotSupported
try:
    Client("http://127.0.0.1:1")
except NotSupported as error:
    print(error, flush=True)
''')
print("told:", told, flush=True)
them.destroy(made)
"""


def test_a_client_in_a_subinterpreter_is_refused_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_SUBINTERPRETER], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "needs the main interpreter" in done.stdout and "told: None" in done.stdout, done.stdout + done.stderr
