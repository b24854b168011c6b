"""However a process ends: its supervisor knows at once and why, restarts it, and nobody else is touched."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from actorgrid.errors import ActorDown, StartFailed, WrongState
from actorgrid.supervisors.supervisor import TerminateChild
from tests.otp.conftest import Rig
from tests.otp.servers import Do

MakeRig = Callable[..., Rig]


def test_a_segfault_ends_the_process_at_once_and_leaves_the_python_traceback(rig: MakeRig) -> None:
    tree = rig()
    tree.up(tree.spec("victim"), tree.spec("other"))
    before = tree.pids()
    tree.watch("victim")
    with pytest.raises(ActorDown):
        tree.ask("victim", "segfault")
    reason = tree.down("victim")
    assert (reason.kind, reason.exit_status) == ("error", -signal.SIGSEGV)
    assert "Segmentation fault" in reason.traceback and "in do_segfault" in reason.traceback
    after = tree.back("victim", before["victim"])
    assert tree.ask("victim", "pid") == after
    assert tree.children()["victim"]["restarts"] == 1
    assert tree.pids() == {**before, "victim": after}


@pytest.mark.parametrize(("status", "kind"), [(0, "normal"), (7, "error")])
def test_a_process_that_leaves_without_a_word_is_known_by_its_exit_status(rig: MakeRig, status: int, kind: str) -> None:
    tree = rig()
    tree.up(tree.spec("victim"))
    pid = tree.pid("victim")
    tree.watch("victim")
    with pytest.raises(ActorDown):
        tree.ask("victim", "exit", status)
    reason = tree.down("victim")
    assert (reason.kind, reason.exit_status) == (kind, status)
    tree.back("victim", pid)


def test_sys_exit_in_a_handler_is_a_crash_like_any_other(rig: MakeRig) -> None:
    tree = rig()
    tree.up(tree.spec("victim"))
    pid = tree.pid("victim")
    tree.watch("victim")
    with pytest.raises(ActorDown):
        tree.ask("victim", "sys_exit", 3)
    reason = tree.down("victim")
    assert (reason.kind, reason.message) == ("error", "SystemExit: 3")
    assert "in do_sys_exit" in reason.traceback
    tree.back("victim", pid)


def test_sigkill_is_told_as_killed(rig: MakeRig) -> None:
    tree = rig()
    tree.up(tree.spec("victim"))
    pid = tree.pid("victim")
    tree.watch("victim")
    os.kill(pid, signal.SIGKILL)
    reason = tree.down("victim")
    assert (reason.kind, reason.exit_status) == ("killed", -signal.SIGKILL)
    tree.back("victim", pid)
    assert tree.notes() == ["watcher start", "victim start", "victim start"]


def test_sigterm_runs_the_orderly_stop_and_is_told_as_shutdown(rig: MakeRig) -> None:
    tree = rig()
    tree.up(tree.spec("victim"))
    pid = tree.pid("victim")
    tree.watch("victim")
    os.kill(pid, signal.SIGTERM)
    reason = tree.down("victim")
    assert (reason.kind, reason.message) == ("shutdown", "SIGTERM")
    tree.back("victim", pid)
    assert tree.notes()[1:] == ["victim start", "victim stop SIGTERM", "victim start"]


def test_an_exception_runs_its_handler_once_and_takes_its_half_done_state_with_it(rig: MakeRig) -> None:
    tree = rig()
    tree.up(tree.spec("victim"))
    pid = tree.pid("victim")
    tree.watch("victim")
    tree.ask("victim", "add", "kept until then")
    with pytest.raises(ActorDown, match="an invariant"):
        tree.ask("victim", "break")
    reason = tree.down("victim")
    assert (reason.kind, reason.message) == ("error", "Broken: an invariant")
    assert "in do_break" in reason.traceback
    tree.back("victim", pid)
    assert tree.ask("victim", "seen") == []
    assert tree.notes()[1:] == ["victim start", "victim handler", "victim start"]


def test_nobody_is_served_between_a_crash_and_the_end_of_the_process(rig: MakeRig) -> None:
    tree = rig()
    tree.up(tree.spec("victim"), tree.spec("asker"))
    pid = tree.pid("victim")
    tree.ask("asker", "cast", "victim", Do("break"))
    for _ in range(20):
        tree.ask("asker", "cast", "victim", Do("break"))
    tree.back("victim", pid)
    generations: list[list[str]] = []
    for note in tree.notes():
        if note == "victim start":
            generations.append([])
        elif note == "victim handler":
            generations[-1].append(note)
    assert generations and all(len(handlers) <= 1 for handlers in generations)


def test_a_named_error_is_an_answer_and_no_crash(rig: MakeRig) -> None:
    tree = rig()
    tree.up(tree.spec("victim"))
    pid = tree.pid("victim")
    with pytest.raises(WrongState, match="not now"):
        tree.ask("victim", "refuse")
    assert tree.ask("victim", "pid") == pid


@pytest.mark.parametrize(
    ("what", "where"),
    [
        ("break_in_background", "in work"),
        ("break_in_a_timer", "in fire"),
        ("break_in_a_descriptor_callback", "in ready"),
    ],
)
def test_a_bug_outside_of_handlers_is_a_crash_too(rig: MakeRig, what: str, where: str) -> None:
    tree = rig()
    tree.up(tree.spec("victim"))
    pid = tree.pid("victim")
    tree.watch("victim")
    tree.tell("victim", what)
    reason = tree.down("victim")
    assert reason.kind == "error" and reason.message.startswith("Broken: in ")
    assert where in reason.traceback
    tree.back("victim", pid)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("BreaksStopping", "Broken: in stop"),
        ("BreaksStoppingLater", "Broken: in stop"),
        ("RefusesToStop", "WrongState: there is more to do"),
    ],
)
def test_a_stop_that_raises_ends_the_process_all_the_same_and_says_why(rig: MakeRig, kind: str, message: str) -> None:
    tree = rig()
    tree.up(tree.spec("victim", kind, shutdown="infinity"))
    tree.watch("victim")
    tree.tree.call("root", TerminateChild("victim"))
    reason = tree.down("victim")
    assert (reason.kind, reason.message) == ("error", message)
    assert "in stop" in reason.traceback
    assert [note.split()[:2] for note in tree.notes()[1:]] == [["victim", "start"], ["victim", "stop"]]


def test_memory_beyond_the_limit_ends_that_process_alone_and_the_reason_says_so(rig: MakeRig) -> None:
    tree = rig()
    tree.up(tree.spec("victim", memory_mib=64), tree.spec("other"))
    before = tree.pids()
    tree.watch("victim")
    assert tree.ask("victim", "allocate", 16) == 16 * 2**20
    with pytest.raises(ActorDown, match="MemoryError"):
        tree.ask("victim", "allocate", 200)
    reason = tree.down("victim")
    assert reason.kind == "error" and "over its limit of 64 MiB" in reason.message
    assert "in do_allocate" in reason.traceback
    after = tree.back("victim", before["victim"])
    assert tree.ask("other", "allocate", 200) == 200 * 2**20
    assert tree.pids() == {**before, "victim": after}


# -- starts


def test_a_tree_whose_child_dies_in_its_start_does_not_come_up(rig: MakeRig, tmp_path: Path) -> None:
    tree, poison = rig(), tmp_path / "poison"
    poison.touch()
    with pytest.raises(StartFailed, match="victim"):
        tree.up(tree.spec("first"), tree.spec("victim", "DiesStarting", str(poison)))
    tree.gone()
    assert [note.split()[:2] for note in tree.notes()] == [
        ["watcher", "start"],
        ["first", "start"],
        ["victim", "start"],
        ["first", "stop"],
        ["watcher", "stop"],
    ]


def test_a_restart_that_dies_is_tried_again_until_it_comes_up(rig: MakeRig, tmp_path: Path) -> None:
    tree, poison = rig(), tmp_path / "poison"
    tree.up(tree.spec("victim", "DiesStarting", str(poison)), tree.spec("other"))
    before = tree.pids()
    poison.touch()
    os.kill(before["victim"], signal.SIGKILL)
    tree.wait_for(lambda: tree.notes().count("victim start") >= 3, "two attempts")
    assert "exit status 9" in tree.children()["victim"]["last_exit"]["reason"]
    poison.unlink()
    after = tree.back("victim", before["victim"])
    assert tree.pids() == {**before, "victim": after}


def test_a_bug_in_a_start_is_named(rig: MakeRig) -> None:
    tree = rig()
    with pytest.raises(StartFailed, match=r"victim did not start: Broken\('in start'\)"):
        tree.up(tree.spec("victim", "BreaksStarting"))
    tree.gone()


@pytest.mark.parametrize("kind", ["NeverStarts", "BlocksStarting"])
def test_a_start_that_never_ends_is_killed_at_its_timeout(rig: MakeRig, kind: str) -> None:
    tree = rig()
    with pytest.raises(StartFailed, match=r"victim did not start in 0\.2 s"):
        tree.up(tree.spec("victim", kind, start_timeout_s=0.2))
    tree.gone()
    assert "victim start" in tree.notes()


# -- stops


@pytest.mark.parametrize("kind", ["StopsLater", "BlocksStopping"])
def test_a_stop_that_hangs_is_killed_when_its_shutdown_time_is_over(rig: MakeRig, kind: str) -> None:
    tree = rig()
    tree.up(tree.spec("victim", kind, shutdown=0.2))
    tree.watch("victim")
    tree.tree.call("root", TerminateChild("victim"))
    assert tree.down("victim").kind == "killed"
    assert tree.children()["victim"]["state"] == "down"
    assert "stop" in tree.notes()[-1] and tree.notes()[-1] != "victim stopped"


def test_a_brutal_kill_runs_no_stop(rig: MakeRig) -> None:
    tree = rig()
    tree.up(tree.spec("victim", shutdown="brutal_kill"))
    tree.watch("victim")
    tree.tree.call("root", TerminateChild("victim"))
    assert tree.down("victim").kind == "killed"
    assert tree.notes()[1:] == ["victim start"]


def test_shutdown_infinity_waits_as_long_as_the_stop_takes(rig: MakeRig) -> None:
    tree = rig()
    tree.up(
        tree.spec("patient", "StopsLater", shutdown="infinity"),
        tree.spec("killed", "StopsLater", shutdown=1.0),
    )
    tree.watch("patient")
    assert tree.tree.cast("root", TerminateChild("patient"))
    tree.wait_for(lambda: tree.children()["patient"]["state"] == "stopping", "the stop under way")
    # Another that takes too long is stopped and killed meanwhile, by the same clock.
    tree.tree.call("root", TerminateChild("killed"))
    assert tree.children()["patient"]["state"] == "stopping"
    tree.tell("patient", "let_go", None)
    assert tree.down("patient").kind == "shutdown"
    tree.wait_for(lambda: tree.children()["patient"]["state"] == "down", "the end")
    assert tree.notes()[-1] == "patient stopped"
