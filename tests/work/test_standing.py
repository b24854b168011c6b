"""Calls that stand behind others on one place: each begins when the one in front is gone, once, and never beside it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from actorgrid.actors.ledger.commands import CancelJob, GrantAttempt, PreemptAttempt
from actorgrid.actors.work import standing
from actorgrid.actors.work.standing import StandingAttempts
from actorgrid.actors.work.work_records import lost_spec
from tests.work.rig import Rig, wait_for
from tests.work.test_function_workers import by_value


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may be slow: nobody is given back where that is not asked for."""
    monkeypatch.setattr(standing, "STANDING_S", 60.0)


def note(folder: str, name: str, gated: bool) -> str:
    """Note the beginning and the end of a call; a *gated* one waits for the file NAME.go."""
    import select
    from pathlib import Path

    with open(Path(folder) / "log", "a") as log:
        print(f"+{name}", file=log, flush=True)
        while gated and not (Path(folder) / f"{name}.go").exists():
            select.select([], [], [], 0.005)
        print(f"-{name}", file=log)
    return name


def submit(rig: Rig, folder: Path, job_id: str, gated: bool = False, **fields: object) -> None:
    rig.submit_function(job_id, by_value(note), str(folder), job_id, gated, **fields)


def grant_behind(rig: Rig, job_id: str, front: str) -> str:
    number = len(rig.job(job_id)["attempts"]) + 1
    rig.propose(
        GrantAttempt(
            job_id=job_id, number=number, host="h1", incarnation=1, gpu_indexes=[], term=rig.term, behind=front
        )
    )
    return f"{job_id}.{number}"


def lines(folder: Path) -> list[str]:
    log = folder / "log"
    return log.read_text().split() if log.exists() else []


def front_and(rig: Rig, folder: Path, *behind: str) -> str:
    """A call that runs until FOLDER/a.go is there, and those *behind* it; gives its attempt."""
    submit(rig, folder, "a", gated=True)
    for job_id in behind:
        submit(rig, folder, job_id)
    front = attempt_id = rig.grant("a")
    rig.node.run_until(lambda: lines(folder) == ["+a"], what="it runs")
    for job_id in behind:
        front = grant_behind(rig, job_id, front)
    return attempt_id


def state(rig: Rig, job_id: str) -> tuple[str, int]:
    job = rig.job(job_id)
    return job["state"], len(job["attempts"])


def test_a_chain_of_calls_runs_one_after_the_other_without_another_grant(rig: Rig, tmp_path: Path) -> None:
    front_and(rig, tmp_path, "b", "c", "d")
    assert [state(rig, id) for id in "bcd"] == [("placed", 1)] * 3
    assert rig.manager is not None
    assert rig.manager._attempts.start_delay("c.1")["waits_for"].startswith("the call in front")
    assert not rig.dir("b.1").exists()
    (tmp_path / "a.go").touch()
    for attempt_id in ("a.1", "b.1", "c.1", "d.1"):
        rig.ended(attempt_id)
    assert [state(rig, id) for id in "abcd"] == [("succeeded", 1)] * 4
    assert lines(tmp_path) == [f"{sign}{name}" for name in "abcd" for sign in "+-"]
    times = [(each["started_at"], each["ended_at"]) for id in "abcd" for each in rig.job(id)["attempts"]]
    assert all(start is not None and start <= end for start, end in times)
    assert [start for start, _ in times] == sorted(start for start, _ in times)


@pytest.mark.system
@pytest.mark.parametrize("victim", ["worker", "shim"])
def test_a_killed_front_is_gone_before_the_next_begins_which_runs_once(rig: Rig, tmp_path: Path, victim: str) -> None:
    front = front_and(rig, tmp_path, "b")
    assert rig.manager is not None
    live = rig.manager._attempts.live[front]
    pid = live.shim_pid if victim == "shim" else live.link.pid  # type: ignore[union-attr]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    rig.ended("a.1")
    rig.ended("b.1")
    assert rig.job("a")["state"] in ("failed", "lost")
    assert (state(rig, "b"), lines(tmp_path)) == (("succeeded", 1), ["+a", "+b", "-b"])


@pytest.mark.system
def test_a_killed_agent_leaves_the_chain_to_the_next_which_runs_each_once(rig: Rig, tmp_path: Path) -> None:
    front_and(rig, tmp_path, "b", "c")
    rig.kill_manager()
    (tmp_path / "a.go").touch()
    wait_for(lambda: "-a" in lines(tmp_path), what="its end without an agent")
    rig.start_manager()
    for attempt_id in ("a.1", "b.1", "c.1"):
        rig.ended(attempt_id)
    assert [state(rig, id) for id in "abc"] == [("succeeded", 1)] * 3
    assert lines(tmp_path) == ["+a", "-a", "+b", "-b", "+c", "-c"]


@pytest.mark.system
def test_an_agent_killed_when_the_next_has_begun_and_nothing_was_told_runs_none_twice(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    front_and(rig, tmp_path)
    submit(rig, tmp_path, "b", gated=True)
    grant_behind(rig, "b", "a.1")
    assert rig.manager is not None

    attempts = rig.manager._attempts

    async def never(*_args: object) -> None:
        await attempts._server.sleep(1e6)

    monkeypatch.setattr(attempts, "_commit", never)
    (tmp_path / "a.go").touch()
    rig.node.run_until(lambda: lines(tmp_path) == ["+a", "-a", "+b"], what="the next has begun")
    assert rig.job("a")["attempts"][-1]["ended_at"] is None
    rig.kill_manager()
    (tmp_path / "b.go").touch()
    rig.start_manager()
    rig.ended("a.1")
    rig.ended("b.1")
    assert [state(rig, id) for id in "ab"] == [("succeeded", 1)] * 2
    assert lines(tmp_path) == ["+a", "-a", "+b", "-b"]


@pytest.mark.system
def test_one_that_is_cancelled_while_it_stands_never_begins_and_those_behind_move_up(rig: Rig, tmp_path: Path) -> None:
    front_and(rig, tmp_path, "b", "c")
    rig.propose(CancelJob("b"))
    rig.node.run_until(lambda: rig.job("b")["state"] == "cancelled", what="its cancellation")
    (tmp_path / "a.go").touch()
    rig.ended("c.1")
    assert [state(rig, id) for id in "abc"] == [("succeeded", 1), ("cancelled", 1), ("succeeded", 1)]
    assert lines(tmp_path) == ["+a", "-a", "+c", "-c"]


@pytest.mark.system
def test_the_place_of_a_preempted_front_goes_to_nobody_behind_it(rig: Rig, tmp_path: Path) -> None:
    front = front_and(rig, tmp_path, "b")
    token = rig.job("a")["attempts"][-1]["token"]
    rig.propose(PreemptAttempt(front, token, 0.1, "other", rig.term))
    rig.ended(front)
    rig.node.run_until(lambda: rig.job("b")["state"] == "queued", what="it waits again")
    attempt = rig.job("b")["attempts"][-1]
    assert (attempt["state"], attempt["started_at"], rig.job("b")["retries_left"]) == ("lost", None, 0)
    assert rig.job("b")["not_before"] <= time.time()
    assert lines(tmp_path) == ["+a"]


def test_who_stands_for_too_long_is_given_back_unbegun(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    front_and(rig, tmp_path)
    monkeypatch.setattr(standing, "STANDING_S", 0.05)
    submit(rig, tmp_path, "b")
    grant_behind(rig, "b", "a.1")
    rig.node.run_until(lambda: rig.job("b")["state"] == "queued", what="it waits again")
    assert "given back unbegun" in rig.job("b")["attempts"][-1]["error"]["message"]
    assert not rig.dir("b.1").exists()
    (tmp_path / "a.go").touch()
    rig.ended("a.1")
    assert lines(tmp_path) == ["+a", "-a"]


@pytest.mark.system
def test_a_result_that_was_not_synced_before_another_boot_counts_for_nothing(rig: Rig, tmp_path: Path) -> None:
    rig.kill_manager()
    submit(rig, tmp_path, "a")
    token = rig.allocation(rig.grant("a"))["token"]
    directory = rig.dir("a.1")
    directory.create({**lost_spec("a.1"), "job_id": "a", "ledger_token": token, "isolation_s": 10.0})
    lock = directory.take()
    assert lock is not None
    os.close(lock)
    directory.result.write_bytes(b"")
    directory.write_status({"reason": "exited", "exit_code": 0, "signal": None, "unsynced_in": "another boot"})
    rig.start_manager()
    assert (rig.ended("a.1")["state"], state(rig, "a")) == ("queued", ("queued", 1))


# -- who stands behind whom


def test_those_who_stand_move_with_the_ledger_and_go_last_first() -> None:
    line = StandingAttempts()
    line.add("b", "a", 0.0)
    line.add("c", "b", 1.0)
    assert (line.behind("a"), line.behind("b"), "c" in line, len(line)) == ("b", "c", True, 2)
    assert line.remove("b") and not line.remove("b")
    line.add("c", "a", 2.0)
    assert (line.behind("a"), line.behind("b")) == ("c", None)
    assert line.late(standing.STANDING_S) == []
    line.add("d", "c", 1.5)
    assert line.late(standing.STANDING_S + 1.2) == ["c"], "its time went on when it moved up"
    assert line.late(standing.STANDING_S + 2.0) == ["d", "c"]
