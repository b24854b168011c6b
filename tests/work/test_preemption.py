"""Attempts that the ledger asks to end for others: told in time, killed in time, reported as what they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from actorgrid.actors.ledger.commands import CancelJob, PreemptAttempt
from tests.work.rig import Rig, wait_for

PATIENT = "echo up; while :; do sleep 0.02; done"


def ask(rig: Rig, attempt_id: str, grace_s: float) -> None:
    job = rig.job(attempt_id.rpartition(".")[0])
    rig.propose(PreemptAttempt(attempt_id, job["attempts"][-1]["token"], grace_s, "other", rig.term))


def up(rig: Rig, line: str, job_id: str = "a", **fields: Any) -> str:
    rig.submit(job_id, command=["sh", "-c", line], **fields)
    attempt_id = rig.grant(job_id)
    rig.node.run_until(lambda: "up" in rig.output(attempt_id), what="it runs")
    rig.running(attempt_id)
    return attempt_id


def facts(job: dict[str, Any]) -> tuple[Any, ...]:
    attempt = job["attempts"][-1]
    return job["state"], job["preemptions"], attempt["state"], attempt["exit_code"], attempt["signal"]


def test_a_command_that_heeds_sigterm_saves_its_work_and_its_job_waits_again(rig: Rig, tmp_path: Path) -> None:
    """That it leaves with 0 then does not mean that it is done."""
    again = tmp_path / "again"
    attempt_id = up(
        rig,
        f"test -e {again} && exit 0; trap 'echo saved in $ACTORGRID_GRACE_S; touch {again}; exit 0' TERM; {PATIENT}",
        grace_s=30.0,
    )
    ask(rig, attempt_id, 30.0)
    assert facts(rig.ended(attempt_id)) == ("queued", 1, "preempted", 0, None)
    assert rig.output(attempt_id) == "up\nsaved in 30\n"
    job = rig.run("a")
    assert [attempt["state"] for attempt in job["attempts"]] == ["preempted", "succeeded"]
    assert (job["state"], job["retries_left"], job["error"]) == ("succeeded", 0, None)


def test_what_ignores_sigterm_is_killed_after_its_grace_with_its_whole_tree(rig: Rig, tmp_path: Path) -> None:
    escaped = tmp_path / "escaped"
    line = f"trap '' TERM; setsid sh -c 'echo $$ > {escaped}; {PATIENT}' & {PATIENT}"
    attempt_id = up(rig, line)
    wait_for(lambda: escaped.exists() and escaped.read_text(), what="the grandchild")
    ask(rig, attempt_id, 0.1)
    assert facts(rig.ended(attempt_id)) == ("queued", 1, "preempted", None, 9)
    assert rig.marked(attempt_id) == []


def test_a_function_that_delivers_its_value_within_the_grace_has_succeeded(rig: Rig) -> None:
    def stubborn() -> int:
        import signal
        import time

        told: list[int] = []
        signal.signal(signal.SIGTERM, lambda *_: told.append(1))
        print("up", flush=True)
        while not told:
            time.sleep(0.01)
        return 42

    rig.submit_function("a", stubborn)
    attempt_id = rig.grant("a")
    rig.node.run_until(lambda: "up" in rig.output(attempt_id), what="it runs")
    ask(rig, attempt_id, 30.0)
    job = rig.ended(attempt_id)
    assert (job["state"], job["preemptions"], job["attempts"][-1]["state"]) == ("succeeded", 0, "succeeded")


def test_what_ended_before_it_could_be_told_ended_as_it_did(rig: Rig, tmp_path: Path) -> None:
    go = tmp_path / "go"
    attempt_id = up(rig, f"echo up; until test -e {go}; do sleep 0.02; done")
    rig.kill_manager()
    ask(rig, attempt_id, 30.0)
    go.touch()
    wait_for(lambda: rig.dir(attempt_id).read_status() is not None, what="its end")
    rig.start_manager()
    assert facts(rig.ended(attempt_id)) == ("succeeded", 0, "succeeded", 0, None)


def test_what_is_asked_before_it_begins_does_not_begin(make_rig: Any) -> None:
    rig: Rig = make_rig(work__max_attempts=1)
    rig.submit("early", command=["true"])
    early = rig.grant("early")
    ask(rig, early, 30.0)
    rig.start_manager()
    rig.node.run_until(lambda: rig.job("early")["state"] == "queued", what="it waits again")
    assert not rig.dir(early).path.exists()

    first = up(rig, PATIENT, "first")
    rig.submit("second", command=["true"])
    second = rig.grant("second")
    ask(rig, second, 30.0)
    rig.node.run_until(lambda: rig.job("second")["state"] == "queued", what="it waits again, while no place is free")
    assert not rig.dir(second).path.exists()
    assert rig.job("first")["state"] == "running"
    ask(rig, first, 30.0)
    assert facts(rig.ended(first)) == ("queued", 1, "preempted", None, 15)


def test_a_preemption_goes_on_when_the_manager_dies_in_the_middle_and_nobody_is_told_twice(
    rig: Rig, tmp_path: Path
) -> None:
    told, go = tmp_path / "told", tmp_path / "go"
    attempt_id = up(
        rig, f"trap 'echo told; touch {told}; until test -e {go}; do sleep 0.02; done; exit 3' TERM; {PATIENT}"
    )
    ask(rig, attempt_id, 60.0)
    rig.node.run_until(told.exists, what="it was told")
    rig.kill_manager()
    rig.start_manager()
    rig.node.run_until(lambda: rig.manager is not None and rig.manager.status()["follows_ledger"], what="it follows")
    go.touch()
    assert facts(rig.ended(attempt_id)) == ("queued", 1, "preempted", 3, None)
    assert rig.output(attempt_id) == "up\ntold\n"


def test_a_preemption_that_comes_while_no_manager_lives_is_carried_out_by_the_next(rig: Rig) -> None:
    attempt_id = up(rig, PATIENT)
    rig.kill_manager()
    ask(rig, attempt_id, 30.0)
    assert rig.marked(attempt_id)
    rig.start_manager()
    assert facts(rig.ended(attempt_id)) == ("queued", 1, "preempted", None, 15)


def test_one_who_is_being_stopped_can_still_be_cancelled(rig: Rig) -> None:
    attempt_id = up(rig, f"trap '' TERM; {PATIENT}")
    ask(rig, attempt_id, 3600.0)
    rig.propose(CancelJob(job_id="a", by="me"))
    job = rig.ended(attempt_id)
    assert (job["state"], job["preemptions"]) == ("cancelled", 0)
