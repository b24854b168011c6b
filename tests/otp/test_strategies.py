"""Supervisors restart, start and stop real processes as OTP's do."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from actorgrid.errors import ActorDown, ChildExists, NoSuchActor, NoSuchChild, NotSupported, RestartIntensityExceeded
from actorgrid.supervisors.child import SupervisorFlags
from actorgrid.supervisors.exits import ExitReason
from actorgrid.supervisors.supervisor import (
    CountChildren,
    DeleteChild,
    RestartChild,
    StartChild,
    TerminateChild,
)
from tests.otp.conftest import Rig
from tests.processes import is_alive

MakeRig = Callable[..., Rig]
NAMES = ("a", "b", "c")


def request(tree: Rig, message: Any, supervisor: str = "root") -> Any:
    return tree.tree.call(supervisor, message, 30.0)


def all_up(tree: Rig, restarted: set[str], before: dict[str, int]) -> dict[str, int]:
    """Wait until all of *before* are up, those *restarted* anew; gives their pids. The others are as they were."""

    def settled() -> dict[str, int]:
        children = tree.children("team")
        now = {name: child["pid"] for name, child in children.items() if child["state"] == "up"}
        return now if set(now) == set(before) and all(now[name] != before[name] for name in restarted) else {}

    after: dict[str, int] = tree.wait_for(settled, f"a restart of {sorted(restarted)}")
    assert {name for name in before if after[name] != before[name]} == restarted
    return after


@pytest.mark.parametrize(
    ("strategy", "restarted", "notes"),
    [
        ("one_for_one", {"b"}, ["b start"]),
        ("rest_for_one", {"b", "c"}, ["c stop", "b start", "c start"]),
        ("one_for_all", {"a", "b", "c"}, ["c stop", "a stop", "a start", "b start", "c start"]),
    ],
)
def test_a_strategy_says_who_is_stopped_and_started_with_the_one_that_died(
    rig: MakeRig, strategy: str, restarted: set[str], notes: list[str]
) -> None:
    tree = rig()
    tree.up(tree.team("team", *(tree.spec(name) for name in NAMES), flags=SupervisorFlags(strategy)))
    before = tree.pids("team")
    so_far = len(tree.notes())
    os.kill(before["b"], signal.SIGKILL)
    after = all_up(tree, restarted, before)
    assert [" ".join(note.split()[:2]) for note in tree.notes_after(so_far)] == notes
    for name in NAMES:
        assert tree.ask(name, "pid") == after[name]
    assert not [name for name in restarted if is_alive(before[name])]


def test_children_start_in_order_and_stop_in_reverse_through_all_levels(rig: MakeRig) -> None:
    tree = rig()
    branch = tree.team("branch", tree.spec("b1"), tree.team("twig", tree.spec("t1"), tree.spec("t2")), tree.spec("b2"))
    tree.up(tree.spec("first"), branch, tree.spec("last"))
    order = ["watcher", "first", "b1", "t1", "t2", "b2", "last"]
    assert tree.notes() == [f"{name} start" for name in order]
    tree.tree.stop("enough")
    tree.gone()
    assert tree.notes_after(len(order)) == [f"{name} stop enough" for name in reversed(order)]


@pytest.mark.parametrize(
    ("restart", "how", "comes_back"),
    [
        ("permanent", ExitReason("normal"), True),
        ("permanent", ExitReason("shutdown"), True),
        ("transient", ExitReason("normal"), False),
        ("transient", ExitReason("shutdown"), False),
        ("transient", ExitReason("error", "of its own"), True),
        ("transient", "SIGKILL", True),
        ("temporary", ExitReason("normal"), False),
        ("temporary", "SIGKILL", False),
    ],
)
def test_the_restart_type_says_which_ends_are_answered_with_a_restart(
    rig: MakeRig, restart: str, how: ExitReason | str, comes_back: bool
) -> None:
    tree = rig()
    tree.up(tree.spec("child", restart=restart), tree.spec("other"))
    pid = tree.pid("child")
    tree.watch("child")
    if isinstance(how, ExitReason):
        tree.tell("child", "leave", how)
        expected = how.kind
    else:
        os.kill(pid, signal.SIGKILL)
        expected = "killed"
    assert tree.down("child").kind == expected
    if comes_back:
        assert tree.back("child", pid) != pid
    elif restart == "transient":
        tree.wait_for(lambda: tree.children()["child"]["state"] == "down", "the end")
        assert tree.children()["child"]["last_exit"]["kind"] == expected
    else:  # its spec is forgotten
        tree.wait_for(lambda: "child" not in tree.children(), "the end")
    assert set(tree.pids()) == ({"watcher", "child", "other"} if comes_back else {"watcher", "other"})


# -- dynamic children


def test_dynamic_children_are_started_and_ended_on_request_each_with_its_own_arguments(rig: MakeRig) -> None:
    tree = rig()
    pool = tree.team("pool", tree.spec("worker", "Hand", "common"), flags=SupervisorFlags("simple_one_for_one"))
    tree.up(pool)
    assert tree.children("pool") == {}
    first, second, third = (request(tree, StartChild(arguments=(n,)), "pool") for n in range(3))
    assert [tree.ask(child.ref, "arguments") for child in (first, second, third)] == [
        ("common", 0),
        ("common", 1),
        ("common", 2),
    ]
    assert set(tree.children("pool")) == {first.id, second.id, third.id}
    # One dies: it alone comes back, with its arguments.
    os.kill(second.pid, signal.SIGKILL)
    tree.back(second.id, second.pid, "pool")
    again = tree.children("pool")[second.id]
    assert tree.ask(again["ref"], "arguments") == ("common", 1)
    assert tree.children("pool")[first.id]["pid"] == first.pid
    # One is ended by its Ref, one by its id.
    request(tree, TerminateChild(first.ref), "pool")
    request(tree, TerminateChild(second.id), "pool")
    assert set(tree.children("pool")) == {third.id}
    assert not is_alive(first.pid) and not is_alive(again["pid"]) and is_alive(third.pid)
    with pytest.raises(NoSuchChild):
        request(tree, TerminateChild(first.ref), "pool")
    for impossible in (RestartChild(third.id), DeleteChild(third.id)):
        with pytest.raises(NotSupported):
            request(tree, impossible, "pool")
    # All end with their supervisor.
    request(tree, TerminateChild("pool"))
    assert not is_alive(third.pid)


def test_children_are_added_ended_started_again_and_deleted_on_request(rig: MakeRig) -> None:
    tree = rig()
    tree.up(tree.spec("first"))
    info = request(tree, StartChild(tree.spec("second")))
    assert tree.ask("second", "pid") == info.pid and tree.ask("second", "me") == info.ref
    with pytest.raises(ChildExists):
        request(tree, StartChild(tree.spec("second")))
    with pytest.raises(ChildExists):
        request(tree, RestartChild("second"))
    request(tree, TerminateChild("second"))
    assert not is_alive(info.pid)
    assert tree.children()["second"]["state"] == "down"
    assert request(tree, CountChildren()) == {"specs": 3, "active": 2, "supervisors": 0, "workers": 3}
    with pytest.raises(NoSuchActor):
        tree.ask("second", "pid")
    again = request(tree, RestartChild("second"))
    assert tree.ask("second", "pid") == again.pid != info.pid
    with pytest.raises(ChildExists):
        request(tree, DeleteChild("second"))
    request(tree, TerminateChild("second"))
    request(tree, DeleteChild("second"))
    assert set(tree.children()) == {"watcher", "first"}
    with pytest.raises(NoSuchChild):
        request(tree, RestartChild("second"))


def test_requests_may_come_from_servers_of_the_tree_too(rig: MakeRig) -> None:
    tree = rig()
    tree.up(tree.team("pool", tree.spec("worker"), flags=SupervisorFlags("simple_one_for_one")), tree.spec("boss"))
    info = tree.ask("boss", "request", "pool", StartChild())
    assert tree.ask("boss", "ask", info.ref, "pid") == info.pid
    tree.ask("boss", "request", "pool", TerminateChild(info.ref))
    with pytest.raises((ActorDown, NoSuchActor)):
        tree.ask("boss", "ask", info.ref, "pid")


# -- supervisors that end


def test_a_supervisor_ends_in_order_with_its_significant_child(rig: MakeRig) -> None:
    tree = rig()
    purpose = tree.spec("purpose", restart="transient", significant=True)
    flags = SupervisorFlags(auto_shutdown="any_significant")
    tree.up(tree.team("branch", tree.spec("aide"), purpose, flags=flags, restart="transient"), tree.spec("other"))
    tree.watch("branch")
    pids = tree.pids()
    tree.tell("purpose", "leave")
    assert tree.down("branch").kind == "shutdown"
    tree.wait_for(lambda: tree.children()["branch"]["state"] == "down", "the end of the branch")
    assert not is_alive(pids["aide"])
    assert [note.split()[:2] for note in tree.notes()[-2:]] == [["purpose", "stop"], ["aide", "stop"]]
    assert tree.ask("other", "pid") == pids["other"]


def test_with_all_significant_the_last_one_counts(rig: MakeRig) -> None:
    tree = rig()
    flags = SupervisorFlags(auto_shutdown="all_significant")
    done = {"restart": "temporary", "significant": True}
    tree.up(
        tree.team("branch", tree.spec("one", **done), tree.spec("two", **done), flags=flags, restart="temporary"),
    )
    tree.watch("one", "two", "branch")
    tree.tell("one", "leave")
    assert tree.down("one").kind == "normal"
    tree.wait_for(lambda: "one" not in tree.children("branch"), "the end of one")
    assert tree.children()["branch"]["state"] == "up"
    os.kill(tree.pid("two"), signal.SIGKILL)
    kinds = {news.ref.name: news.reason.kind for news in (tree.told("watcher"), tree.told("watcher"))}
    assert kinds == {"two": "killed", "branch": "shutdown"}
    tree.wait_for(lambda: "branch" not in tree.children(), "the end of the branch")


def test_a_supervisor_that_restarts_too_often_gives_up_and_so_does_the_one_above_and_the_tree_says_why(
    rig: MakeRig,
) -> None:
    tree = rig()
    flags = SupervisorFlags(intensity=1, period_s=3600.0)
    branch = tree.team("branch", tree.spec("restless"), tree.spec("quiet"), flags=flags)
    tree.up(branch, tree.spec("other"), intensity=1, period_s=3600.0)
    tree.watch("branch")
    pid = {name: tree.pid(name) for name in ("branch", "restless", "quiet", "other")}
    # Once is allowed: the child alone is restarted.
    os.kill(pid["restless"], signal.SIGKILL)
    pid["restless"] = tree.back("restless", pid["restless"], "branch")
    assert tree.pid("branch") == pid["branch"]
    # Twice is not: the branch stops what it has and ends with an error. Its own supervisor restarts it.
    os.kill(pid["restless"], signal.SIGKILL)
    reason = tree.down("branch")
    assert reason.kind == "error" and "RestartIntensityExceeded" in reason.message and "restless" in reason.message
    assert isinstance(reason.error, RestartIntensityExceeded)
    tree.back("branch", pid["branch"])
    assert not is_alive(pid["quiet"])
    assert tree.ask("other", "pid") == pid["other"]
    assert tree.ask("restless", "pid") == tree.pid("restless")
    # The same again: now that is too often for the root too, and the tree ends in order.
    for _ in range(2):
        victim = tree.pid("restless")
        os.kill(victim, signal.SIGKILL)
        tree.wait_for(lambda victim=victim: tree.tree.gone or moved_on(tree, victim), "what follows")
    tree.gone()
    error = tree.failure().error
    assert isinstance(error, RestartIntensityExceeded) and "branch" in error.message, error
    assert "other stop" in [" ".join(note.split()[:2]) for note in tree.notes()[-2:]]


def moved_on(tree: Rig, pid: int) -> bool:
    try:
        child = tree.children("branch")["restless"]
    except (NoSuchActor, ActorDown):
        return False
    return child["state"] == "up" and child["pid"] != pid
