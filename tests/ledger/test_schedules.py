"""Schedules in the ledger: each due time is decided once, with the job that is made of it."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.ledger.command import read_command, refuse_if_too_new
from actorgrid.actors.ledger.commands import (
    CancelJob,
    EndAttempt,
    FireSchedule,
    NewTerm,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    RunSchedule,
    SetQuota,
    SubmitJobs,
)
from actorgrid.actors.ledger.schedule_records import ScheduleRecord
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables import schedules
from actorgrid.errors import BadRequest, HostsTooOld, QueueFull, StaleToken, UnknownSchedule, WrongState
from tests.consensus.rig import AT, job_record
from tests.ledger.test_state import Book

SECOND = int(AT)


def schedule(name: str = "nightly", **more: Any) -> dict[str, Any]:
    job = job_record("any")
    for field in ("job_id", "user_id", "depends_on", "submitted_at", "deadline"):
        job.pop(field, None)
    return {
        "name": name,
        "user_id": "ann",
        "trigger": {"kind": "every", "every_s": 10},
        "job": job,
        "overlap": "skip",
        "missed": "run_once",
        "missed_max": 10,
        "paused": False,
        "made_by": "ann",
        **more,
    }


class Planner(Book):
    """A ledger with one schedule, and whoever leads it."""

    def __init__(self, **more: Any) -> None:
        super().__init__(gpus=8)
        self.do(PutSchedule(schedule(**more), at=AT))

    @property
    def record(self) -> ScheduleRecord:
        return self.ledger.schedules["nightly"]

    @property
    def outcomes(self) -> list[tuple[int, str]]:
        return [(run["due_at"] - SECOND, run["outcome"]) for run in self.record["runs"]]

    def fire(self, *due: int, until: int = 0, **more: Any) -> dict[str, Any]:
        """What is due so many seconds after the schedule was made."""
        fields = {"term": 1, "revision": self.record["revision"], "after": self.record["due_after"], **more}
        until = until or due[-1]
        return self.do(
            FireSchedule(
                "nightly", until=SECOND + until, due=[SECOND + each for each in due], at=AT + until + 0.5, **fields
            )
        )

    def end(self, state: str = "succeeded") -> None:
        live = self.record["live"]
        assert live is not None
        self.run(live, state)

    def run(self, job_id: str, outcome: str, number: int = 1, **more: Any) -> str:
        token = self.grant(job_id, number, **more)
        state: str = self.do(EndAttempt(f"{job_id}.{number}", token, outcome, at=AT + 25))["job_state"]
        return state


def test_a_due_time_makes_one_job_in_the_same_entry_and_is_decided_once() -> None:
    book = Planner()
    after = book.record["due_after"]
    (job_id,) = book.fire(10)["started"]
    job = book.job(job_id)
    assert job_id.startswith("nightly-2") and (job["user_id"], job["state"]) == ("ann", "queued")
    assert job["labels"] == {"schedule": "nightly"}
    assert job["submitted_at"] == AT + 10.5 and book.record["live"] == job_id
    with pytest.raises(WrongState, match="decided already"):
        book.fire(10, after=after)
    with pytest.raises(WrongState, match="decided already"):
        book.fire(20, revision=0)
    with pytest.raises(StaleToken):
        book.fire(20, term=0)
    book.do(NewTerm(2, at=AT))
    with pytest.raises(StaleToken):
        book.fire(20)
    book.run(job_id, "succeeded", term=2)
    book.fire(20, term=2)
    assert [run["state"] for run in book.record["runs"]] == ["succeeded", None]
    assert book.record["started_total"] == 2 and len(book.ledger.jobs) == 2


def test_due_times_out_of_what_is_decided_are_refused() -> None:
    book = Planner()
    with pytest.raises(WrongState, match="not among"):
        book.fire(20, until=10)
    with pytest.raises(WrongState, match="not among"):
        book.fire(0, until=10)
    with pytest.raises(BadRequest):
        book.fire(20, 10, until=30)


@pytest.mark.parametrize("kind", [["cron"], {"every": 1}, 7, None, "monthly"])
def test_a_trigger_of_no_kind_is_refused_in_the_log_as_well(kind: Any) -> None:
    book = Planner()
    plain = PutSchedule(schedule("other", trigger={"kind": kind, "every_s": 10}), at=AT).to_plain()
    with pytest.raises(BadRequest, match="of the kind"):
        read_command(plain)
    refused = book.ledger.apply(book.ledger.index + 1, plain).error
    assert isinstance(refused, BadRequest) and list(book.ledger.schedules) == ["nightly"]


def test_skip_passes_over_what_is_due_while_a_run_is_not_over() -> None:
    book = Planner()
    book.fire(10)
    assert book.fire(20) == {"started": [], "held": 0, "skipped": 1}
    book.end("failed")
    book.fire(30)
    assert book.outcomes == [(10, "started"), (20, "skipped"), (30, "started")]
    assert book.record["runs"][0]["state"] == "failed" and "not over" in book.record["runs"][1]["reason"]


def test_queued_runs_begin_in_the_entry_that_ends_the_one_before() -> None:
    book = Planner(overlap="queue")
    book.fire(10)
    assert book.fire(20)["held"] == 1 and book.fire(30)["held"] == 2
    for due in (20, 30):
        index = book.ledger.index
        before = book.record["live"]
        book.end()
        live = book.record["live"]
        assert live != before and live is not None
        assert book.job(live)["submitted_index"] == book.ledger.index == index + 2
        assert book.outcomes[-1] == (due, "started")
    book.end()
    assert book.record["live"] is None and book.record["held"] == []


def test_a_line_is_bounded() -> None:
    book = Planner(overlap="queue")
    for number in range(1, schedules.HELD_MAX + 3):
        book.fire(10 * number)
    assert len(book.record["held"]) == schedules.HELD_MAX
    assert book.outcomes[-1] == (10 * (schedules.HELD_MAX + 2), "skipped")
    assert len(book.record["runs"]) == 2


def test_the_last_runs_are_kept() -> None:
    book = Planner()
    for number in range(1, schedules.RUNS_KEPT + 6):
        book.fire(10 * number)
        book.end()
    assert book.outcomes[0] == (60, "started") and len(book.record["runs"]) == schedules.RUNS_KEPT


def test_replace_asks_for_the_end_of_what_runs_and_begins_when_it_is_over() -> None:
    book = Planner(overlap="replace")
    (first,) = book.fire(10)["started"]
    token = book.grant(first)
    assert book.fire(20) == {"started": [], "held": 1, "skipped": 0}
    assert book.job(first)["cancel_requested"]
    assert book.fire(30)["skipped"] == 1, "the latest stands in line alone"
    book.do(EndAttempt(f"{first}.1", token, "cancelled", at=AT + 35))
    assert [run["outcome"] for run in book.record["runs"]] == ["started", "skipped", "started"]
    # What only waits has ended at once.
    second = book.record["live"]
    assert book.fire(40)["started"] == [book.record["live"]] and book.record["live"] != second
    assert book.job(str(second))["state"] == "cancelled"


def test_missed_times_are_told_together_and_those_in_line_run_whatever_the_overlap() -> None:
    book = Planner(missed="run_all")
    book.fire(40, 50, missed=3, in_line=True)
    assert book.outcomes == [(50, "missed"), (40, "started")] and book.record["runs"][0]["count"] == 3
    book.end()
    assert book.outcomes[-1] == (50, "started")


def test_a_paused_one_is_not_fired_and_goes_on_from_its_resumption() -> None:
    book = Planner(overlap="queue")
    book.fire(10)
    book.fire(20)
    assert book.do(PauseSchedule("nightly", True, at=AT + 21))["unchanged"] is False
    assert book.record["held"] == []
    with pytest.raises(WrongState, match="paused"):
        book.fire(30)
    book.end()
    assert book.record["live"] is None
    book.do(RunSchedule("nightly", at=AT + 31))
    assert book.record["live"] is not None, "by hand it runs"
    book.do(PauseSchedule("nightly", False, at=AT + 100))
    assert book.record["due_after"] == SECOND + 100
    assert book.do(PauseSchedule("nightly", False, at=AT + 200))["unchanged"] is True


def test_what_was_fired_by_a_clock_far_ahead_is_mended_by_writing_or_resuming_it() -> None:
    book = Planner()
    book.fire(10, until=10_000_000)
    book.do(PauseSchedule("nightly", True, at=AT + 20))
    book.do(PauseSchedule("nightly", False, at=AT + 21))
    assert book.record["due_after"] == SECOND + 21


def test_by_hand_several_times_in_a_second_each_job_has_its_own_id() -> None:
    book = Planner(overlap="queue")
    for _ in range(3):
        book.do(RunSchedule("nightly", at=AT + 1))
    ids = []
    for _ in range(3):
        ids.append(book.record["live"])
        book.end()
    assert ids[1:] == [f"{ids[0]}-2", f"{ids[0]}-3"]
    book.fire(10)
    book.do(PutSchedule(schedule(), replace=True, at=AT))
    with pytest.raises(WrongState, match="not over"):
        book.do(RunSchedule("nightly", at=AT + 1))


def test_a_job_that_may_not_be_made_is_noted_and_nothing_is_stuck() -> None:
    book = Planner()
    book.do(SetQuota("ann", {"jobs_waiting": 0}, "me", at=AT))
    assert book.fire(10) == {"started": [], "held": 0, "skipped": 1}
    assert book.outcomes == [(10, "refused")] and "waiting" in book.record["runs"][0]["reason"]
    with pytest.raises(QueueFull):
        book.do(RunSchedule("nightly", at=AT))
    book.do(SetQuota("ann", {"jobs_waiting": 1}, "me", at=AT))
    assert book.fire(20)["started"]


def test_it_is_written_over_only_when_that_is_said_and_the_same_is_no_change() -> None:
    book = Planner()
    revision = book.record["revision"]
    assert book.do(PutSchedule(schedule(made_by="bob"), at=AT + 5)) == {
        "name": "nightly",
        "revision": revision,
        "unchanged": True,
    }
    other = schedule(trigger={"kind": "every", "every_s": 60})
    with pytest.raises(WrongState, match="already"):
        book.do(PutSchedule(other, at=AT + 5))
    book.fire(10)
    live = book.record["live"]
    book.do(PutSchedule(other, replace=True, at=AT + 15))
    assert (book.record["live"], book.record["due_after"], book.record["made_at"]) == (live, SECOND + 15, AT)
    assert book.record["revision"] > revision


def test_a_single_time_that_passes_while_it_is_written_is_still_to_come() -> None:
    book = Planner(trigger={"kind": "at", "at": SECOND})
    assert book.record["due_after"] == SECOND - 1
    assert book.fire(0)["started"]


def test_removed_it_makes_no_more_and_what_runs_goes_on() -> None:
    book = Planner(overlap="queue")
    (first,) = book.fire(10)["started"]
    book.fire(20)
    assert book.do(RemoveSchedule("nightly", at=AT)) == {"name": "nightly", "live": first}
    book.run(first, "succeeded")
    assert len(book.ledger.jobs) == 1 and book.ledger.schedules == {}
    for command in (RemoveSchedule("nightly"), PauseSchedule("nightly", True), RunSchedule("nightly")):
        with pytest.raises(UnknownSchedule):
            book.do(command)


def test_a_job_that_waits_and_is_cancelled_makes_room_for_the_next() -> None:
    book = Planner(overlap="queue")
    (first,) = book.fire(10)["started"]
    book.fire(20)
    book.do(CancelJob(first, at=AT + 30))
    assert book.record["runs"][0]["state"] == "cancelled" and book.record["live"] not in (None, first)


def test_a_job_has_its_own_labels_too_and_never_too_many() -> None:
    for count, all_of_them in ((2, 3), (16, 16)):
        given = schedule()
        given["job"]["labels"] = {f"l{number}": "x" for number in range(count)}
        book = Book()
        book.do(PutSchedule(given, at=AT))
        book.do(RunSchedule("nightly", at=AT))
        (job,) = book.ledger.jobs.values()
        assert len(job["labels"]) == all_of_them and job["labels"]["l0"] == "x"


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Planner()
    monkeypatch.setattr(schedules, "SCHEDULES_MAX", 1)
    with pytest.raises(QueueFull, match="maximum of schedules"):
        book.do(PutSchedule(schedule("other"), at=AT))
    monkeypatch.setattr(schedules, "SCHEDULES_MAX", 10)
    monkeypatch.setattr(schedules, "SCHEDULE_BYTES_MAX", 600)
    large = schedule("other")
    large["job"]["env"] = {"A": "x" * 700}
    with pytest.raises(QueueFull, match="too large"):
        book.do(PutSchedule(large, at=AT))
    monkeypatch.setattr(schedules, "SCHEDULES_BYTES_MAX", 100)
    with pytest.raises(QueueFull, match="maximum of schedules"):
        book.do(PutSchedule(schedule("other"), at=AT))


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "has.dot"},
        {"name": "x" * 41},
        {"trigger": {"kind": "sometimes"}},
        {"trigger": {"kind": "every", "every_s": 0}},
        {"trigger": {"kind": "every", "every_s": 1.5}},
        {"trigger": {"kind": "at", "at": 2**50}},
        {"trigger": {"kind": "cron", "cron": "x"}},
        {"trigger": {"kind": "cron", "cron": "x", "zone": "UTC", "more": 1}},
        {"overlap": "maybe"},
        {"missed_max": 101},
        {"job": {}},
        {"job": {"resources": {}, "depends_on": ["a"]}},
        {"job": {"resources": {}, "deadline": 5.0}},
        {"job": {"resources": {}, "step_of": {}}},
        {"job": {"resources": {}, "job_id": "a"}},
        {"more": 1},
    ],
)
def test_what_is_malformed_is_refused(wrong: dict[str, Any]) -> None:
    book = Book()
    outcome = book.ledger.apply(book.ledger.index + 1, PutSchedule(schedule(**wrong), at=AT))
    assert isinstance(outcome.error, BadRequest) and book.ledger.schedules == {}


def test_a_snapshot_has_all_of_it_and_goes_on_where_it_was() -> None:
    book = Planner(overlap="queue")
    plain = Book()
    assert "schedule" not in plain.ledger.digest(), "voters that do not know the kind leave it out, too"
    book.fire(10)
    book.fire(20)
    live = str(book.record["live"])
    restored = Ledger.restore(book.ledger.snapshot())
    assert restored.schedules == book.ledger.schedules == book.ledger.live().schedules
    assert restored.digest() == book.ledger.digest() and "schedule" in restored.digest()
    original, book.ledger = book.ledger, restored
    book.run(live, "succeeded")
    assert book.record["live"] not in (None, live)
    book.ledger = original
    book.run(live, "succeeded")
    assert restored.snapshot() == original.snapshot()


def test_older_members_are_not_sent_it() -> None:
    members: Any = {"a": {"ledger_version": 9}, "b": {"ledger_version": 8}}
    put = PutSchedule(schedule(), at=AT)
    with pytest.raises(HostsTooOld):
        refuse_if_too_new(put, members)
    with pytest.raises(BadRequest):
        read_command(put.to_plain(), members)
    assert SubmitJobs([job_record("a")], at=AT).format_version == 1
