"""A host of small servers, in real processes."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Callable

import psutil
import pytest

from actorgrid.actors.host.messages import RestartHost, StopHost
from actorgrid.errors import ActorDown, CallTimeout, NoSuchActor, WrongState
from tests.host.conftest import DOOR, ECHO, Host, spec, wait_for
from tests.processes import is_alive

pytestmark = pytest.mark.system

StartHost = Callable[..., Host]


def test_a_host_starts_says_where_it_is_and_stops_in_reverse_order(start_host: StartHost) -> None:
    host = start_host().ready()
    agent = host.agent()
    assert agent is not None and agent["pid"] == host.process.pid and agent["url"] == "http://127.0.0.1:1"
    assert set(host.tree()) == {"admin", "host", "echo", "second", "gateway"}
    assert host.stop() == 0
    assert host.notes() == [
        "echo start",
        "second start",
        "gateway start",
        "gateway stop SIGTERM",
        "second stop SIGTERM",
        "echo stop SIGTERM",
    ]
    assert host.agent() is None
    wait_for(host.all_gone, "the end of all processes")


def test_an_order_to_stop_from_within_ends_the_host(start_host: StartHost) -> None:
    host = start_host().ready()
    with pytest.raises((ActorDown, EOFError)):  # the gateway that carries our question stops before the answer
        host.call("host", StopHost("asked by a test"))
    assert host.process.wait(30) == 0
    assert "gateway stop asked by a test" in host.notes()


def test_an_order_to_restart_starts_all_servers_anew_in_the_same_process(start_host: StartHost) -> None:
    host = start_host().ready()
    before, agent = host.tree(), host.agent()
    assert agent is not None
    assert host.call("host", RestartHost("a test"))["incarnation"] == 1

    def is_new() -> bool:
        found = host.agent()
        return found is not None and found["boot_id"] != agent["boot_id"]

    wait_for(is_new, "the second start")
    again = host.agent()
    assert again is not None and again["pid"] == agent["pid"] == host.process.pid
    after = host.tree()
    assert set(after) == set(before) and not set(after.values()) & set(before.values())
    assert host.notes()[3:] == [
        "gateway stop restart",
        "second stop restart",
        "echo stop restart",
        "echo start",
        "second start",
        "gateway start",
    ]
    assert host.stop() == 0


@pytest.mark.parametrize("victim", ["echo", "second"])
def test_a_killed_server_comes_back_and_the_others_stay(start_host: StartHost, victim: str) -> None:
    host = start_host().ready()
    before = host.tree()
    os.kill(before[victim], signal.SIGKILL)
    wait_for(lambda: host.children()[victim]["restarts"] == 1 and host.children()[victim]["state"] == "up", "a restart")
    after = host.tree()
    assert after[victim] != before[victim]
    assert {name: pid for name, pid in after.items() if name != victim} == {
        name: pid for name, pid in before.items() if name != victim
    }
    assert host.children()[victim]["last_exit"]["reason"] == "killed by SIGKILL"
    assert host.ask(victim, "pid") == after[victim] == host.children()[victim]["pid"]


def test_a_killed_gateway_comes_back_and_its_address_is_told_again(start_host: StartHost) -> None:
    host = start_host().ready()
    pid = host.tree()["gateway"]
    (host.data_dir / "agent.json").unlink()
    os.kill(pid, signal.SIGKILL)
    wait_for(host.agent, "agent.json")
    assert host.children()["gateway"]["restarts"] == 1


def test_peers_are_told_of_a_restart_once(start_host: StartHost) -> None:
    host = start_host().ready()
    assert host.ask("second", "restarted") == []
    os.kill(host.tree()["echo"], signal.SIGKILL)
    wait_for(lambda: host.ask("second", "restarted"), "news of the restart")
    assert host.ask("second", "restarted") == ["echo"]


@pytest.mark.parametrize(
    ("what", "args", "reason"),
    [
        ("crash", (), "an invariant broke"),
        ("segfault", (), "killed by SIGSEGV"),
        ("exit", (9,), "exit status 9"),
        ("exit", (0,), "left in order"),
    ],
)
def test_a_server_that_dies_fails_its_callers_at_once_and_comes_back(
    start_host: StartHost, what: str, args: tuple[int, ...], reason: str
) -> None:
    host = start_host().ready()
    with pytest.raises(ActorDown):
        host.ask("echo", what, *args, timeout_s=60.0)
    wait_for(lambda: host.children()["echo"]["restarts"] == 1, "a restart")
    assert reason in host.children()["echo"]["last_exit"]["reason"]
    assert host.ask("echo", "pid") == host.tree()["echo"]


def test_an_expected_error_reaches_the_caller_and_the_server_lives(shared_host: Host) -> None:
    host, pid = shared_host, shared_host.ask("echo", "pid")
    with pytest.raises(WrongState, match="no"):
        host.ask("echo", "refuse")
    with pytest.raises(CallTimeout):
        host.ask("echo", "never", timeout_s=0.05)
    with pytest.raises(NoSuchActor):
        host.ask("nobody", "pid")
    assert host.ask("echo", "pid") == pid


@pytest.mark.parametrize("part", ["admin", "host"])
def test_a_killed_admin_or_supervisor_leaves_no_orphan_and_the_tree_is_built_again(
    start_host: StartHost, part: str
) -> None:
    host = start_host().ready()
    before, agent = host.tree(), host.agent()
    assert agent is not None
    os.kill(before[part], signal.SIGKILL)
    wait_for(lambda: (host.agent() or agent)["boot_id"] != agent["boot_id"], "another boot")
    assert not [pid for pid in before.values() if is_alive(pid)]
    assert set(host.tree()) == set(before)
    assert host.ask("echo", "pid") == host.tree()["echo"]
    assert json.loads((host.data_dir / "host.json").read_text())["incarnation"] == 2
    assert host.stop() == 0


def test_a_killed_agent_leaves_no_orphan_and_the_next_starts_at_once(start_host: StartHost) -> None:
    first = start_host().ready()
    first.tree()
    first.process.kill()
    second = start_host().ready()
    first.process.wait()
    wait_for(first.all_gone, "the end of all processes")
    assert second.ask("echo", "pid") == second.tree()["echo"]


def test_what_dies_again_and_again_is_given_up_with_a_clear_error(start_host: StartHost) -> None:
    host = start_host().ready()
    for round_ in range(4):
        tree = wait_for(lambda: host.agent() and host.tree().get("host"), "a supervisor")
        boot = (host.agent() or {})["boot_id"]
        os.kill(tree, signal.SIGKILL)
        if round_ < 3:
            wait_for(lambda boot=boot: (host.agent() or {"boot_id": boot})["boot_id"] != boot, "another boot")
    assert host.process.wait(30) == 5
    assert host.process.stdout is not None
    error = json.loads(host.process.stdout.readline())["error"]
    assert error["code"] == "StartFailed" and "died 4 times" in error["message"]


def test_a_server_that_dies_too_often_stops_the_host(start_host: StartHost) -> None:
    host = start_host(ECHO, spec("dies", "DiesAtOnce"), DOOR).ready()
    (host.data_dir / "die").touch()
    os.kill(host.tree()["dies"], signal.SIGKILL)
    error = host.failed()
    assert error["code"] == "RestartIntensityExceeded"
    assert "dies ended again after 10 restarts" in error["message"] and "exit status 3" in error["found"]
    assert host.notes()[-1].startswith("echo stop dies ended again")


@pytest.mark.parametrize(
    ("kind", "restart", "status", "state"),
    [("Second", "transient", 0, "down"), ("Second", "transient", 1, "up"), ("Second", "temporary", 1, "forgotten")],
)
def test_the_spec_says_which_end_is_answered_with_a_restart(
    start_host: StartHost, kind: str, restart: str, status: int, state: str
) -> None:
    host = start_host(ECHO, spec("second", kind, restart=restart), DOOR).ready()
    with pytest.raises(ActorDown):
        host.ask("second", "exit", status)
    forgotten = {"state": "forgotten", "last_exit": True}
    wait_for(lambda: host.children().get("second", forgotten)["last_exit"], "the end")
    wait_for(lambda: host.children().get("second", forgotten)["state"] == state, f"state {state}")


def test_a_second_host_on_the_directory_is_refused_with_the_pid_of_the_first(start_host: StartHost) -> None:
    first = start_host().ready()
    error = start_host().failed()
    assert error["code"] == "AlreadyRunning" and error["details"]["pid"] == first.process.pid
    assert first.ask("echo", "pid") == first.tree()["echo"]


def test_a_server_that_cannot_start_fails_the_host_with_its_own_error(start_host: StartHost) -> None:
    host = start_host(ECHO, spec("bad", "BadStart"), DOOR)
    error = host.failed()
    assert (error["code"], error["message"]) == ("LogCorrupted", "record 7 fails its checksum")
    assert (error["asked"], error["hint"]) == ("ledger/1.log", "restore it")
    assert host.notes() == ["echo start", "echo stop host does not start"]
    assert host.process.returncode == 6 and host.agent() is None


def test_a_bug_in_a_start_is_a_start_failure_that_names_the_server(start_host: StartHost) -> None:
    error = start_host(ECHO, spec("broken", "BrokenStart")).failed()
    assert error["code"] == "StartFailed" and "broken did not start" in error["message"]
    assert "a bug" in error["message"]


def test_a_start_that_takes_too_long_has_failed(start_host: StartHost) -> None:
    error = start_host(ECHO, spec("slow", "SlowStart", start_timeout_s=0.05)).failed()
    assert error["code"] == "StartFailed" and "did not start in 0.05 s" in error["message"]


def test_a_server_that_does_not_exist_fails_the_start(start_host: StartHost) -> None:
    error = start_host({"id": "ghost", "kind": "tests.host.nowhere:Ghost"}).failed()
    assert error["code"] == "StartFailed" and "tests.host.nowhere" in error["message"]


def test_a_start_may_ask_servers_that_started_before_it(start_host: StartHost) -> None:
    host = start_host(ECHO, spec("slow", "SlowStart"), DOOR).ready()
    assert host.ask("slow", "first_pid") == host.tree()["echo"]


def test_a_signal_while_starting_stops_in_order(start_host: StartHost) -> None:
    host = start_host(ECHO, spec("slow", "SlowStart", start_timeout_s=60.0), DOOR)
    wait_for(lambda: (host.data_dir / "notes").exists() and "slow start" in host.notes(), "a start under way")
    assert host.stop() == 0
    assert "echo stop SIGTERM" in host.notes() and "gateway start" not in host.notes()


def test_a_server_that_does_not_stop_is_killed_after_its_time(start_host: StartHost) -> None:
    host = start_host(ECHO, spec("stubborn", "Stubborn", shutdown=0.1), DOOR).ready()
    assert host.stop() == 0
    assert host.notes()[-1] == "echo stop SIGTERM"
    assert "did not stop in 0.1 s and is killed" in host.log()


def test_a_second_signal_kills_everything_at_once(start_host: StartHost) -> None:
    host = start_host(ECHO, spec("stubborn", "Stubborn", shutdown="infinity")).ready()
    host.process.send_signal(signal.SIGINT)
    wait_for(lambda: "host stops: SIGINT" in host.log(), "the stop under way")
    host.process.send_signal(signal.SIGINT)
    assert host.process.wait(30) == 0
    wait_for(host.all_gone, "the end of all processes")


def test_sigterm_to_one_server_is_an_orderly_end_and_it_comes_back(start_host: StartHost) -> None:
    host = start_host().ready()
    os.kill(host.tree()["echo"], signal.SIGTERM)
    wait_for(lambda: host.children()["echo"]["restarts"] == 1, "a restart")
    assert "echo stop SIGTERM" in host.notes()
    assert host.children()["echo"]["last_exit"]["reason"] == "SIGTERM (left in order)"


def test_no_process_of_the_tree_has_an_internet_socket(shared_host: Host) -> None:
    for pid in (shared_host.process.pid, *shared_host.tree().values()):
        assert psutil.Process(pid).net_connections(kind="inet") == []


def test_files_of_the_host_are_for_its_owner_alone(start_host: StartHost) -> None:
    host = start_host().ready()
    for name in ("admin.token", "agent.json", "host.json", "agent.log", "agent.lock"):
        assert stat.S_IMODE((host.data_dir / name).stat().st_mode) == 0o600, name
    token = (host.data_dir / "admin.token").read_text().strip()
    assert len(token) >= 43
    assert host.stop() == 0
    again = start_host().ready()
    assert (again.data_dir / "admin.token").read_text().strip() == token


def test_twenty_thousand_messages_in_one_go_arrive_in_order(start_host: StartHost) -> None:
    host = start_host().ready()
    assert host.ask("echo", "flood", "second", 20_000) == 20_000
    wait_for(lambda: len(host.ask("second", "seen").numbers) == 20_000, "all messages")
    assert host.ask("second", "seen").numbers == list(range(20_000))


@pytest.mark.parametrize("size", [10_000, 1_000_000, 20_000_000])
def test_large_messages_arrive_whole(shared_host: Host, size: int) -> None:
    for _ in range(3):
        assert shared_host.ask("echo", "big", "second", size, timeout_s=60.0) == size


def test_two_servers_that_flood_each_other_do_not_lock_up(start_host: StartHost) -> None:
    host = start_host().ready()
    assert host.ask("echo", "flood", "second", 20_000) + host.ask("second", "flood", "echo", 20_000) == 40_000
    for name in ("echo", "second"):
        wait_for(lambda name=name: len(host.ask(name, "seen").numbers) == 20_000, "all messages")


def test_timers_fire_not_before_their_time(shared_host: Host) -> None:
    late = [shared_host.ask("echo", "timer", delay_s) for delay_s in (0.0, 0.001, 0.01, 0.05)]
    assert all(each >= 0.0 for each in late)


def test_watched_descriptors_report_reading_and_writing(shared_host: Host) -> None:
    log = shared_host.ask("echo", "watch")
    assert log[0] == "writable" and log[-1] == "hello" and "unseen" not in log
