"""Links, monitors and exit signals between real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from actorgrid.errors import ActorDown
from actorgrid.supervisors.actor_runtime import CRASH_EXIT_STATUS
from actorgrid.supervisors.child import SupervisorFlags
from actorgrid.supervisors.exits import ExitReason
from actorgrid.supervisors.inspection import Suspend
from actorgrid.supervisors.ref import Ref
from actorgrid.supervisors.signals import Down, Exited
from actorgrid.supervisors.supervisor import StartChild, TerminateChild
from tests.otp.conftest import Rig
from tests.processes import is_alive

MakeRig = Callable[..., Rig]

# How to end the server ``victim``, and the kind of reason and something of the message or traceback to expect.
ENDS: dict[str, tuple[Callable[[Rig], object], str, str]] = {
    "done": (lambda tree: tree.tell("victim", "leave"), "normal", ""),
    "told to stop": (lambda tree: tree.tree.call("team", TerminateChild("victim")), "shutdown", "on request"),
    "a bug": (lambda tree: tree.tell("victim", "break"), "error", "in do_break"),
    "a segfault": (lambda tree: tree.tell("victim", "segfault"), "error", "in do_segfault"),
    "an exit": (lambda tree: tree.tell("victim", "exit", 5), "error", ""),
    "SIGKILL": (lambda tree: os.kill(tree.pid("victim"), signal.SIGKILL), "killed", ""),
    "a hang": (lambda tree: tree.tell("victim", "loop"), "hung", "in do_loop"),
}


def with_victim(tree: Rig, kind: str = "Quick") -> Rig:
    """Under a supervisor that is not the watcher's."""
    return tree.up(tree.team("team", tree.spec("victim", kind)), tree.spec("other"))


@pytest.mark.parametrize("how", ENDS)
def test_a_monitor_hears_once_why_a_child_of_another_supervisor_ended(rig: MakeRig, how: str) -> None:
    end, kind, text = ENDS[how]
    tree = with_victim(rig())
    ref, pid = tree.ask("victim", "me"), tree.pid("victim")
    [monitor] = tree.ask("watcher", "monitor", "victim")
    end(tree)
    news = tree.told("watcher")
    assert (news.monitor, news.ref) == (monitor, ref)
    assert news.reason.kind == kind
    assert text in news.reason.message + news.reason.traceback
    # And no more: not when the next of this name ends.
    tree.ask("watcher", "monitor", "other")
    if how != "told to stop":
        os.kill(tree.back("victim", pid, "team"), signal.SIGKILL)
    os.kill(tree.pid("other"), signal.SIGKILL)
    assert tree.down("other").kind == "killed"
    assert tree.ask("watcher", "counts") == {"open_calls": 0, "monitors": 0, "monitored_by": 0, "links": 0}


def test_a_monitor_of_the_dead_tells_at_once(rig: MakeRig) -> None:
    tree = with_victim(rig())
    ref = tree.ask("victim", "me")
    pid = tree.pid("victim")
    os.kill(pid, signal.SIGKILL)
    tree.back("victim", pid, "team")
    tree.ask("watcher", "monitor", ref, "nobody")
    assert [tree.down().kind, tree.down().kind] == ["noproc", "noproc"]
    assert tree.ask("victim", "pid") != pid  # its successor is another


def test_a_monitor_that_is_taken_back_stays_silent_and_each_of_two_tells(rig: MakeRig) -> None:
    tree = with_victim(rig())
    first, second, third = tree.ask("watcher", "monitor", "victim", "victim", "victim")
    assert len({first, second, third}) == 3
    tree.ask("watcher", "demonitor", second)
    os.kill(tree.pid("victim"), signal.SIGKILL)
    heard = [tree.told("watcher"), tree.told("watcher")]
    assert [news.monitor for news in heard] == [first, third]
    assert tree.ask("watcher", "counts")["monitors"] == 0


def test_who_monitors_is_not_touched_and_who_is_monitored_does_not_mind(rig: MakeRig) -> None:
    tree = with_victim(rig())
    before = tree.pids()
    tree.ask("other", "monitor", "victim")
    tree.wait_for(lambda: tree.ask("victim", "counts")["monitored_by"] == 1, "the monitor at its other end")
    os.kill(before["other"], signal.SIGKILL)
    tree.back("other", before["other"])
    assert tree.ask("victim", "pid") == before["victim"]
    tree.wait_for(lambda: tree.ask("victim", "counts")["monitored_by"] == 0, "the dead watcher forgotten")


@pytest.mark.system
def test_a_hundred_processes_that_die_together_are_each_told_once(rig: MakeRig) -> None:
    tree = rig()
    flags = SupervisorFlags("simple_one_for_one", intensity=1000)
    tree.up(tree.team("pool", tree.spec("worker", restart="temporary"), flags=flags))
    started = [tree.tree.call("pool", StartChild(), 30.0) for _ in range(100)]
    tree.ask("watcher", "monitor", *(info.ref for info in started))
    for info in started:
        os.kill(info.pid, signal.SIGKILL)
    heard = [tree.told("watcher") for _ in started]
    assert {news.ref for news in heard} == {info.ref for info in started}
    assert {news.reason.kind for news in heard} == {"killed"}
    tree.wait_for(lambda: tree.children("pool") == {}, "an empty pool")
    assert tree.ask("watcher", "counts")["monitors"] == 0


# -- links


@pytest.mark.parametrize("how", [how for how in ENDS if how != "done"])
def test_the_other_end_of_a_link_dies_of_the_same_reason(rig: MakeRig, how: str) -> None:
    end, kind, text = ENDS[how]
    tree = with_victim(rig())
    pid = tree.pid("other")
    tree.ask("other", "link", "victim")
    tree.ask("watcher", "monitor", "other")
    end(tree)
    reason = tree.down("other")
    assert reason.kind == kind and text in reason.message + reason.traceback
    tree.back("other", pid)
    assert "other stop" not in [note[:10] for note in tree.notes()]  # an exit signal is no orderly stop


def test_a_link_works_from_both_ends(rig: MakeRig) -> None:
    tree = with_victim(rig())
    pid = tree.pid("victim")
    tree.ask("other", "link", "victim")
    tree.wait_for(lambda: tree.ask("victim", "counts")["links"] == 1, "the link at its other end")
    os.kill(tree.pid("other"), signal.SIGKILL)
    tree.back("victim", pid, "team")


def test_a_suspended_server_shares_the_fate_of_its_links_all_the_same(rig: MakeRig) -> None:
    tree = with_victim(rig())
    pid = tree.pid("victim")
    tree.tree.call("victim", Suspend())
    tree.ask("other", "link", "victim")
    tree.tell("other", "break")
    tree.back("victim", pid, "team")


def test_a_normal_end_takes_nobody_with_it(rig: MakeRig) -> None:
    tree = with_victim(rig())
    other, pid = tree.pid("other"), tree.pid("victim")
    tree.ask("other", "link", "victim")
    tree.tell("victim", "leave")
    tree.back("victim", pid, "team")
    tree.wait_for(lambda: tree.ask("other", "counts")["links"] == 0, "the link gone")
    assert tree.ask("other", "pid") == other


def test_one_that_links_and_is_done_at_once_takes_nobody_with_it_however_late_that_is_read(
    rig: MakeRig, tmp_path: Path
) -> None:
    tree, fifo = rig(), tmp_path / "fifo"
    os.mkfifo(fifo)
    tree.up(tree.spec("busy", max_handler_s=60.0), tree.spec("brief", restart="temporary"))
    pid = tree.pid("busy")
    tree.tell("busy", "read", str(fifo))
    tree.wait_for(lambda: "busy reads" in tree.notes(), "a long handler")
    tree.ask("brief", "link_and_leave", "busy")
    tree.wait_for(lambda: "brief" not in tree.children(), "the end of the other")
    fifo.write_text("go on")
    assert tree.told("busy") == "go on"
    tree.wait_for(lambda: tree.ask("busy", "counts")["links"] == 0, "the link gone")
    assert tree.ask("busy", "pid") == pid


def test_an_unlinked_end_takes_nobody_with_it(rig: MakeRig) -> None:
    tree = with_victim(rig())
    other, pid = tree.pid("other"), tree.pid("victim")
    tree.ask("other", "link", "victim")
    tree.ask("other", "unlink", "victim")
    tree.ask("watcher", "monitor", "victim")
    os.kill(pid, signal.SIGKILL)
    tree.down("victim")
    tree.back("victim", pid, "team")
    assert tree.ask("other", "pid") == other


def test_a_chain_of_links_falls_from_one_end_to_the_other(rig: MakeRig) -> None:
    tree = rig()
    names = [f"link_{n}" for n in range(6)]
    tree.up(*(tree.spec(name, restart="temporary") for name in names))
    before = tree.pids()
    for one, two in pairwise(names):
        tree.ask(one, "link", two)
    tree.watch(*names)
    tree.tell(names[0], "break")
    reasons = [tree.down() for _ in names]
    assert {(reason.kind, reason.message) for reason in reasons} == {("error", "Broken: an invariant")}
    tree.wait_for(lambda: not [name for name in names if is_alive(before[name])], "the end of all")


@pytest.mark.parametrize("how", ENDS)
def test_who_traps_exits_is_told_of_every_end_and_lives(rig: MakeRig, how: str) -> None:
    end, kind, text = ENDS[how]
    tree = rig()
    tree.up(tree.team("team", tree.spec("victim", "Quick")), tree.spec("trapper", "Trapper"))
    ref, pid = tree.ask("victim", "me"), tree.pid("trapper")
    tree.ask("trapper", "link", "victim")
    end(tree)
    news = tree.told("trapper")
    assert isinstance(news, Exited) and news.ref == ref and news.reason.kind == kind
    assert text in news.reason.message + news.reason.traceback
    assert tree.ask("trapper", "pid") == pid


def test_a_link_to_the_dead_is_deadly_or_told(rig: MakeRig) -> None:
    tree = rig()
    tree.up(tree.spec("other"), tree.spec("trapper", "Trapper"))
    nobody = Ref("a.99.99", "nobody")
    tree.ask("trapper", "link", nobody)
    assert tree.told("trapper").reason.kind == "noproc"
    pid = tree.pid("other")
    tree.watch("other")
    tree.tell("other", "link", nobody)
    assert tree.down("other").kind == "noproc"
    tree.back("other", pid)


# -- exit signals


def test_an_exit_signal_ends_whoever_does_not_trap_it(rig: MakeRig) -> None:
    tree = with_victim(rig())
    pid = tree.pid("victim")
    tree.watch("victim")
    reason = ExitReason("error", "because the other says so")
    tree.ask("other", "send_exit", "victim", reason)
    told = tree.down("victim")  # by its last words, or by its supervisor, which may be first and knows the status too
    assert replace(told, exit_status=None) == reason
    assert told.exit_status in (None, CRASH_EXIT_STATUS)
    tree.back("victim", pid, "team")


def test_a_normal_exit_signal_ends_nobody(rig: MakeRig) -> None:
    tree = with_victim(rig())
    pid = tree.pid("victim")
    tree.ask("other", "send_exit", "victim", ExitReason("normal"))
    assert tree.ask("other", "ask", "victim", "pid") == pid  # asked after it, answered after it


def test_a_trapped_exit_signal_is_a_message_but_killed_cannot_be_trapped(rig: MakeRig) -> None:
    tree = rig()
    tree.up(tree.spec("other"), tree.spec("trapper", "Trapper"))
    pid = tree.pid("trapper")
    tree.ask("other", "send_exit", "trapper", ExitReason("error", "please"))
    news = tree.told("trapper")
    assert isinstance(news, Exited) and news.reason.message == "please" and news.ref == tree.ask("other", "me")
    assert tree.ask("trapper", "pid") == pid
    tree.watch("trapper")
    tree.ask("other", "send_exit", "trapper", ExitReason("killed"))
    assert tree.down("trapper").kind == "killed"
    tree.back("trapper", pid)


def test_the_links_of_who_is_killed_can_trap_that(rig: MakeRig) -> None:
    tree = rig()
    tree.up(tree.spec("victim"), tree.spec("trapper", "Trapper"))
    pid = tree.pid("trapper")
    tree.ask("trapper", "link", "victim")
    tree.ask("watcher", "send_exit", "victim", ExitReason("killed"))
    news = tree.told("trapper")
    assert isinstance(news, Exited) and news.reason.kind == "killed"
    assert tree.ask("trapper", "pid") == pid


def test_two_that_kill_each_other_at_once_both_end(rig: MakeRig) -> None:
    tree = rig()
    tree.up(tree.spec("one", restart="temporary"), tree.spec("two", restart="temporary"))
    before = tree.pids()
    tree.ask("one", "link", "two")
    tree.watch("one", "two")
    tree.tell("one", "break")
    tree.tell("two", "break")
    assert {tree.told("watcher").ref.name for _ in range(2)} == {"one", "two"}
    tree.wait_for(lambda: not is_alive(before["one"]) and not is_alive(before["two"]), "the end of both")


def test_a_call_to_one_that_dies_while_it_works_fails_at_once_for_every_caller(rig: MakeRig) -> None:
    tree = with_victim(rig(), "Hand")
    for name in ("watcher", "other"):
        tree.tell(name, "request_and_tell", "victim", "wait")
    tree.wait_for(lambda: tree.notes().count("victim waits") == 2, "both calls under way")
    os.kill(tree.pid("victim"), signal.SIGKILL)
    assert (tree.told("watcher"), tree.told("other")) == ("ActorDown", "ActorDown")
    with pytest.raises(ActorDown):
        tree.ask("other", "ask", "watcher", "exit", 1)


def test_down_names_the_process_and_not_its_successor(rig: MakeRig) -> None:
    tree = with_victim(rig())
    refs = []
    for _ in range(3):
        refs.append(tree.ask("victim", "me"))
        tree.watch("victim")
        pid = tree.pid("victim")
        os.kill(pid, signal.SIGKILL)
        news = tree.told("watcher")
        assert isinstance(news, Down) and news.ref == refs[-1]
        tree.back("victim", pid, "team")
    assert len(set(refs)) == 3
