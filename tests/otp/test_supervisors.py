"""When a supervisor dies nothing below it survives, and whoever is above it builds it anew.

That a whole host is built anew is shown in tests/host/test_host.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from actorgrid.errors import ActorDown, NoSuchActor, PeerGone
from tests.otp.conftest import Front, Rig, wait_until
from tests.processes import is_alive

MakeRig = Callable[..., Rig]


def forest(tree: Rig) -> dict[str, int]:
    """Two branches, one of them deeper; gives all pids."""
    twig = tree.team("twig", tree.spec("bud"))
    tree.up(tree.team("branch", tree.spec("leaf"), twig), tree.team("other_branch", tree.spec("other_leaf")))
    return tree.pids()


BRANCH = {"branch", "leaf", "twig", "bud"}


def test_a_killed_supervisor_leaves_no_orphan_and_its_supervisor_restores_the_subtree(rig: MakeRig) -> None:
    tree = rig()
    before = forest(tree)
    tree.watch("branch")
    os.kill(before["branch"], signal.SIGKILL)
    assert tree.down("branch").kind == "killed"
    # The supervisor above buries it when its last descendant is gone, so by now all are.
    assert not [name for name in BRANCH if is_alive(before[name])]
    tree.back("branch", before["branch"])
    after = tree.pids()
    assert set(after) == set(before)
    assert {name for name in before if after[name] != before[name]} == BRANCH
    for name in ("leaf", "bud", "other_leaf"):
        assert tree.ask(name, "pid") == after[name]
        assert tree.ask("watcher", "ask", name, "pid") == after[name]
        assert tree.ask("watcher", "whereis", name) == tree.ask(name, "me")


def test_a_supervisor_deep_in_the_tree_takes_only_its_own_with_it(rig: MakeRig) -> None:
    tree = rig()
    before = forest(tree)
    os.kill(before["twig"], signal.SIGKILL)
    tree.back("twig", before["twig"], supervisor="branch")
    after = tree.pids()
    assert {name for name in before if after[name] != before[name]} == {"twig", "bud"}
    assert tree.ask("bud", "pid") == after["bud"]


def test_who_dies_with_its_supervisor_is_told_as_killed_to_those_who_watch_it(rig: MakeRig) -> None:
    tree = rig()
    before = forest(tree)
    tree.watch("leaf", "bud")
    os.kill(before["branch"], signal.SIGKILL)
    reasons = [tree.down(), tree.down()]
    assert [reason.kind for reason in reasons] == ["killed", "killed"]
    assert all("supervisor" in reason.message for reason in reasons)


def test_a_call_to_a_server_whose_supervisor_is_killed_fails_at_once(rig: MakeRig) -> None:
    tree = rig()
    before = forest(tree)
    tree.tell("watcher", "request_and_tell", "bud", "wait")
    tree.wait_for(lambda: "bud waits" in tree.notes(), "the call under way")
    os.kill(before["branch"], signal.SIGKILL)
    assert tree.told("watcher") == "ActorDown"


def test_a_message_to_a_subtree_that_is_down_is_refused_and_kills_nobody(rig: MakeRig) -> None:
    tree = rig()
    before = forest(tree)
    bud = tree.ask("bud", "me")
    os.kill(before["branch"], signal.SIGKILL)
    tree.back("branch", before["branch"])
    with pytest.raises(NoSuchActor):
        tree.ask(bud, "pid")
    with pytest.raises(NoSuchActor):
        tree.ask("watcher", "ask", bud, "pid")
    assert tree.ask("watcher", "cast", bud, "anybody?") is False
    assert tree.ask("watcher", "pid") == before["watcher"]


@pytest.mark.parametrize("victim", ["the admin", "the root"])
def test_when_the_admin_or_the_root_is_killed_nothing_survives_and_the_tree_says_so(rig: MakeRig, victim: str) -> None:
    tree = rig()
    forest(tree)
    root = next(pid for pid in tree.note_pids() if parent_of(pid) == tree.tree.admin_pid)
    os.kill(tree.tree.admin_pid if victim == "the admin" else root, signal.SIGKILL)
    tree.gone()
    with pytest.raises((NoSuchActor, PeerGone)):
        tree.ask("leaf", "pid")


def test_a_call_under_way_fails_when_the_whole_tree_dies(rig: MakeRig) -> None:
    tree = rig()
    forest(tree)
    tree.tell("leaf", "kill", tree.tree.admin_pid)
    with pytest.raises((ActorDown, PeerGone, NoSuchActor)):
        tree.ask("bud", "wait")
    tree.gone()


def test_when_the_process_in_front_is_killed_nothing_survives(front: Front) -> None:
    pids = front.all_pids()
    assert len(pids) == 7  # it, the admin, the root, two servers at its hand, two in the branch
    front.process.kill()
    front.process.wait()
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "the end of all processes")


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        return int(file.read().rpartition(")")[2].split()[1])
