"""Processes that hold a device without a grant are ended only when it is certain which they are: real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actorgrid.actors.work import strangers
from actorgrid.actors.work.linux import MARK_ATTEMPT, MARK_HOST
from actorgrid.actors.work.messages import EndUngranted
from tests.processes import until

pytestmark = pytest.mark.system
TAG = "0123456789abcdef"
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start a process that is no child of ours, with a file open that stands for a device's."""
    monkeypatch.setattr(strangers, "DEVICE_FILES", (str(tmp_path / "nvidia"),))
    monkeypatch.setattr(strangers.os, "getppid", lambda: 1)  # or all that a test starts is the agent's
    monkeypatch.setattr(strangers.os, "getpid", lambda: 1)
    (tmp_path / "nvidia0").touch()
    started: list[subprocess.Popen[bytes]] = []

    def begin(opened: bool = True, **marks: str) -> subprocess.Popen[bytes]:
        where = tmp_path / ("nvidia0" if opened else "other")
        ready = tmp_path / f"ready{len(started)}"
        script = f"exec 9<>{where}; : > {ready}; exec sleep 600"
        started.append(subprocess.Popen(["sh", "-c", script], env={"PATH": os.environ["PATH"], **marks}))
        until(ready.exists, what="it to run", within_s=60)
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def end(process: subprocess.Popen[bytes], work_id: str = "", since_s: float | None = None, hard: bool = False) -> str:
    since_s = time.clock_gettime(time.CLOCK_BOOTTIME) if since_s is None else since_s
    return strangers.end_stranger(EndUngranted(process.pid, work_id, since_s, hard), TAG, {"live.1"})


def test_what_escaped_of_ended_work_is_told_to_end_and_killed_when_it_stays(start: Start) -> None:
    for hard, number in ((False, signal.SIGTERM), (True, signal.SIGKILL)):
        process = start(False, **{MARK_HOST: TAG, MARK_ATTEMPT: "gone.1"})
        assert end(process, "gone.1", hard=hard) == ""
        assert process.wait(60) == -number


def test_work_that_runs_is_never_ended(start: Start) -> None:
    process = start(**{MARK_HOST: TAG, MARK_ATTEMPT: "live.1"})
    assert end(process, "live.1") == "live.1 runs"
    assert end(process) == "it is of live.1 now"
    assert process.poll() is None


def test_one_that_came_later_under_the_same_number_is_another(start: Start) -> None:
    process = start(**{MARK_HOST: TAG, MARK_ATTEMPT: "gone.1"})
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert end(process, "gone.1", since_s=now_s - 3600) == "it is another process than the one that was seen"
    assert process.poll() is None


def test_what_is_nobodys_is_ended_if_it_has_a_device_open(start: Start) -> None:
    process = start()
    assert end(process) == ""
    assert process.wait(60) == -signal.SIGTERM


def test_what_has_no_device_open_is_not_what_the_driver_means(start: Start) -> None:
    process = start(False)
    assert "another process than ours" in end(process)
    assert process.poll() is None


def test_work_of_another_agent_on_the_machine_is_its_own_affair(start: Start) -> None:
    process = start(**{MARK_HOST: "another", MARK_ATTEMPT: "a.1"})
    assert end(process) == "it is work of another agent on this machine"
    assert process.poll() is None


def test_the_agents_own_processes_are_left_alone(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start()
    monkeypatch.undo()
    assert end(process) == "it is the system's, or the agent's"
    assert process.poll() is None


def test_one_that_is_gone_is_not_ended(start: Start) -> None:
    process = start()
    process.kill()
    process.wait()
    assert "cannot be held" in end(process)
