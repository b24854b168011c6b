"""Who hangs is killed as ``hung`` and restarted within its documented time; nobody else ever is.

docs/watchdog.md gives the bounds. They hold in counted time, which the reason tells; the clock only bounds how long a
test waits, generously.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from actorgrid.errors import ActorDown
from actorgrid.supervisors.exits import ExitReason
from actorgrid.supervisors.inspection import Suspend
from actorgrid.supervisors.wire import TreeSettings
from tests.otp.conftest import BRISK, Front, Rig, stop_between_handlers, wait_until
from tests.otp.servers import Quick
from tests.processes import is_alive

MakeRig = Callable[..., Rig]
BEAT_S, MARGIN_S = BRISK.beat_interval_s, BRISK.hang_margin_s
IDLE_S = 5 * BEAT_S + MARGIN_S
HANDLER_S = Quick.max_handler_s + MARGIN_S + BEAT_S
EAGER = TreeSettings(beat_interval_s=0.1, hang_margin_s=0.3)
PATIENCE = 20  # times slower than documented may a loaded machine be


def counted_s(reason: ExitReason) -> float:
    """How long it hung until it was found."""
    found = re.search(r"has (?:run|not turned for) ([\d.]+) s", reason.message)
    assert found, reason.message
    return float(found[1])


def test_a_stopped_process_is_killed_as_hung_and_restarted(rig: MakeRig) -> None:
    tree = rig()
    tree.up(tree.spec("victim"), tree.spec("other"))
    before = tree.pids()
    tree.watch("victim")
    stop_between_handlers(before["victim"])
    reason = tree.down("victim", IDLE_S * PATIENCE)
    assert (reason.kind, reason.exit_status) == ("hung", -signal.SIGKILL)
    assert "its loop has not turned" in reason.message
    assert 3 * BEAT_S + MARGIN_S <= counted_s(reason) <= IDLE_S
    after = tree.back("victim", before["victim"])
    assert tree.pids() == {**before, "victim": after}
    assert tree.children()["victim"]["last_exit"]["kind"] == "hung"


@pytest.mark.parametrize(("what", "line"), [("loop", "in do_loop"), ("block", "in block_for_ever")])
def test_a_handler_that_never_ends_is_killed_and_its_stack_is_in_the_reason(rig: MakeRig, what: str, line: str) -> None:
    tree = rig()
    tree.up(tree.spec("victim", "Quick"), tree.spec("other"))
    before = tree.pids()
    tree.watch("victim")
    with pytest.raises(ActorDown):
        tree.ask("victim", what, timeout_s=HANDLER_S * PATIENCE)
    reason = tree.down("victim")
    assert (reason.kind, reason.exit_status) == ("hung", -signal.SIGKILL)
    assert "a handler has run" in reason.message and "declared at most 0.3 s (Do)" in reason.message
    assert Quick.max_handler_s + MARGIN_S <= counted_s(reason) <= HANDLER_S + 0.05  # it is told in tenths
    assert line in reason.traceback
    after = tree.back("victim", before["victim"])
    assert tree.pids() == {**before, "victim": after}


def test_the_child_spec_says_how_long_a_handler_may_take_and_wins_over_the_class(rig: MakeRig) -> None:
    tree = rig()
    tree.up(tree.spec("victim", max_handler_s=0.2))
    tree.watch("victim")
    tree.tell("victim", "loop")
    assert "declared at most 0.2 s" in tree.down("victim", HANDLER_S * PATIENCE).message


def hang_another(tree: Rig) -> None:
    """Long enough for anyone to be taken for hung: the time that it takes for one that stopped, twice."""
    for _ in range(2):
        pid = tree.pid("canary")
        stop_between_handlers(pid)
        tree.back("canary", pid)


def test_a_handler_within_its_declared_time_is_left_alone_however_long(rig: MakeRig, tmp_path: Path) -> None:
    tree, fifo = rig(EAGER), tmp_path / "fifo"
    os.mkfifo(fifo)
    tree.up(tree.spec("worker", max_handler_s=3600.0), tree.spec("canary"))
    pid = tree.pid("worker")
    tree.tell("worker", "read", str(fifo))
    tree.wait_for(lambda: "worker reads" in tree.notes(), "the handler under way")
    hang_another(tree)
    fifo.write_text("done")
    assert tree.told("worker") == "done"
    assert tree.ask("worker", "pid") == pid


def test_a_handler_that_awaits_for_long_is_left_alone_and_others_are_served_meanwhile(rig: MakeRig) -> None:
    tree = rig(EAGER)
    tree.up(tree.spec("worker", "Quick"), tree.spec("canary"))
    pid = tree.pid("worker")
    tree.tell("worker", "wait")
    tree.wait_for(lambda: "worker waits" in tree.notes(), "the handler under way")
    hang_another(tree)
    assert tree.ask("worker", "pid") == pid
    tree.tell("worker", "let_go", "done")
    assert tree.told("worker") == "done"
    assert tree.children()["worker"]["restarts"] == 0


def test_a_suspended_server_is_left_alone(rig: MakeRig) -> None:
    tree = rig(EAGER)
    tree.up(tree.spec("worker", "Quick"), tree.spec("canary"))
    pid = tree.pid("worker")
    tree.tree.call("worker", Suspend())
    hang_another(tree)
    assert tree.pid("worker") == pid and tree.children()["worker"]["restarts"] == 0


def test_a_nested_supervisor_that_hangs_is_killed_with_its_subtree_and_both_come_back(rig: MakeRig) -> None:
    tree = rig()
    branch = tree.team("branch", tree.spec("leaf"), tree.team("twig", tree.spec("bud")))
    tree.up(branch, tree.spec("other"))
    before = tree.pids()
    tree.watch("branch")
    os.kill(before["branch"], signal.SIGSTOP)
    assert tree.down("branch", IDLE_S * PATIENCE).kind == "hung"
    subtree = {"branch", "twig", "leaf", "bud"}
    tree.back("branch", before["branch"])
    after = tree.pids()
    assert set(after) == set(before)
    for name in subtree:
        assert after[name] != before[name] and not is_alive(before[name]), name
    assert {name: pid for name, pid in after.items() if name not in subtree} == {
        name: pid for name, pid in before.items() if name not in subtree
    }
    assert tree.ask("bud", "pid") == after["bud"]


def test_a_root_that_hangs_is_killed_and_the_tree_says_that_it_is_gone(rig: MakeRig) -> None:
    tree = rig()
    root = tree.tree.up("tests.otp.servers:Team", None, *tree.team("root", tree.spec("leaf")).arguments)
    tree.note_pids()
    os.kill(root, signal.SIGSTOP)
    tree.gone()


# -- a pause of the whole host


@pytest.mark.parametrize("order", ["parents first", "children first"])
def test_after_a_pause_of_everything_nobody_is_killed(front: Front, order: str) -> None:
    before = front.first["servers"]
    pids = front.all_pids()
    assert {server["pid"] for server in before.values()} <= set(pids)
    for _ in range(2):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        let_pass(IDLE_S + 3 * BEAT_S)
        for pid in pids if order == "parents first" else reversed(pids):
            os.kill(pid, signal.SIGCONT)
        assert front.ask()["servers"] == before
    # The judges are awake and have judged again: one that stops now is found. The others are as they were.
    stop_between_handlers(before["leaf"]["pid"])
    wait_until(lambda: "loop has not turned" in str(front.ask()["servers"]["leaf"]["last_exit"]), "a hung leaf")
    after = front.ask()["servers"]
    assert {name: server for name, server in after.items() if name != "leaf"} == {
        name: server for name, server in before.items() if name != "leaf"
    }


def let_pass(duration_s: float) -> None:
    """What is tested is that time passes."""
    end = time.monotonic() + duration_s
    while (left := end - time.monotonic()) > 0:
        select.select([], [], [], left)
