"""What is due, decided on virtual time by leaders that change, crash and have clocks that jump, over a real ledger."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from actorgrid.actors.jobs.schedule_agenda import LATE_S, Firing, ScheduleAgenda
from actorgrid.actors.ledger.commands import (
    CancelJob,
    FireSchedule,
    NewTerm,
    PauseSchedule,
    PutSchedule,
)
from actorgrid.actors.ledger.schedule_records import ScheduleRecord
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables.jobs import FINAL
from actorgrid.errors import ActorGridError
from tests.consensus.rig import AT
from tests.ledger.test_schedules import SECOND, schedule

EVERY_S = 10


def record(**more: Any) -> ScheduleRecord:
    made: Any = {
        **schedule(**{name: more.pop(name) for name in list(more) if name in schedule()}),
        "revision": 1,
        "counts_from": SECOND,
        "due_after": SECOND,
        **more,
    }
    return made


def only(agenda: ScheduleAgenda, now: float) -> Firing:
    (firing,) = agenda.due(now)
    return firing


def test_what_is_due_is_decided_once_its_time_has_come_and_not_before() -> None:
    agenda = ScheduleAgenda([record()])
    assert agenda.next_at() == SECOND + 10 and agenda.due(SECOND + 9.9) == []
    assert only(agenda, SECOND + 10.2) == Firing("nightly", 1, SECOND, SECOND + 10, (SECOND + 10,), 0, False)
    agenda.put(record(due_after=SECOND + 10))
    assert agenda.due(SECOND + 10.3) == [] and agenda.due(SECOND - 1_000.0) == [], "a clock that went back"
    agenda.put(record(paused=True))
    assert agenda.next_at() is None and agenda.due(SECOND + 1e6) == []
    agenda.put(record(revision=2))
    agenda.remove("nightly")
    assert agenda.due(SECOND + 1e6) == []


def test_some_are_decided_at_a_time_and_none_that_is_under_way() -> None:
    agenda = ScheduleAgenda([record(name=name) for name in "abcd"])
    assert [firing.name for firing in agenda.due(SECOND + 11, {"a", "c"})] == ["b", "d"]
    assert [firing.name for firing in agenda.due(SECOND + 11, {"a"}, 2)] == ["b", "c"]


@pytest.mark.parametrize(
    ("missed", "due", "count"),
    [("run_once", (60,), 5), ("skip", (60,), 5), ("run_all", (40, 50, 60), 3)],
)
def test_after_a_while_without_anybody(missed: str, due: tuple[int, ...], count: int) -> None:
    firing = only(ScheduleAgenda([record(missed=missed, missed_max=3)]), SECOND + 65)
    assert firing.due == tuple(SECOND + each for each in due)
    assert (firing.missed, firing.until, firing.in_line) == (count, SECOND + 60, missed == "run_all")


def test_a_run_that_is_late_is_passed_over_where_missed_ones_are() -> None:
    nightly: Any = {"kind": "at", "at": SECOND + 100}
    late = SECOND + 100 + LATE_S + 1
    assert only(ScheduleAgenda([record(trigger=nightly, missed="skip")]), late).due == ()
    assert only(ScheduleAgenda([record(trigger=nightly, missed="skip")]), late - 2).due == (SECOND + 100,)
    assert only(ScheduleAgenda([record(trigger=nightly)]), late).due == (SECOND + 100,)


def test_what_this_host_cannot_read_is_a_problem_of_that_schedule_alone() -> None:
    strange: Any = {"kind": "cron", "cron": "0 3 * * *", "zone": "Moon/Tycho"}
    agenda = ScheduleAgenda([record(), record(name="lunar", trigger=strange)])
    assert "no time zone" in agenda.problems["lunar"] and [each.name for each in agenda.due(SECOND + 10)] == ["nightly"]
    agenda.put(record(name="lunar", revision=2))
    assert agenda.problems == {}


class Leaders(RuleBasedStateMachine):
    """Each step is something that happens to a cluster. Nothing is ever done twice, and nothing is lost."""

    @initialize(
        overlap=st.sampled_from(["skip", "queue", "replace"]),
        missed=st.sampled_from(["run_once", "skip", "run_all"]),
        missed_max=st.integers(1, 5),
    )
    def begin(self, overlap: str, missed: str, missed_max: int) -> None:
        self.ledger = Ledger()
        self.now = AT
        self.decided: list[FireSchedule] = []
        self.stale: ScheduleRecord | None = None
        self.told: Counter[tuple[int, str]] = Counter()
        self.pauses = 0
        self.do(NewTerm(1, at=AT))
        every = {"kind": "every", "every_s": EVERY_S}
        self.do(PutSchedule(schedule(overlap=overlap, missed=missed, missed_max=missed_max, trigger=every), at=AT))

    def do(self, command: Any) -> ActorGridError | None:
        before = len(self.record["runs"]) if self.ledger.schedules else 0
        known = [] if not self.ledger.schedules else list(self.record["runs"])
        error = self.ledger.apply(self.ledger.index + 1, command).error
        if self.ledger.schedules:
            runs = self.record["runs"]
            # Those that are new stand at the end; the oldest leave, and a run whose job ends is another record.
            fresh = [run for run in runs if not any(_same(run, other) for other in known)]
            assert before + len(fresh) >= len(runs)
            for run in fresh:
                self.told[run["due_at"], run["outcome"]] += run["count"]
        return error

    @property
    def record(self) -> ScheduleRecord:
        return self.ledger.schedules["nightly"]

    @property
    def live(self) -> list[str]:
        return [job_id for job_id, job in self.ledger.jobs.items() if job["state"] not in FINAL]

    @rule(by=st.one_of(st.floats(0, 25), st.sampled_from([-40.0, -3.0, 120.0, 700.0])))
    def the_clock_goes_on_or_jumps(self, by: float) -> None:
        self.now += by

    @rule(old=st.booleans(), lost=st.booleans(), twice=st.booleans())
    def the_leader_looks(self, old: bool, lost: bool, twice: bool) -> None:
        """Perhaps at a copy that is behind; perhaps it crashes with its proposal, or proposes it twice."""
        seen = self.stale if old and self.stale is not None else self.record
        self.stale = self.record
        for each in ScheduleAgenda([seen]).due(self.now):
            command = FireSchedule(
                each.name,
                self.ledger.term,
                each.revision,
                each.after,
                each.until,
                list(each.due),
                each.missed,
                each.in_line,
                at=self.now,
            )
            self.decided.append(command)
            if not lost:
                self.do(command)
                if twice:
                    assert self.do(command) is not None

    @rule(which=st.integers(0, 50))
    def what_was_decided_long_ago_arrives(self, which: int) -> None:
        if self.decided:
            self.do(self.decided[which % len(self.decided)])

    @rule()
    def another_leads(self) -> None:
        self.do(NewTerm(self.ledger.term + 1, at=self.now))

    @rule()
    def the_run_ends(self) -> None:
        if self.live:
            self.do(CancelJob(self.live[0], at=self.now))

    @rule()
    def it_is_restored_from_a_snapshot(self) -> None:
        self.ledger = Ledger.restore(self.ledger.snapshot())

    @rule()
    def it_is_paused_and_resumed(self) -> None:
        self.pauses += 1
        self.do(PauseSchedule("nightly", True, at=self.now))
        self.do(PauseSchedule("nightly", False, at=self.now))

    @invariant()
    def one_run_at_a_time_and_each_due_time_once(self) -> None:
        assert len(self.live) <= 1
        assert (self.record["live"] is None) == (not self.live)
        if not self.pauses:  # resuming begins anew, on a clock that may have gone back
            started = Counter(due for due, outcome in self.told if outcome == "started")
            assert all(self.told[due, "started"] <= 1 for due in started)
            assert len(self.ledger.jobs) == len(started)

    @invariant()
    def every_due_time_is_accounted_for(self) -> None:
        if self.pauses:
            return
        passed = (self.record["due_after"] - SECOND) // EVERY_S
        assert sum(self.told.values()) + len(self.record["held"]) == passed


def _same(run: Any, other: Any) -> bool:
    names = ("due_at", "at", "outcome", "job_id", "count")
    return all(run[name] == other[name] for name in names)


TestLeaders = Leaders.TestCase
TestLeaders.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
