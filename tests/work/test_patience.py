"""What a patience promises on a busy machine; what becomes of work that a host cannot start, or had done already."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.ledger.commands import ConfirmHost, EndAttempt
from actorgrid.actors.ledger.records import isolation_of
from actorgrid.actors.work import zygote_link
from actorgrid.actors.work.messages import StartDelay
from actorgrid.errors import NotLeader
from actorgrid.supervisors.runtime import Waiter
from tests.work.rig import Rig, wait_for
from tests.work.test_host_lease import isolate, lose, may_start


def slow_reads(rig: Rig, held: list[Waiter]) -> None:
    """Reads are confirmed when the test says so: each adds a waiter to *held*."""

    async def confirm() -> None:
        waiter = Waiter()
        held.append(waiter)
        await waiter

    rig.consensus._linearizable = confirm  # type: ignore[method-assign]


def lease_of(rig: Rig) -> Any:
    assert rig.manager is not None
    return rig.manager._renewer.lease


def given_back(rig: Rig, attempt_id: str) -> dict[str, Any]:
    """The job of an attempt that never began, so that nothing on disk tells of its end."""
    job_id = attempt_id.rpartition(".")[0]
    rig.node.run_until(lambda: rig.job(job_id)["attempts"][-1]["ended_at"] is not None, 20.0, "it is given back")
    return rig.job(job_id)


# -- renewals that are slow


def test_a_read_that_is_slow_does_not_hold_up_the_next_and_its_answer_still_counts(rig: Rig) -> None:
    rig.node.run_until(lambda: may_start(rig), what="a lease")
    held: list[Waiter] = []
    slow_reads(rig, held)
    before = lease_of(rig).renewed_at
    rig.node.run_until(lambda: len(held) >= 3, what="three reads under way")
    assert lease_of(rig).renewed_at == before
    held[1].set(None)
    rig.node.run_until(lambda: lease_of(rig).renewed_at > before, what="a renewal by the second")
    second = lease_of(rig).renewed_at
    held[0].set(None)
    held[2].set(None)
    rig.node.run_until(lambda: lease_of(rig).renewed_at > second, what="a renewal by the third")
    assert rig.manager is not None
    assert rig.manager.status()["lease_age_max_s"] >= rig.manager.status()["lease_age_s"]


def test_reads_under_way_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.node.run_until(lambda: may_start(rig), what="a lease")
    monkeypatch.setattr("actorgrid.actors.work.lease_renewer.RENEW_S", 0.01)
    held: list[Waiter] = []
    slow_reads(rig, held)
    rig.node.run_until(lambda: not may_start(rig), what="the end of the lease")
    assert len(held) == 8


def test_while_nobody_leads_it_is_asked_again_sooner(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.node.run_until(lambda: may_start(rig), what="a lease")
    asked = 0

    async def refuse() -> None:
        nonlocal asked
        asked += 1  # had it not been refused, the next one would come in an hour
        monkeypatch.setattr("actorgrid.actors.work.lease_renewer.RENEW_S", 3600.0)
        monkeypatch.setattr("actorgrid.actors.work.lease_renewer.READS_IN_PATIENCE", 1e-9)
        raise NotLeader("nobody leads")

    rig.consensus._linearizable = refuse  # type: ignore[method-assign]
    lapses = lease_of(rig).lapses
    rig.node.run_until(lambda: not may_start(rig), what="the end of the lease")
    rig.node.run_until(lambda: asked > 3, what="what a renewal would not have asked in an hour")
    assert lease_of(rig).lapses == lapses


# -- patience that is none


def test_less_than_a_leader_waits_is_no_patience() -> None:
    assert isolation_of({"max_isolation_s": 1.0}, {}) == 3.0
    assert isolation_of({}, {"max_isolation_s": 0.0}) == 10.0
    assert isolation_of({}, {"max_isolation_s": 60.0}) == 60.0


# -- what cannot be started


def test_an_attempt_that_its_host_cannot_start_in_time_is_given_back(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(work__start_timeout_s=1.0)
    rig.start_manager()
    rig.node.run_until(lambda: may_start(rig), what="a lease")
    mend = isolate(rig)
    rig.node.run_until(lambda: not may_start(rig), what="the end of the lease")
    rig.submit("a", command=["true"])
    attempt_id = rig.grant("a")
    job = given_back(rig, attempt_id)
    error = job["attempts"][0]["error"]
    assert (job["state"], job["attempts"][0]["state"], job["retries_left"]) == ("queued", "lost", 0)
    assert "could not start it within 1 s" in error["message"]
    assert "confirm this host's lease" in error["found"]
    mend()
    rig.node.run_until(lambda: may_start(rig), what="a lease again")
    assert rig.run("a")["state"] == "succeeded"


def test_a_host_says_what_an_attempt_waits_for(rig: Rig) -> None:
    rig.node.run_until(lambda: may_start(rig), what="a lease")
    mend = isolate(rig)
    rig.node.run_until(lambda: not may_start(rig), what="the end of the lease")
    rig.submit("a", command=["true"])
    attempt_id = rig.grant("a")

    def delay() -> dict[str, Any]:
        answer: dict[str, Any] = rig.node.request("worker_manager", StartDelay(attempt_id))
        return answer

    rig.node.run_until(lambda: bool(delay()["waits_for"]), what="a reason")
    assert "must have within 3 s" in delay()["waits_for"]
    assert 0 < delay()["left_s"] <= 30
    mend()
    rig.ended(attempt_id)
    assert delay() == {"waits_for": "", "left_s": None}


def test_what_waits_for_others_to_end_is_given_back_in_time_too(make_rig: Callable[..., Rig], tmp_path: Path) -> None:
    rig = make_rig(work__start_timeout_s=2.0, work__max_attempts=1)
    rig.start_manager()
    gate = tmp_path / "gate"
    rig.submit("a", command=["sh", "-c", f"until [ -e {gate} ]; do sleep 0.02; done"])
    first = rig.grant("a")
    rig.running(first)
    rig.submit("b", command=["true"])
    job = given_back(rig, rig.grant("b"))
    assert job["state"] == "queued"
    assert "max_attempts" in job["attempts"][0]["error"]["found"]
    gate.touch()
    assert rig.ended(first)["state"] == "succeeded"
    assert rig.run("b")["state"] == "succeeded"


@pytest.mark.parametrize("isolation", ["auto", "full"])
def test_a_zygote_that_hangs_is_replaced_and_the_attempt_starts(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    if isolation == "full" and os.geteuid() != 0:
        pytest.skip("only root can have work run as another uid; the other case has the same zygote")
    monkeypatch.setattr(zygote_link, "FORK_PATIENCE_S", 0.5)
    rig = make_rig(work__isolation=isolation)
    manager = rig.start_manager()
    rig.node.run_until(lambda: may_start(rig), what="a lease")
    pid = manager.status()["zygote_pid"]
    os.kill(pid, signal.SIGSTOP)
    rig.submit("a", command=["true"])
    assert rig.ended(rig.grant("a"))["state"] == "succeeded"
    assert manager.status()["zygote_pid"] != pid


# -- what had succeeded already


def end_unseen(rig: Rig, gate: Path, script: str) -> str:
    """Run *script* as job ``a`` and let it end after the manager is gone, which so has not reported it."""
    rig.submit("a", command=["sh", "-c", f"until [ -e {gate} ]; do sleep 0.02; done; {script}"])
    attempt_id = rig.grant("a")
    rig.running(attempt_id)
    rig.kill_manager()
    gate.touch()
    wait_for(lambda: rig.dir(attempt_id).read_status(), what="the end of the attempt")
    return attempt_id


def test_a_success_that_is_on_disk_counts_though_the_ledger_gave_the_attempt_up(rig: Rig, tmp_path: Path) -> None:
    attempt_id = end_unseen(rig, tmp_path / "gate", "echo once")
    lose(rig, attempt_id)
    assert rig.job("a")["state"] == "queued"
    rig.start_manager()
    job = rig.ended(attempt_id)
    assert (job["state"], job["taken"], len(job["attempts"])) == ("succeeded", 1, 1)
    assert rig.output(attempt_id) == "once\n"


def test_what_was_started_instead_is_stopped_and_the_job_is_over_when_that_is_gone(rig: Rig, tmp_path: Path) -> None:
    first_is_over = tmp_path / "first"
    script = f"[ -e {first_is_over} ] && exec sleep 600; touch {first_is_over}"
    first = end_unseen(rig, tmp_path / "gate", script)
    record = rig.host()
    lose(rig, first)
    # Elsewhere, in truth; this rig has one host, so that is back before the other attempt is placed.
    rig.propose(ConfirmHost(host="h1", incarnation=1, lost_at=rig.host()["lost_at"]))
    second = rig.grant("a")
    assert record["state"] == "up"
    rig.start_manager()
    job = rig.ended(second)
    assert (job["state"], job["taken"]) == ("succeeded", 1)
    assert [each["state"] for each in job["attempts"]] == ["succeeded", "cancelled"]
    rig.node.run_until(rig.dir(first).reported, what="the first one's report")
    assert not rig.marked(second)


def test_when_another_attempt_was_first_that_one_counts(rig: Rig, tmp_path: Path) -> None:
    first = end_unseen(rig, tmp_path / "gate", "true")
    lose(rig, first)
    rig.propose(ConfirmHost(host="h1", incarnation=1, lost_at=rig.host()["lost_at"]))
    second = rig.grant("a")
    token = rig.allocation(second)["token"]
    rig.propose(EndAttempt(attempt_id=second, token=token, outcome="succeeded"))
    rig.start_manager()
    job = rig.ended(first)
    assert (job["state"], job.get("taken")) == ("succeeded", None)
    assert job["attempts"][0]["late_success_at"] is not None
