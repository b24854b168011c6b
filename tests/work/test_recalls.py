"""A worker gives back what it has not begun, also while a task has its main thread."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from actorgrid.actors.work.recall_watch import RecallWatch
from actorgrid.transports.task_frames import Recalled, encode_cancel, encode_recall
from tests.work.rig import RawClient, Rig


def add(a: int, b: int) -> int:
    return a + b


def wait_for(begun: str, gate: str) -> str:
    """Blocks twice: until somebody reads *begun*, until somebody writes *gate*."""
    Path(begun).write_text("begun")
    return Path(gate).read_text()


def compute_until(begun: str, gate: str) -> str:
    """The same, in Python code all the while."""
    Path(begun).write_text("begun")
    gate_fd = os.open(gate, os.O_RDONLY | os.O_NONBLOCK)
    while True:
        try:
            if data := os.read(gate_fd, 10):
                return data.decode()
        except BlockingIOError:
            sum(range(1000))


for function in (add, wait_for, compute_until):
    function.__module__ = "__main__"


@pytest.fixture
def gates(tmp_path: Path) -> tuple[str, str]:
    """Two named pipes."""
    names = str(tmp_path / "begun"), str(tmp_path / "gate")
    for name in names:
        os.mkfifo(name)
    return names


def open_gate(gate: str) -> None:
    Path(gate).write_text("go")


@pytest.mark.parametrize("long_one", [wait_for, compute_until])
def test_what_waits_behind_a_long_task_is_given_back_while_that_runs(
    rig: Rig, gates: tuple[str, str], long_one: object
) -> None:
    with RawClient(rig.lease("L1")) as client:
        assert client.welcome().answers_recalls
        client.call(add, 1, 1)
        running = client.send(long_one, *gates)
        behind = [client.send(add, number, 1) for number in range(5)]
        assert Path(gates[0]).read_text() == "begun"
        client.socket.sendall(encode_recall())
        answer = client.frame()
        assert isinstance(answer, Recalled) and sorted(answer.task_ids) == behind
        client.socket.sendall(encode_recall())
        assert client.frame() == Recalled([]), "what runs has begun"
        open_gate(gates[1])
        client.result(running)
        assert client.call(add, 2, 3) == 5, "and the worker goes on"


def test_results_of_before_arrive_while_a_long_task_runs(rig: Rig, gates: tuple[str, str]) -> None:
    with RawClient(rig.lease("L1")) as client:
        client.welcome()
        client.call(add, 1, 1)
        quick = [client.send(add, number, 1) for number in range(3)]
        running = client.send(wait_for, *gates)
        assert [client.result(task) for task in quick] == [1, 2, 3], "while the other is held at its gate"
        assert Path(gates[0]).read_text() == "begun"
        open_gate(gates[1])
        client.result(running)


def test_each_task_has_one_answer_whoever_is_faster(rig: Rig) -> None:
    """Recalls race with the worker's own turn: what was given back has not run, and all else has, once."""
    with RawClient(rig.lease("L1")) as client:
        client.welcome()
        for _ in range(20):
            tasks = {client.send(add, number, 1): number + 1 for number in range(200)}
            client.socket.sendall(encode_recall())
            given: list[int] = []
            answered = 0
            while answered + len(given) < len(tasks) or not given:
                frame = client.frame()
                if isinstance(frame, Recalled):
                    given = frame.task_ids
                    if not given:
                        break
                else:
                    assert frame.task_id in tasks and frame.task_id not in given
                    answered += 1
            while answered + len(given) < len(tasks):
                assert client.frame().task_id in tasks
                answered += 1


def test_a_cancelled_task_that_is_recalled_has_one_answer(rig: Rig, gates: tuple[str, str]) -> None:
    with RawClient(rig.lease("L1")) as client:
        client.welcome()
        client.call(add, 1, 1)
        running = client.send(wait_for, *gates)
        behind = client.send(add, 1, 1)
        assert Path(gates[0]).read_text() == "begun"
        client.socket.sendall(encode_cancel(behind) + encode_recall())
        assert client.frame() == Recalled([behind])
        open_gate(gates[1])
        client.result(running)
        assert client.call(add, 2, 2) == 4


def test_a_client_that_breaks_the_protocol_during_a_task_is_dropped_after_it(rig: Rig, gates: tuple[str, str]) -> None:
    with RawClient(rig.lease("L1")) as client:
        client.welcome()
        client.call(add, 1, 1)
        client.send(wait_for, *gates)
        assert Path(gates[0]).read_text() == "begun"
        client.socket.sendall(b"\x00\x00\x00\x01\xc1" + encode_recall())
        open_gate(gates[1])
        seen = []
        while data := client.socket.recv(65536):
            seen.append(data)
        assert b"refused" in b"".join(seen)


def test_the_watch_sleeps_while_there_is_nothing_to_do_and_leaves_signals_to_the_main_thread() -> None:
    watch = RecallWatch(lambda: -1, lambda: None, lambda: True)
    watch.begins()
    assert watch._thread is not None
    watch.ends()
    while not watch._asleep:
        os.sched_yield()
    masks = Path(f"/proc/self/task/{watch._thread.native_id}/status").read_text()
    blocked = int(masks.partition("SigBlk:")[2].split()[0], 16)
    assert blocked & 1 << signal.SIGALRM - 1 and blocked & 1 << signal.SIGTERM - 1
    watch.begins()
    while watch._asleep:
        os.sched_yield()
    watch.ends()


def test_the_watch_listens_only_to_a_task_that_it_has_seen_twice() -> None:
    listened = threading.Event()
    flushed = threading.Event()
    read_end, write_end = os.pipe()

    def listen() -> bool:
        os.read(read_end, 100)
        listened.set()
        return True

    watch = RecallWatch(lambda: read_end, flushed.set, listen)
    watch.begins()
    watch.next_task()
    assert flushed.wait(60), "one that lasts"
    os.write(write_end, b"recall")
    assert listened.wait(60)
    watch.ends()
    while watch._listening:
        os.sched_yield()
    os.close(write_end)
    os.close(read_end)
