"""No descriptor left: what is connected goes on, what is new waits or is refused by name, and nobody spins or dies."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from actorgrid.errors import ActorGridError, CallTimeout, MailboxFull, StartFailed, TooManyActors
from actorgrid.supervisors.supervisor import CountChildren, StartChild, TerminateChild
from tests.otp.limits_servers import (
    Ask,
    Numbered,
    ask,
    children_of,
    cpu_s,
    descriptors,
    lives,
    notes,
    running,
    until,
    worker,
)

PID = Ask("pid")
ALL_BACK = Ask("give_all_back")
LIMIT = 120
MIB = 2**20


def test_an_actor_without_descriptors_answers_those_it_knows_and_takes_new_ones_when_it_has_some(
    tmp_path: Path,
) -> None:
    children = [worker(name) for name in ("hoarder", "friend", "stranger", "bystander")]
    with running(tmp_path, *children) as tree:
        before = lives(tree)
        pid = before["hoarder"][0]
        assert ask(tree, "friend", "forward", "hoarder", PID) == pid
        ask(tree, "hoarder", "limit_descriptors", LIMIT)
        assert ask(tree, "hoarder", "hoard") > 0
        assert descriptors(pid) >= LIMIT

        for _ in range(50):
            assert ask(tree, "friend", "forward", "hoarder", PID) == pid
        with pytest.raises(CallTimeout) as late:
            ask(tree, "stranger", "forward", "hoarder", PID, 0.3)
        assert late.value.hint
        with pytest.raises(MailboxFull) as refused:
            ask(tree, "hoarder", "forward", "bystander", PID)
        assert "descriptor" in refused.value.message and refused.value.hint
        assert ask(tree, "hoarder", "cast", "bystander", Numbered(1), 100) == 0
        assert ask(tree, "friend", "forward", "bystander", PID) == before["bystander"][0]

        # The stranger has waited all the time; what it asks now is answered when there is room for two connections.
        answer = ask(
            tree, "stranger", "forward_and_ask", "hoarder", PID, "friend", Ask("forward", ("hoarder", ALL_BACK))
        )
        assert answer == pid
        assert ask(tree, "hoarder", "forward", "bystander", PID) == before["bystander"][0]
        assert lives(tree) == before


def test_an_actor_without_descriptors_does_not_spin_while_others_knock(tmp_path: Path) -> None:
    names = [f"knocker_{n}" for n in range(4)]
    with running(tmp_path, worker("hoarder"), *(worker(name) for name in names)) as tree:
        pid = lives(tree)["hoarder"][0]
        ask(tree, "hoarder", "limit_descriptors", LIMIT)
        ask(tree, "hoarder", "hoard")
        begun, used = time.monotonic(), cpu_s(pid)
        for name in names:
            tree.cast(name, Ask("forward", ("hoarder", PID, 3600.0)))
        with pytest.raises(CallTimeout):  # there is no event to wait for when nothing is to happen
            ask(tree, names[0], "forward", "hoarder", PID, 1.5)
        share = (cpu_s(pid) - used) / (time.monotonic() - begun)
        assert share < 0.5, "a loop that spins takes a whole processor"
        ask(tree, "hoarder", "give_all_back")
        assert ask(tree, names[0], "forward", "hoarder", PID) == pid


def test_a_supervisor_refuses_by_name_whatever_descriptor_it_is_that_is_missing(tmp_path: Path) -> None:
    boot = tmp_path / "boot"
    with running(tmp_path, worker("calm"), worker("other"), boot=boot) as tree:
        before, pid = lives(tree), ask(tree, "root", "pid")
        ask(tree, "root", "limit_descriptors", LIMIT)
        refusals: list[ActorGridError] = []
        for free in range(20):
            ask(tree, "root", "hoard", free)
            sockets = set(os.listdir(boot))
            try:
                info = tree.call("root", StartChild(worker("more")), 30.0)
            except ActorGridError as error:
                refusals.append(error)
                assert lives(tree) == before
                assert set(os.listdir(boot)) == sockets
                assert tree.registry.whereis("more") is None
            else:
                assert ask(tree, info.ref, "pid") == info.pid
                break
            ask(tree, "root", "give_all_back")
        else:
            raise AssertionError(f"nothing starts any more: {refusals[-1]!r}")
        assert len(refusals) >= 4
        assert {type(error) for error in refusals} <= {TooManyActors, StartFailed}
        assert all("Too many open files" in str(error.found) and "ulimit -n" in str(error.hint) for error in refusals)
        ask(tree, "root", "give_all_back")
        tree.call("root", TerminateChild("more"))
        assert ask(tree, tree.call("root", StartChild(worker("again"))).ref, "pid")
        assert lives(tree)["calm"] == before["calm"] and ask(tree, "root", "pid") == pid


def test_a_start_that_fails_for_want_of_descriptors_loses_none(tmp_path: Path) -> None:
    with running(tmp_path) as tree:
        pid = ask(tree, "root", "pid")
        ask(tree, "root", "limit_descriptors", LIMIT)
        ask(tree, "root", "hoard")
        for _ in range(6):
            opened = descriptors(pid)
            with pytest.raises((TooManyActors, StartFailed)):
                tree.call("root", StartChild(worker("more")), 30.0)
            assert descriptors(pid) == opened
            ask(tree, "root", "give_back", 1)


def test_a_child_that_dies_while_its_supervisor_has_no_descriptors_is_back_when_it_has_some(tmp_path: Path) -> None:
    with running(tmp_path, worker("calm"), worker("victim")) as tree:
        before, pid = lives(tree), ask(tree, "root", "pid")
        ask(tree, "root", "limit_descriptors", LIMIT)
        ask(tree, "root", "hoard")
        os.kill(before["victim"][0], signal.SIGKILL)
        until(lambda: children_of(tree)["victim"]["restarts"] >= 1, "the supervisor has seen it")
        assert ask(tree, "calm", "forward", "root", CountChildren(), 5.0)["specs"] == 2
        ask(tree, "root", "give_all_back")
        until(lambda: children_of(tree)["victim"]["state"] == "up", "it is back")
        assert ask(tree, "victim", "pid") == lives(tree)["victim"][0] != before["victim"][0]
        assert lives(tree)["calm"] == before["calm"] and ask(tree, "root", "pid") == pid


def test_a_tree_whose_supervisor_has_no_descriptors_stops_in_order(tmp_path: Path) -> None:
    with running(tmp_path, worker("first"), worker("last")) as tree:
        ask(tree, "root", "limit_descriptors", LIMIT)
        ask(tree, "root", "hoard")
    assert notes(tmp_path)[-2:] == ["last stop", "first stop"]


@pytest.mark.parametrize("who", ["left", "right"])
def test_large_messages_go_through_when_one_side_has_no_descriptor_for_a_file(tmp_path: Path, who: str) -> None:
    with running(tmp_path, worker("left"), worker("right")) as tree:
        assert ask(tree, "left", "forward", "right", PID) and ask(tree, "right", "forward", "left", PID)
        before = lives(tree)
        ask(tree, who, "limit_descriptors", LIMIT)
        ask(tree, who, "hoard")
        for size in (MIB, 8 * MIB):
            sent, got = ask(tree, "left", "exchange", "right", size)
            assert sent.removesuffix(str(size)) == got.removesuffix(str(size)) and got.endswith(str(size))
        assert lives(tree) == before
