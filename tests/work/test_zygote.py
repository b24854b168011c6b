"""The zygote and its keeper: requests in order, refusals with a reason, and what a death of either side means."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from actorgrid.actors.work import zygote_link
from actorgrid.actors.work.isolation.probes import means_from
from actorgrid.actors.work.zygote_link import ZygoteLink, bare_environment, command_line
from actorgrid.errors import WorkerLost
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.runtime import Waiter
from actorgrid.transports.frames import FrameDecoder, encode_frame

FAR_OFF = 1e9


class Keeper:
    """A ZygoteLink that runs on a node of its own."""

    def __init__(self) -> None:
        self.node = InlineNode(real_time=True)
        self.warnings: list[str] = []
        self.link = ZygoteLink(self.node, lambda text, *values: self.warnings.append(text % values))

    def outcome(self, waiter: Waiter) -> Any:
        self.node.run_until(lambda: waiter.done, 60.0, "an answer of the zygote")
        try:
            return waiter.result()
        except WorkerLost as error:
            return error


IMPATIENT = pytest.mark.parametrize("keeper", [0.02], indirect=True, ids=["waits for less than any Python takes"])


@pytest.fixture
def keeper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    monkeypatch.setattr(zygote_link, "FORK_PATIENCE_S", getattr(request, "param", zygote_link.FORK_PATIENCE_S))
    keeper = Keeper()
    yield keeper
    keeper.link.stop()
    keeper.node._selector.close()


def test_a_folder_without_a_specification_gets_no_shim_and_the_zygote_serves_on(keeper: Keeper, tmp_path: Path) -> None:
    first, second = keeper.link.fork(str(tmp_path / "a"), FAR_OFF), keeper.link.fork(str(tmp_path / "b"), FAR_OFF)
    assert keeper.link.fork(str(tmp_path / "a"), FAR_OFF) is first  # asked twice is asked once
    keeper.link.start()
    pid = keeper.link.pid
    for waiter in (first, second):
        lost = keeper.outcome(waiter)
        assert isinstance(lost, WorkerLost) and "did not start" in lost.message
    assert keeper.link.pid == pid and keeper.warnings == []


def test_a_killed_zygote_fails_those_who_wait_and_another_takes_its_place(keeper: Keeper, tmp_path: Path) -> None:
    keeper.link.start()
    pid = keeper.link.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    waiter = keeper.link.fork(str(tmp_path / "a"), FAR_OFF)
    os.kill(pid, signal.SIGKILL)
    assert isinstance(keeper.outcome(waiter), WorkerLost)
    keeper.node.run_until(lambda: keeper.link.pid not in (None, pid), 60.0, "another zygote")
    assert keeper.link.restarts == 1 and "status -9" in keeper.warnings[0]
    assert isinstance(keeper.outcome(keeper.link.fork(str(tmp_path / "b"), FAR_OFF)), WorkerLost)


@IMPATIENT
def test_one_that_is_slow_to_start_is_given_twice_as_long_until_it_comes_up(keeper: Keeper, tmp_path: Path) -> None:
    keeper.link.start()
    while "the zygote" in (lost := keeper.outcome(keeper.link.fork(str(tmp_path / "a"), FAR_OFF))).message:
        assert isinstance(lost, WorkerLost)
    assert "did not start" in lost.message  # the folder has no specification: this one was up, and said so
    assert keeper.link.restarts >= 1


def test_who_waits_is_bounded(keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote_link, "MAX_WAITING", 2)
    waiting = [keeper.link.fork(str(tmp_path / str(number)), FAR_OFF) for number in range(3)]
    assert [waiter.done for waiter in waiting] == [False, False, True]
    assert "too many starts" in keeper.outcome(waiting[2]).hint


def test_a_stop_ends_the_zygote_and_refuses_what_comes_later(keeper: Keeper, tmp_path: Path) -> None:
    keeper.link.start()
    pid = keeper.link.pid
    assert pid is not None
    waiting = keeper.link.fork(str(tmp_path / "a"), FAR_OFF)
    keeper.link.stop()
    assert not psutil.pid_exists(pid)
    assert isinstance(keeper.outcome(waiting), WorkerLost)
    assert isinstance(keeper.outcome(keeper.link.fork(str(tmp_path / "b"), FAR_OFF)), WorkerLost)


def test_a_zygote_deaf_to_the_end_of_its_socket_is_killed(keeper: Keeper) -> None:
    keeper.link.start()
    pid = keeper.link.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    keeper.link.stop(patience_s=0.05)
    assert not psutil.pid_exists(pid)


def test_a_zygote_whose_parent_is_another_leaves_at_once() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = command_line(theirs.fileno(), os.getpid() + 1)
        process = subprocess.Popen(command, env=bare_environment({}), pass_fds=[theirs.fileno()])
        theirs.close()
        assert process.wait(30) == 1
        assert ours.recv(1) == b""


def test_the_zygote_holds_nothing_of_its_maker_but_one_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTORGRID_TOKEN", "secret")
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as extra:
        fds = [theirs.fileno(), extra.fileno()]
        process = subprocess.Popen(command_line(fds[0], os.getpid(), "none"), env=bare_environment({}), pass_fds=fds)
        try:
            theirs.close()
            ours.settimeout(30)
            decoder = FrameDecoder()
            (said,) = decoder.feed(ours.recv(4096))
            assert said == ["ready", process.pid, {"kind": "none", "folder": "", "why": "work.containment is none"}]
            ours.sendall(encode_frame(["try"]))
            ((word, means),) = decoder.feed(ours.recv(4096))
            assert word == "tried" and means_from(means).to_plain() == means
            zygote = psutil.Process(process.pid)
            assert "secret" not in str(zygote.environ())
            assert zygote.num_fds() <= 4
            assert zygote.net_connections() == []
            ours.sendall(encode_frame(["what", 1]))
            ours.shutdown(socket.SHUT_WR)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
