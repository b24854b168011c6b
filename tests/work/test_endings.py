from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.ledger.commands import CancelJob, EndAttempt
from actorgrid.actors.work.messages import EndAllWork
from tests.work.rig import Rig, alive, gated, open_gate, wait_for

# A shell that leaves a child in its group and one in a session of its own, and writes down their pids.
FAMILY = "setsid sh -c 'echo $$ >> {0}; exec sleep 1000' & sh -c 'echo $$ >> {0}; exec sleep 1000' & wait"


def family(pids: Path) -> list[str]:
    return ["sh", "-c", FAMILY.format(pids)]


def pids_in(path: Path) -> list[int]:
    def read() -> list[int]:
        found = [int(line) for line in path.read_text().split()] if path.exists() else []
        return found if len(found) == 2 else []

    pids: list[int] = wait_for(read, what="two children")
    return pids


def test_a_timeout_ends_the_whole_tree(rig: Rig, tmp_path: Path) -> None:
    job = rig.run("a", command=family(tmp_path / "pids"), max_execution_time_s=0.5)
    assert job["error"]["code"] == "TaskTimedOut"
    assert not any(map(alive, pids_in(tmp_path / "pids")))
    assert rig.marked("a.1") == []


def test_cancel_asks_first_and_takes_the_whole_tree(rig: Rig, tmp_path: Path) -> None:
    script = f"trap 'echo bye; exit 0' TERM; echo up; {FAMILY.format(tmp_path / 'pids')}"
    rig.submit("a", command=["sh", "-c", script])
    attempt_id = rig.grant("a")
    rig.running(attempt_id)
    pids = pids_in(tmp_path / "pids")
    rig.propose(CancelJob(job_id="a", by="me"))
    job = rig.ended(attempt_id)
    assert job["state"] == "cancelled"
    assert rig.output("a.1") == "up\nbye\n"
    assert not any(map(alive, pids))


def test_cancel_ends_what_does_not_listen(rig: Rig) -> None:
    rig.submit("a", command=["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"])
    attempt_id = rig.grant("a")
    rig.node.run_until(lambda: rig.output("a.1") == "up\n", what="started")
    rig.propose(CancelJob(job_id="a", by="me"))
    assert rig.ended(attempt_id)["state"] == "cancelled"


def test_a_job_cancelled_before_its_start_does_not_run_on(rig: Rig) -> None:
    rig.submit("a", command=["sleep", "1000"])
    attempt_id = rig.grant("a")
    rig.propose(CancelJob(job_id="a", by="me"))
    assert rig.ended(attempt_id)["state"] == "cancelled"


def test_what_a_command_leaves_running_is_ended_with_it(rig: Rig, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    job = rig.run("a", command=["sh", "-c", f"setsid sleep 1000 & echo $! > {pids}; exit 0"])
    assert job["state"] == "succeeded"
    assert rig.marked("a.1") == []
    assert not alive(int(pids.read_text()))


def test_too_much_memory_is_named(rig: Rig) -> None:
    hog = "import time; x = bytearray(300 * 2**20); time.sleep(1000)"
    job = rig.run("a", command=["python3", "-c", hog], resources={"memory_mib": 100})
    assert job["state"] == "failed"
    assert job["error"]["code"] == "MemoryLimitExceeded"


def test_a_killed_shim_loses_its_attempt_and_leaves_nothing(rig: Rig, tmp_path: Path) -> None:
    rig.submit("a", command=family(tmp_path / "pids"), max_isolation_s=60.0)
    attempt_id = rig.grant("a")
    rig.running(attempt_id)
    pids = pids_in(tmp_path / "pids")
    shim = rig.dir(attempt_id).shim_pid()
    assert shim is not None
    os.kill(shim, signal.SIGKILL)
    job = rig.ended(attempt_id)
    assert job["state"] == "lost"
    assert job["error"]["code"] == "WorkerLost"
    assert rig.marked(attempt_id) == []
    assert not any(map(alive, pids))


def test_a_killed_shim_of_a_function_takes_forked_children_too(rig: Rig, tmp_path: Path) -> None:
    path = str(tmp_path / "pids")

    def fork_away() -> None:
        import os
        import time

        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                with open(path, "a") as file:
                    file.write(f"{os.getpid()}\n")
                time.sleep(1000)
            os._exit(0)
        with open(path, "a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(1000)

    fork_away.__module__ = "__main__"
    rig.submit_function("f", fork_away)
    attempt_id = rig.grant("f")
    rig.running(attempt_id)
    pids = pids_in(tmp_path / "pids")
    shim = rig.dir(attempt_id).shim_pid()
    assert shim is not None
    os.kill(shim, signal.SIGKILL)
    rig.ended(attempt_id)
    assert not any(map(alive, pids))


def test_work_goes_on_when_the_zygote_is_killed(rig: Rig, tmp_path: Path) -> None:
    rig.submit("a", command=gated(tmp_path / "gate", "echo done"))
    attempt_id = rig.grant("a")
    rig.node.run_until(lambda: rig.output("a.1") == "up\n", what="started")
    assert rig.manager is not None
    zygote = rig.manager.status()["zygote_pid"]
    os.kill(zygote, signal.SIGKILL)
    open_gate(tmp_path / "gate")
    assert rig.ended(attempt_id)["state"] == "succeeded"
    assert rig.run("b", command=["true"])["state"] == "succeeded"
    assert rig.manager.metrics()["zygote_restarts_total"] == 1


def test_end_all_work_puts_jobs_back_into_the_queue(rig: Rig) -> None:
    rig.submit("a", command=["sleep", "1000"])
    rig.running(rig.grant("a"))
    count: Any = rig.node.request("worker_manager", EndAllWork(0.5))
    assert count == 1
    job = rig.job("a")
    assert (job["state"], job["retries_left"]) == ("queued", 0)
    assert job["attempts"][0]["state"] == "lost"


@pytest.mark.parametrize("on_stop", ["end", "leave"])
def test_an_orderly_stop_ends_work_or_leaves_it(make_rig, tmp_path: Path, on_stop: str) -> None:  # type: ignore[no-untyped-def]
    rig = make_rig(work__on_stop=on_stop)
    rig.start_manager()
    go = tmp_path / "go"
    os.mkfifo(go)
    rig.submit("a", command=["sh", "-c", f"echo up; read line < {go}; echo done"])
    attempt_id = rig.grant("a")
    rig.running(attempt_id)
    rig.node.run_until(lambda: rig.output(attempt_id) == "up\n", what="the command")  # not its shim alone
    rig.manager.stop("test")
    rig.node.remove("worker_manager")
    assert (rig.marked(attempt_id) == []) == (on_stop == "end")
    rig.start_manager()
    if on_stop == "leave":
        go.write_text("on\n")
    job = rig.ended(attempt_id)
    assert job["state"] == ("queued" if on_stop == "end" else "succeeded")


def test_what_the_ledger_no_longer_grants_is_stopped(rig: Rig) -> None:
    rig.submit("a", command=["sleep", "1000"])
    attempt_id = rig.grant("a")
    rig.running(attempt_id)
    token = rig.job("a")["attempts"][0]["token"]
    rig.propose(EndAttempt(attempt_id=attempt_id, token=token, outcome="lost", charge=False))
    rig.node.run_until(lambda: not rig.marked(attempt_id), what="stopped")
    assert rig.job("a")["state"] == "queued"


def test_no_more_attempts_run_at_once_than_allowed(make_rig) -> None:  # type: ignore[no-untyped-def]
    rig = make_rig(work__max_attempts=1)
    rig.start_manager()
    rig.submit("a", command=["sleep", "0.2"])
    rig.submit("b", command=["true"])
    first, second = rig.grant("a"), rig.grant("b")
    rig.running(first)
    assert not rig.dir(second).exists()
    assert rig.ended(second)["state"] == "succeeded"
    assert rig.dir(first).reported()
