from __future__ import annotations

import os
import pickle
import sys
import threading
from typing import Any

from actorgrid.errors import TaskFailed
from actorgrid.fencing import FencingToken
from actorgrid.transports.task_frames import decode_result
from tests.work.rig import Input, Rig


def value_of(rig: Rig, attempt_id: str) -> Any:
    result = decode_result(rig.dir(attempt_id).result.read_bytes())
    assert result.value is not None
    return pickle.loads(result.value)


def by_value(function: Any) -> Any:
    """Pickle the function's code, not its name: workers cannot import the tests."""
    function.__module__ = "__main__"
    return function


def test_a_function_leaves_its_value(rig: Rig) -> None:
    rig.submit_function("f", by_value(lambda a, b: {"sum": a + b}), 1, 2)
    job = rig.run("f")
    assert job["state"] == "succeeded"
    assert value_of(rig, "f.1") == {"sum": 3}
    assert job["attempts"][0]["result_bytes"] == rig.dir("f.1").result.stat().st_size


def test_a_function_that_raises_brings_its_traceback_and_exception(rig: Rig) -> None:
    def divide(x: int) -> float:
        return x / 0

    rig.submit_function("f", by_value(divide), 1)
    job = rig.run("f")
    assert job["state"] == "failed"
    assert job["error"]["code"] == "TaskFailed"
    assert "ZeroDivisionError" in job["error"]["message"]
    traceback = job["error"]["details"]["traceback"]
    assert "in divide" in traceback
    assert "actors/work" not in traceback
    result = decode_result(rig.dir("f.1").result.read_bytes())
    assert isinstance(result.error, TaskFailed)
    assert result.exception is not None
    assert isinstance(pickle.loads(result.exception), ZeroDivisionError)
    assert "ZeroDivisionError" in rig.output("f.1", "stderr")


def test_a_result_that_cannot_be_pickled_is_named(rig: Rig) -> None:
    rig.submit_function("f", by_value(lambda: threading.Lock()))
    job = rig.run("f")
    assert job["error"]["code"] == "UnpicklableResult"
    assert "lock" in job["error"]["message"]


def test_too_large_a_result_is_refused(make_rig) -> None:  # type: ignore[no-untyped-def]
    rig = make_rig(work__max_result_bytes=10_000)
    rig.start_manager()
    rig.submit_function("f", by_value(lambda: b"0" * 20_000))
    assert rig.run("f")["error"]["code"] == "UnpicklableResult"


def test_what_a_function_prints_is_kept(rig: Rig) -> None:
    def talk() -> None:
        print("hello")
        os.write(2, b"raw\n")

    rig.submit_function("f", by_value(talk))
    rig.run("f")
    assert rig.output("f.1") == "hello\n"
    assert rig.output("f.1", "stderr") == "raw\n"


def test_another_python_is_refused_by_name(rig: Rig) -> None:
    digest = rig.blob(b"not even pickle")
    rig.submit("f", kind="function", command=[], payload_digest=digest, python="2.7")
    assert rig.run("f")["error"]["code"] == "PythonMismatch"


def test_a_payload_that_was_tampered_with_does_not_run(rig: Rig) -> None:
    digest = rig.blob(pickle.dumps(1))
    (rig.paths.blobs_dir / digest).write_bytes(pickle.dumps(2))
    rig.submit("f", kind="function", command=[], payload_digest=digest)
    job = rig.run("f")
    assert job["state"] == "failed"
    assert "does not match its digest" in job["error"]["message"]


def test_results_of_other_jobs_come_in_as_values(rig: Rig) -> None:
    rig.submit_function("one", by_value(lambda: [1, 2]))
    rig.run("one")
    rig.submit_function("two", by_value(lambda xs, y: [*xs, y]), Input("one"), 3, depends_on=["one"])
    assert rig.run("two")["state"] == "succeeded"
    assert value_of(rig, "two.1") == [1, 2, 3]


def test_an_input_that_is_gone_is_named(rig: Rig) -> None:
    rig.run("one", command=["true"])
    rig.submit_function("two", by_value(lambda x: x), Input("one"), depends_on=["one"])
    assert rig.run("two")["error"]["code"] == "DependencyFailed"


def test_a_function_that_leaves_the_process_fails_without_a_result(rig: Rig) -> None:
    rig.submit_function("f", by_value(lambda: os._exit(0)))
    job = rig.run("f")
    assert job["state"] == "failed"
    assert "without a result" in job["error"]["message"]


def test_sys_exit_is_a_failure_with_a_hint(rig: Rig) -> None:
    rig.submit_function("f", by_value(lambda: sys.exit(0)))
    job = rig.run("f")
    assert job["state"] == "failed"
    assert "return" in job["error"]["hint"]


def test_a_function_sees_its_devices_and_nothing_of_the_agent(make_rig, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("ACTORGRID_TOKEN", "secret-of-the-agent")
    rig = make_rig()
    rig.start_manager()

    def peek() -> tuple[Any, ...]:
        numbers = [n for n in os.listdir("/proc/self/fd") if n not in "012"]
        fds = [os.readlink(f"/proc/self/fd/{n}") for n in numbers if os.path.exists(f"/proc/self/fd/{n}")]
        with open("/proc/self/environ", "rb") as file:
            first = file.read()
        with open("/proc/self/cmdline", "rb") as file:
            title = file.read().rstrip(b"\0").decode()
        return dict(os.environ), [fd for fd in fds if "/proc/" not in fd], first, title

    rig.submit_function("f", by_value(peek), resources={"gpus": 1.0, "gpu_count": 1, "gpu_milli": 1000})
    assert rig.run("f", [2])["state"] == "succeeded"
    env, fds, first, title = value_of(rig, "f.1")
    assert env["CUDA_VISIBLE_DEVICES"] == env["ACTORGRID_DEVICES"] == "GPU-sim-2"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert env["ACTORGRID_TOKEN"] == str(FencingToken(*rig.job("f")["attempts"][0]["token"]))
    assert b"secret-of-the-agent" not in first
    assert b"ACTORGRID_ATTEMPT=f.1\0" in first  # so that it is found even when only forked
    assert fds == []
    assert title == "actorgrid: worker general job f.1"
