"""The agent dies; its shims do not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.work.rig import Rig, alive, gated, open_gate, wait_for
from tests.work.test_endings import family, pids_in


def test_an_attempt_runs_on_without_its_agent_and_is_adopted(rig: Rig, tmp_path: Path) -> None:
    rig.submit("a", command=gated(tmp_path / "gate", "echo done; exit 4"))
    attempt_id = rig.grant("a")
    rig.node.run_until(lambda: rig.output(attempt_id) == "up\n", what="started")
    pids = wait_for(lambda: rig.marked(attempt_id), what="its processes")
    rig.kill_manager()
    assert set(pids) <= set(rig.marked(attempt_id))
    rig.start_manager()
    open_gate(tmp_path / "gate")
    job = rig.ended(attempt_id)
    assert job["attempts"][0]["exit_code"] == 4
    assert len(job["attempts"]) == 1
    assert rig.output(attempt_id) == "up\ndone\n"
    assert rig.manager is not None
    assert rig.manager.metrics()["attempts_adopted_total"] == 1


def test_an_attempt_that_ended_while_the_agent_was_away_is_collected(rig: Rig, tmp_path: Path) -> None:
    rig.submit("a", command=gated(tmp_path / "gate", "echo done"))
    attempt_id = rig.grant("a")
    rig.running(attempt_id)
    rig.kill_manager()
    open_gate(tmp_path / "gate")
    wait_for(rig.dir(attempt_id).ended, what="end without agent")
    rig.start_manager()
    assert rig.ended(attempt_id)["state"] == "succeeded"
    assert rig.output(attempt_id) == "up\ndone\n"


def test_not_adopted_in_time_the_whole_tree_is_ended(rig: Rig, tmp_path: Path) -> None:
    rig.submit("a", command=family(tmp_path / "pids"), max_isolation_s=3.0)
    attempt_id = rig.grant("a")
    rig.running(attempt_id)
    pids = pids_in(tmp_path / "pids")
    rig.kill_manager()
    wait_for(lambda: rig.dir(attempt_id).read_status(), what="end of the lease")
    assert not any(map(alive, pids))
    assert rig.marked(attempt_id) == []
    rig.start_manager()
    job = rig.ended(attempt_id)
    assert job["state"] == "queued"
    assert job["attempts"][0]["error"]["code"] == "WorkerLost"


def test_a_renewed_lease_lasts(rig: Rig) -> None:
    job = rig.run("a", command=["sleep", "4"], max_isolation_s=3.0)
    assert job["state"] == "succeeded"


def test_a_shim_killed_while_the_agent_was_away_is_found(rig: Rig, tmp_path: Path) -> None:
    rig.submit("a", command=family(tmp_path / "pids"), max_isolation_s=60.0)
    attempt_id = rig.grant("a")
    rig.running(attempt_id)
    pids = pids_in(tmp_path / "pids")
    rig.kill_manager()
    shim = rig.dir(attempt_id).shim_pid()
    assert shim is not None
    os.kill(shim, signal.SIGKILL)
    wait_for(lambda: rig.dir(attempt_id).shim_pid() is None, what="shim gone")
    wait_for(lambda: not any(map(alive, pids)), what="its processes ended by the guard")
    rig.start_manager()
    # It went together with its agent: that is not the job's fault, so it is tried again.
    job = rig.ended(attempt_id)
    assert (job["state"], job["attempts"][0]["state"]) == ("queued", "lost")


def test_a_shim_that_is_suspended_past_its_lease_keeps_nothing_alive(rig: Rig, tmp_path: Path) -> None:
    rig.submit("a", command=family(tmp_path / "pids"), max_isolation_s=3.0)
    attempt_id = rig.grant("a")
    rig.running(attempt_id)
    pids = pids_in(tmp_path / "pids")
    shim = rig.dir(attempt_id).shim_pid()
    assert shim is not None
    os.kill(shim, signal.SIGSTOP)
    rig.kill_manager()
    wait_for(lambda: not any(map(alive, pids)), what="their end by the guard")
    os.kill(shim, signal.SIGCONT)
    status = wait_for(lambda: rig.dir(attempt_id).read_status(), what="end after the pause")
    assert status["reason"] == "isolated"


def test_an_attempt_never_runs_twice(rig: Rig, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    rig.run("a", command=["sh", "-c", f"echo x >> {runs}"])
    os.unlink(rig.dir("a.1").status_file)
    os.unlink(rig.dir("a.1").path / "reported")
    rig.kill_manager()
    rig.start_manager()
    rig.ended("a.1")
    assert runs.read_text() == "x\n"


def test_workers_outlive_the_agent_with_their_clients(rig: Rig) -> None:
    from tests.work.rig import RawClient

    grant = rig.lease("L1")
    with RawClient(grant) as client:
        pid = client.welcome().pid
        rig.kill_manager()
        assert client.call(len, "abc") == 3
        rig.start_manager()
        rig.node.run_until(lambda: rig.manager is not None and rig.manager.status()["follows_ledger"])
        assert client.call(len, "abcd") == 4
        again = rig.attach("L1")
        assert again["worker_id"] == grant["worker_id"]
    with RawClient(again) as client:
        assert client.welcome().pid == pid
