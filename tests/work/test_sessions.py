from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from actorgrid.actors.work.containment import choose
from actorgrid.errors import (
    PeerRefused,
    PythonMismatch,
    TaskCancelled,
    TaskFailed,
    TaskTimedOut,
    UnknownAllocation,
    UnknownKey,
    UnpicklableResult,
    WrongToken,
)
from actorgrid.transports.task_frames import encode_cancel, encode_hello, encode_task
from tests.work.rig import RawClient, Rig, alive


def add(a: int, b: int) -> int:
    return a + b


add.__module__ = "__main__"


def test_a_leased_worker_runs_tasks(rig: Rig) -> None:
    grant = rig.lease("L1")
    assert (grant["tenancy"], grant["enforcement"], grant["gpu_uuids"]) == ("single", "none", [])
    assert (grant["containment"], grant["containment_limit"]) == (choose().kind, choose().limit(os.getuid()))
    assert os.stat(grant["socket_path"]).st_mode & 0o777 == 0o600
    with RawClient(grant) as client:
        welcome = client.welcome()
        assert welcome.worker_id == grant["worker_id"]
        assert client.call(add, 1, 2) == 3
        tasks = [client.send(add, number, 1) for number in range(1000)]
        assert client.result(tasks[-1]) == 1000


def test_an_error_in_a_task_brings_traceback_and_exception(rig: Rig) -> None:
    def fail() -> None:
        raise KeyError("nothing here")

    fail.__module__ = "__main__"
    with RawClient(rig.lease("L1")) as client:
        client.welcome()
        with pytest.raises(TaskFailed) as caught:
            client.call(fail)
        assert "in fail" in caught.value.remote_traceback
        assert isinstance(caught.value, KeyError)
        assert client.call(add, 1, 1) == 2


def test_an_exception_that_cannot_be_carried_is_left_out_and_the_error_says_so(rig: Rig) -> None:
    def fail() -> None:
        import threading

        class Picky(Exception):
            lock = threading.Lock()  # of the class itself, which travels by value

        raise Picky("picky")

    fail.__module__ = "__main__"
    with RawClient(rig.lease("L1")) as client:
        client.welcome()
        with pytest.raises(TaskFailed, match="picky") as caught:
            client.call(fail)
        assert caught.value.__cause__ is None
        assert "cannot pickle '_thread.lock'" in str(caught.value.details["left_behind"])


def test_a_result_that_cannot_be_pickled_is_named(rig: Rig) -> None:
    with RawClient(rig.lease("L1")) as client:
        client.welcome()
        with pytest.raises(UnpicklableResult):
            client.call(threading.Lock)


def test_a_task_past_its_time_is_stopped_and_the_worker_stays(rig: Rig) -> None:
    def stubborn() -> None:
        while True:
            try:
                time.sleep(100)
            except Exception:  # noqa: BLE001 - what users write
                continue

    stubborn.__module__ = "__main__"
    with RawClient(rig.lease("L1")) as client:
        pid = client.welcome().pid
        with pytest.raises(TaskTimedOut):
            client.call(stubborn, timeout_s=0.2)
        assert client.call(os.getpid) == pid


def test_what_a_task_prints_reaches_its_client_and_the_workers_file(rig: Rig) -> None:
    def talk() -> str:
        print("hello")
        return "done"

    talk.__module__ = "__main__"
    grant = rig.lease("L1")
    with RawClient(grant) as client:
        client.welcome()
        assert client.call(talk) == "done"
        assert client.outputs == [("stdout", b"hello\n")]
    kept = rig.paths.workers_dir / grant["worker_id"] / "stdout"
    rig.node.run_until(lambda: kept.read_bytes() == b"hello\n", what="the worker's own file")


def test_a_task_that_has_not_started_can_be_cancelled(rig: Rig, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")

    def wait() -> None:
        while not os.path.exists(gate):
            time.sleep(0.005)

    wait.__module__ = "__main__"
    with RawClient(rig.lease("L1")) as client:
        client.welcome()
        client.send(wait)
        waiting = client.send(add, 1, 1)
        client.socket.sendall(encode_cancel(waiting))
        Path(gate).touch()
        with pytest.raises(TaskCancelled):
            client.result(waiting)


def test_an_unknown_function_is_asked_for_again(rig: Rig) -> None:
    with RawClient(rig.lease("L1")) as client:
        client.welcome()
        client.socket.sendall(encode_task(7, b"0" * 16, pickle.dumps(((), {}))))
        with pytest.raises(UnknownKey):
            client.result(7)


def test_a_wrong_secret_is_refused(rig: Rig) -> None:
    grant = rig.lease("L1")
    with RawClient(grant, secret="guess") as stranger, pytest.raises(WrongToken):
        stranger.welcome()
    with RawClient(grant) as client:
        client.welcome()


class Bomb:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (self.path, "w"))


def test_nothing_is_unpickled_before_the_secret_is_known(rig: Rig, tmp_path: Path) -> None:
    grant = rig.lease("L1")
    mark = tmp_path / "exploded"
    bomb = pickle.dumps(Bomb(str(mark)))
    for opening in (encode_hello("guess", "3.11", "s1"), b""):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(grant["socket_path"])
            stranger.sendall(opening + encode_task(1, b"0" * 16, bomb))
            while stranger.recv(65536):
                pass
    with RawClient(grant) as client:
        client.welcome()
        assert client.call(add, 1, 1) == 2
    assert not mark.exists()


def test_another_python_is_refused(rig: Rig) -> None:
    with RawClient(rig.lease("L1"), python="2.7") as client, pytest.raises(PythonMismatch):
        client.welcome()


def test_a_worker_serves_one_client_at_a_time(rig: Rig) -> None:
    grant = rig.lease("L1")
    with RawClient(grant) as first:
        first.welcome()
        with RawClient(grant) as second, pytest.raises(PeerRefused):
            second.welcome()
        assert first.call(add, 1, 1) == 2


def test_a_secret_is_good_for_one_client(rig: Rig) -> None:
    grant = rig.lease("L1")
    with RawClient(grant) as client:
        client.welcome()
    with RawClient(grant) as client, pytest.raises((WrongToken, PeerRefused)):
        client.welcome()


def test_malformed_frames_end_the_connection_and_not_the_worker(rig: Rig) -> None:
    grant = rig.lease("L1")
    for junk in (b"\xff" * 100, struct.pack(">I", 3) + b"\xc1\xc1\xc1", struct.pack(">I", 2) + b"\x91\x01"):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(60)
            stranger.connect(grant["socket_path"])
            stranger.sendall(junk)
            while stranger.recv(65536):
                pass
    with RawClient(grant) as client:
        assert alive(client.welcome().pid)


def test_a_worker_whose_client_broke_protocol_is_not_reused(rig: Rig) -> None:
    grant = rig.lease("L1")
    with RawClient(grant) as client:
        client.welcome()
        client.socket.sendall(struct.pack(">I", 3) + b"\xc1\xc1\xc1")
        while client.frame() is not None:
            pass
    rig.node.run_until(lambda: all(worker.spoiled for worker in rig.manager._leases.workers()))  # type: ignore[union-attr]
    rig.release("L1")
    assert rig.lease("L2")["worker_id"] != grant["worker_id"]


def test_a_gpu_worker_sees_exactly_its_devices(rig: Rig) -> None:
    resources = {"gpus": 0.5, "gpu_count": 1, "gpu_milli": 500}
    grant = rig.lease("L1", [3], resources=resources, env={"COLOUR": "red"})
    assert grant["gpu_uuids"] == ["GPU-sim-3"]
    with RawClient(grant) as client:
        assert client.welcome().gpu_uuids == ["GPU-sim-3"]
        env = client.call(dict(os.environ).__class__, {}) or client.call(eval, "dict(__import__('os').environ)")
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-sim-3"
    assert env["ROCR_VISIBLE_DEVICES"] == ""
    assert env["COLOUR"] == "red"


def test_a_released_gpu_worker_ends_and_a_busy_one_too(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    grant = rig.lease("L1", [0])
    with RawClient(grant) as client:
        pid = client.welcome().pid
        client.send(time.sleep, 1000)
        rig.release("L1")
        rig.node.run_until(lambda: not alive(pid), what="the worker's end")
    monkeypatch.setattr("actorgrid.actors.work.leases.ATTACH_WAIT_S", 0.2)  # of a lease that never comes
    with pytest.raises(UnknownAllocation):
        rig.attach("L1")


def test_a_cpu_worker_goes_back_for_its_session_only(rig: Rig) -> None:
    first = rig.lease("L1", session_id="mine")
    rig.release("L1")
    manager = rig.manager
    assert manager is not None
    rig.node.run_until(lambda: manager.metrics().get("workers_general_idle") == 1, what="idle")
    other = rig.lease("L2", session_id="other")
    assert other["worker_id"] != first["worker_id"]
    assert rig.lease("L3", session_id="mine")["worker_id"] == first["worker_id"]


def test_a_worker_that_keeps_too_much_memory_is_ended_when_its_session_lets_go(make_rig) -> None:  # type: ignore[no-untyped-def]
    rig = make_rig(work__pools__general__memory_max_bytes=150 * 2**20)
    manager = rig.start_manager()
    grant = rig.lease("L1", session_id="mine")
    with RawClient(grant) as client:
        client.welcome()
        kept = "len(__import__('builtins').__dict__.setdefault('kept', bytearray(b'x' * (200 * 2**20))))"
        assert client.call(eval, kept) == 200 * 2**20
        row = next(each for each in manager.status()["each_worker"] if each["worker"] == grant["worker_id"])
        assert (row["pool"], row["state"], row["lease"], row["leases"]) == ("general", "leased", "L1", 1)
        assert row["memory_bytes"] > 200 * 2**20 and row["cpu_s"] > 0
    rig.release("L1")
    rig.node.run_until(lambda: manager.metrics()["workers_memory_ended_total"] == 1, what="it is ended")
    assert rig.lease("L2", session_id="mine")["worker_id"] != grant["worker_id"]


def test_a_dead_worker_gives_its_lease_back(rig: Rig) -> None:
    grant = rig.lease("L1", [0])
    with RawClient(grant) as client:
        os.kill(client.welcome().pid, signal.SIGKILL)
        assert client.frame() is None
    manager = rig.manager
    assert manager is not None
    rig.node.run_until(lambda: "L1" not in manager._ledger.allocations, what="lease released")
    assert rig.lease("L2", [0])["worker_id"] != grant["worker_id"]


def test_warm_workers_wait_and_are_replaced(make_rig) -> None:  # type: ignore[no-untyped-def]
    rig = make_rig(work__pools__general__warm=2)
    manager = rig.start_manager()
    rig.node.run_until(lambda: manager.metrics().get("workers_general_idle") == 2, what="two warm workers")
    rig.lease("L1")
    rig.node.run_until(lambda: manager.metrics().get("workers_general_idle") == 2, what="replaced")
    assert manager.metrics()["workers_general_leased"] == 1


def test_a_session_worker_over_its_memory_is_ended(rig: Rig) -> None:
    grant = rig.lease("L1", resources={"memory_mib": 200})
    with RawClient(grant) as client:
        client.welcome()
        code = "(lambda x: __import__('time').sleep(1000))(bytearray(400 * 2**20))"
        client.send(eval, code)
        assert client.frame() is None


def test_functions_are_kept_per_client_only(rig: Rig) -> None:
    grant = rig.lease("L1")
    with RawClient(grant) as client:
        client.welcome()
        client.call(add, 1, 1)
        known = set(client.known)
    with RawClient(rig.attach("L1")) as client:
        client.welcome()
        client.known = known
        with pytest.raises(UnknownKey):
            client.call(add, 1, 1)


def test_a_task_may_use_cloudpickled_classes(rig: Rig) -> None:
    def make() -> Any:
        class Point:
            x = 4

        return Point()

    make.__module__ = "__main__"
    with RawClient(rig.lease("L1")) as client:
        client.welcome()
        assert client.call(make).x == 4
    assert cloudpickle
