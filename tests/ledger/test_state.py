"""The state machine's rules, one by one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from actorgrid.actors.ledger.commands import (
    CancelJob,
    EndAttempt,
    FailJob,
    GrantAttempt,
    GrantLease,
    NewTerm,
    RegisterHost,
    ReleaseLease,
    SetSetting,
    StartAttempt,
    SubmitJobs,
)
from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables import jobs as jobs_module
from actorgrid.actors.ledger.tables.attempts import ATTEMPTS_MAX
from actorgrid.errors import (
    BadRequest,
    Overcommit,
    StaleIncarnation,
    StaleToken,
    UnknownJob,
    WrongState,
)
from tests.consensus.rig import AT, host_record, job_record


class Book:
    """A ledger with a log behind it."""

    def __init__(self, gpus: int = 2) -> None:
        self.ledger = Ledger()
        self.entries: list[dict[str, Any]] = []
        self.outcome = Outcome(0, {}, None)
        self.do(NewTerm(1, at=AT))
        self.do(RegisterHost(host_record(gpus=gpus), at=AT))

    def do(self, command: dict[str, Any], session: str = "", seq: int = 0) -> dict[str, Any]:
        self.outcome = self.ledger.apply(self.ledger.index + 1, command, session, seq)
        if self.outcome.error is not None:
            raise self.outcome.error
        assert self.outcome.result is not None
        return self.outcome.result

    def submit(self, job_id: str, **more: Any) -> None:
        self.do(SubmitJobs([job_record(job_id, **more)], at=AT))

    def grant(self, job_id: str, number: int = 1, gpus: tuple[int, ...] = (0,), **more: Any) -> list[int]:
        fields = {"host": "h1", "incarnation": 1, "term": 1, **more}
        token: list[int] = self.do(
            GrantAttempt(job_id, number, gpu_indexes=list(gpus), at=AT, **fields)  # type: ignore[arg-type]
        )["token"]
        return token

    def run(self, job_id: str, outcome: str, number: int = 1, **more: Any) -> str:
        token = self.grant(job_id, number)
        self.do(StartAttempt(f"{job_id}.{number}", token, at=AT))
        state: str = self.do(EndAttempt(f"{job_id}.{number}", token, outcome, at=AT + 5, **more))["job_state"]
        return state

    def job(self, job_id: str) -> dict[str, Any]:
        return self.ledger.jobs[job_id]


def test_grant_takes_the_amounts_of_the_job_and_gives_a_token() -> None:
    book = Book()
    book.submit("a")
    token = book.grant("a")
    assert token == [1, book.ledger.index]
    allocation = book.ledger.allocations["a.1"]
    assert (allocation["gpu_milli"], allocation["gpu_memory_mib"], allocation["cpu_milli"]) == (500, 1_000, 1_000)
    assert allocation["gpu_uuids"] == ["GPU-h1-0"]
    assert book.job("a")["state"] == "placed"


@pytest.mark.parametrize(
    ("resources", "found"),
    [
        ({"gpu_milli": 501}, "device 0"),
        ({"gpu_memory_mib": 79_001}, "device 0"),
        ({"cpu_milli": 7_001}, "CPU"),
        ({"memory_mib": 32_001}, "memory"),
    ],
)
def test_grant_that_overcommits_is_refused_and_changes_nothing(resources: dict[str, Any], found: str) -> None:
    book = Book()
    book.submit("a")
    book.grant("a")
    book.submit("b", resources=resources)
    before = book.ledger.snapshot()
    with pytest.raises(Overcommit) as caught:
        book.grant("b")
    assert found in caught.value.message
    assert caught.value.asked
    assert caught.value.found
    book.ledger.index -= 1
    assert book.ledger.snapshot() == before


def test_what_is_asked_for_as_zero_is_not_counted() -> None:
    book = Book()
    book.submit("big", resources={"gpu_count": 0, "gpu_milli": 0, "gpu_memory_mib": 0, "cpu_milli": 8_000})
    book.grant("big", gpus=())
    book.submit("free", resources={"gpu_count": 0, "gpu_milli": 0, "gpu_memory_mib": 0, "cpu_milli": 0})
    book.grant("free", gpus=())


def test_grant_of_another_term_incarnation_or_host_is_refused() -> None:
    book = Book()
    book.submit("a")
    with pytest.raises(StaleToken):
        book.grant("a", term=0)
    with pytest.raises(StaleToken):
        book.grant("a", term=2)
    with pytest.raises(StaleIncarnation):
        book.grant("a", incarnation=2)
    with pytest.raises(StaleIncarnation):
        book.grant("a", host="nowhere")
    book.do(RegisterHost(host_record(incarnation=2), at=AT))
    with pytest.raises(StaleIncarnation):
        book.grant("a")
    book.do(RegisterHost(host_record(incarnation=2, state="down"), at=AT))
    with pytest.raises(WrongState):
        book.grant("a", incarnation=2)
    with pytest.raises(StaleIncarnation):
        book.do(RegisterHost(host_record(incarnation=1), at=AT))


def test_grant_of_wrong_devices_numbers_or_states_is_refused() -> None:
    book = Book()
    book.submit("a")
    for gpus in ((), (0, 1), (7,)):
        with pytest.raises(WrongState):
            book.grant("a", gpus=gpus)
    with pytest.raises(WrongState):
        book.grant("a", number=2)
    with pytest.raises(WrongState):
        book.grant("nobody")
    book.grant("a")
    with pytest.raises(WrongState):
        book.grant("a", number=2)


def test_allocations_of_a_living_attempt_count_across_incarnations() -> None:
    book = Book(gpus=1)
    book.submit("a")
    token = book.grant("a")
    book.do(RegisterHost(host_record(gpus=1, incarnation=2), at=AT))
    book.submit("b", resources={"gpu_milli": 1000})
    with pytest.raises(Overcommit):
        book.grant("b", incarnation=2)
    book.do(EndAttempt("a.1", token, "succeeded", at=AT))
    book.grant("b", incarnation=2)


def test_attempt_lives_and_ends_with_its_facts() -> None:
    book = Book()
    book.submit("a")
    assert book.run("a", "succeeded", exit_code=0, max_rss_bytes=123, cpu_s=0.5, result_bytes=9) == "succeeded"
    job = book.job("a")
    attempt = job["attempts"][0]
    assert (attempt["exit_code"], attempt["max_rss_bytes"], attempt["cpu_s"], attempt["result_bytes"]) == (
        0,
        123,
        0.5,
        9,
    )
    assert job["ended_at"] == attempt["ended_at"] == AT + 5
    assert job["error"] is None
    assert not book.ledger.allocations


@pytest.mark.parametrize(
    ("outcome", "state", "code"),
    [
        ("failed", "failed", "TaskFailed"),
        ("timed_out", "failed", "TaskTimedOut"),
        ("lost", "lost", "WorkerLost"),
        ("cancelled", "cancelled", "TaskCancelled"),
    ],
)
def test_bad_end_without_retries_ends_the_job(outcome: str, state: str, code: str) -> None:
    book = Book()
    book.submit("a")
    assert book.run("a", outcome) == state
    assert book.job("a")["error"]["code"] == code


@pytest.mark.parametrize("outcome", ["failed", "timed_out", "lost"])
def test_charged_retries_are_used_up(outcome: str) -> None:
    book = Book()
    book.submit("a", retries_left=2)
    assert book.run("a", outcome, 1, retry_at=AT + 60) == "queued"
    assert book.job("a")["not_before"] == AT + 60
    assert not book.ledger.allocations
    assert book.run("a", outcome, 2) == "queued"
    assert book.job("a")["retries_left"] == 0
    assert book.run("a", outcome, 3) == ("lost" if outcome == "lost" else "failed")
    assert [attempt["number"] for attempt in book.job("a")["attempts"]] == [1, 2, 3]


def test_free_retries_cost_nothing_but_are_bounded() -> None:
    book = Book()
    book.submit("a")
    for number in range(1, ATTEMPTS_MAX):
        assert book.run("a", "failed", number, charge=False) == "queued"
    assert book.run("a", "failed", ATTEMPTS_MAX, charge=False) == "lost"
    kept = [attempt["number"] for attempt in book.job("a")["attempts"]]
    assert kept == [1, *range(ATTEMPTS_MAX - 48, ATTEMPTS_MAX + 1)]
    assert book.job("a")["retries_left"] == 0


def test_end_is_idempotent_and_guarded_by_its_token() -> None:
    book = Book()
    book.submit("a", retries_left=1)
    token = book.grant("a")
    with pytest.raises(StaleToken):
        book.do(EndAttempt("a.1", [1, 1], "succeeded", at=AT))
    with pytest.raises(StaleToken):
        book.do(StartAttempt("a.1", [1, 1], at=AT))
    book.do(EndAttempt("a.1", token, "failed", at=AT))
    assert book.do(EndAttempt("a.1", token, "succeeded", at=AT)) == {"already": True, "job_state": "queued"}
    with pytest.raises(WrongState):
        book.do(StartAttempt("a.1", token, at=AT))
    second = book.grant("a", number=2)
    assert second > token
    with pytest.raises(StaleToken):
        book.do(EndAttempt("a.2", token, "succeeded", at=AT))
    assert not book.do(StartAttempt("a.2", second, at=AT))["already"]
    assert book.do(StartAttempt("a.2", second, at=AT))["already"]
    for nonsense in ("a.9", "b.1", "a", "a.x", ""):
        with pytest.raises(WrongState):
            book.do(EndAttempt(nonsense, token, "succeeded", at=AT))


def test_cancel_ends_a_waiting_job_and_asks_a_running_one() -> None:
    book = Book()
    book.submit("waiting")
    assert book.do(CancelJob("waiting", "me", at=AT)) == {"state": "cancelled", "cancel_requested": False}
    assert "me" in book.job("waiting")["error"]["message"]
    book.submit("running", retries_left=5)
    token = book.grant("running")
    assert book.do(CancelJob("running", "me", at=AT)) == {"state": "placed", "cancel_requested": True}
    assert book.do(CancelJob("running", "me", at=AT))["cancel_requested"]
    assert book.outcome.changes == ()
    assert book.do(EndAttempt("running.1", token, "failed", at=AT))["job_state"] == "cancelled"
    with pytest.raises(UnknownJob):
        book.do(CancelJob("nobody", "me", at=AT))


def test_fail_job_is_for_waiting_jobs() -> None:
    book = Book()
    book.submit("a")
    assert book.do(FailJob("a", {"code": "TooManyGpus"}, at=AT)) == {"state": "failed"}
    assert book.do(FailJob("a", {"code": "Other"}, at=AT)) == {"state": "failed"}
    assert book.job("a")["error"] == {"code": "TooManyGpus"}
    book.submit("b")
    book.grant("b")
    with pytest.raises(WrongState):
        book.do(FailJob("b", {}, at=AT))


def test_a_job_waits_for_what_it_depends_on() -> None:
    book = Book()
    book.do(
        SubmitJobs(
            [job_record("last", depends_on=["left", "right"]), job_record("left"), job_record("right")],
            at=AT,
        )
    )
    assert book.run("left", "succeeded") == "succeeded"
    with pytest.raises(WrongState, match="right"):
        book.grant("last")
    book.run("right", "succeeded")
    book.grant("last")


def test_failure_ends_all_that_waits_for_it_in_the_same_entry() -> None:
    book = Book()
    book.do(
        SubmitJobs(
            [
                job_record("a"),
                job_record("b", depends_on=["a"]),
                job_record("c", depends_on=["a", "b"]),
                job_record("d", depends_on=["b", "c"]),
                job_record("alone"),
            ],
            at=AT,
        )
    )
    book.run("a", "failed")
    ended = [identity for kind, identity, record in book.outcome.changes if kind == "job"]
    assert sorted(ended) == ["a", "b", "c", "d"]
    for name in "bcd":
        assert book.job(name)["state"] == "failed"
        assert book.job(name)["error"]["code"] == "DependencyFailed"
    assert book.job("alone")["state"] == "queued"
    assert book.ledger.counts["failed"] == 4
    book.submit("late", depends_on=["d"])
    assert book.job("late")["error"]["code"] == "DependencyFailed"


def test_unknown_dependencies_and_circles_are_refused_whole() -> None:
    book = Book()
    with pytest.raises(UnknownJob):
        book.do(SubmitJobs([job_record("a"), job_record("b", depends_on=["nobody"])], at=AT))
    with pytest.raises(WrongState, match="circle"):
        book.do(SubmitJobs([job_record("a", depends_on=["b"]), job_record("b", depends_on=["a"])], at=AT))
    with pytest.raises(WrongState, match="circle"):
        book.submit("self", depends_on=["self"])
    assert not book.ledger.jobs


def test_a_known_job_is_a_duplicate_for_ever() -> None:
    book = Book()
    book.submit("a")
    answer = book.do(SubmitJobs([job_record("a", priority=99), job_record("b"), job_record("b")], at=AT))
    assert [part["duplicate"] for part in answer["jobs"]] == [True, False, True]
    assert book.job("a")["priority"] == 50


def test_old_ended_jobs_leave_memory_but_stay_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "ENDED_MAX", 3)
    book = Book()
    for number in range(5):
        book.submit(f"j{number}")
        book.run(f"j{number}", "failed" if number == 1 else "succeeded")
        assert len(book.outcome.retired) == (1 if number >= 3 else 0)
    assert sorted(book.ledger.jobs) == ["j2", "j3", "j4"]
    assert book.do(SubmitJobs([job_record("j0")], at=AT))["jobs"][0]["duplicate"]
    assert book.do(CancelJob("j0", "me", at=AT))["state"] == "succeeded"
    assert book.do(FailJob("j1", {}, at=AT))["state"] == "failed"
    assert book.do(EndAttempt("j0.1", [1, 1], "failed", at=AT)) == {"already": True, "job_state": "succeeded"}
    book.submit("after0", depends_on=["j0"])
    assert book.job("after0")["state"] == "queued"
    book.grant("after0")
    book.submit("after1", depends_on=["j1"])
    assert book.job("after1")["state"] == "failed"


def test_leases_are_counted_and_released() -> None:
    book = Book(gpus=1)
    resources = {"gpus": 1, "gpu_count": 1, "gpu_milli": 1000, "gpu_memory_mib": 0, "cpu_milli": 500}
    token = book.do(GrantLease("L1", "s1", "h1", 1, [0], resources, pool="gpu_compute", env={"A": "b"}, term=1, at=AT))[
        "token"
    ]
    allocation = book.ledger.allocations["L1"]
    assert allocation["token"] == token
    assert allocation["owner"] == {"kind": "session", "session_id": "s1", "lease_id": "L1"}
    assert (allocation["pool"], allocation["env"]) == ("gpu_compute", {"A": "b"})
    with pytest.raises(Overcommit):
        book.do(GrantLease("L2", "s1", "h1", 1, [0], resources, pool="gpu_compute", env={}, term=1, at=AT))
    with pytest.raises(WrongState):
        book.do(GrantLease("L1", "s1", "h1", 1, [0], resources, pool="gpu_compute", env={}, term=1, at=AT))
    assert book.do(ReleaseLease("L1", at=AT)) == {"released": True}
    assert book.do(ReleaseLease("L1", at=AT)) == {"released": False}
    book.submit("a")
    book.grant("a")
    with pytest.raises(WrongState):
        book.do(ReleaseLease("a.1", at=AT))


def test_settings_are_kept_and_taken_back() -> None:
    book = Book()
    assert book.do(SetSetting("work.kill_grace_s", 3, "me", at=AT))["previous"] is None
    assert book.do(SetSetting("work.kill_grace_s", 4, "me", at=AT))["previous"] == 3
    assert book.ledger.settings == {"work.kill_grace_s": 4}
    book.do(SetSetting("work.kill_grace_s", None, "me", at=AT))
    assert book.ledger.settings == {}


def test_terms_only_grow_and_epochs_never_shrink() -> None:
    book = Book()
    with pytest.raises(StaleToken):
        book.do(NewTerm(1, at=AT))
    assert book.do(NewTerm(5, at=AT, epoch=3)) == {"term": 5, "epoch": 3}
    with pytest.raises(StaleToken):
        book.do(NewTerm(6, at=AT, epoch=2))


def test_a_repeated_command_is_answered_and_not_applied_again() -> None:
    book = Book()
    command = SubmitJobs([job_record("a")], at=AT)
    first = book.do(command, "s", 1)
    at = book.ledger.index
    assert book.do(command, "s", 1) == first
    assert book.outcome.repeated
    assert book.outcome.index == at
    assert book.outcome.changes == ()
    with pytest.raises(WrongState):
        book.do(StartAttempt("a.1", [1, 1], at=AT), "s", 2)
    with pytest.raises(WrongState) as caught:
        book.do(SetSetting("k", 1, "me", at=AT), "s", 2)
    assert "a.1" in str(caught.value)
    with pytest.raises(WrongState, match="later command"):
        book.do(command, "s", 1)


def test_sessions_are_bounded_least_recently_used_first(monkeypatch: pytest.MonkeyPatch) -> None:
    from actorgrid.actors.ledger.tables import sessions

    monkeypatch.setattr(sessions, "SESSIONS_MAX", 2)
    book = Book()
    for number, session in enumerate(["a", "b", "a", "c"], 1):
        book.do(SetSetting("k", number, "me", at=AT), session, number)
    assert book.ledger.repeated("b", 2) is None
    assert book.ledger.repeated("a", 3) is not None
    book.do(SetSetting("k", 3, "me", at=AT), "a", 3)
    book.do(SetSetting("k", 5, "me", at=AT), "d", 5)
    assert book.ledger.repeated("c", 4) is None
    assert book.ledger.repeated("a", 3) is not None


@pytest.mark.parametrize(
    "command",
    [
        None,
        [],
        {},
        {"type": "submit_jobs"},
        {"type": "no_such", "v": 1, "at": AT},
        {"type": "submit_jobs", "v": 1, "at": "now", "jobs": []},
        {"type": "submit_jobs", "v": 1, "at": float("nan"), "jobs": []},
        {"type": "submit_jobs", "v": True, "at": AT, "jobs": []},
        {"type": "submit_jobs", "v": 1, "at": AT, "jobs": [{"job_id": "x/../y", "resources": {}}]},
        {"type": "submit_jobs", "v": 1, "at": AT, "jobs": [{"job_id": "x", "resources": {"gpu_count": -1}}]},
        {"type": "submit_jobs", "v": 1, "at": AT, "jobs": [{"job_id": "x", "resources": {"gpu_count": 1}}]},
        {"type": "submit_jobs", "v": 1, "at": AT, "jobs": [{"job_id": "x", "resources": {"gpu_milli": 1001}}]},
        {"type": "register_host", "v": 1, "at": AT, "host": {**host_record(), "devices": [{}]}},
        RegisterHost({**host_record(), "devices": host_record()["devices"][:1] * 2}, at=AT),
        GrantAttempt("a", 1, "h1", 1, [0, 0], 1, at=AT),
        EndAttempt("a.1", [1, 2], "exploded", at=AT),
    ],
)
def test_a_malformed_command_is_refused_and_named(command: Any) -> None:
    book = Book()
    with pytest.raises(BadRequest) as caught:
        book.do(command)
    assert caught.value.message


def test_events_are_numbered_over_the_whole_life() -> None:
    book = Book()
    seen = [*book.outcome.events]
    book.submit("a")
    seen += book.outcome.events
    book.grant("a")
    seen += book.outcome.events
    assert [event.number for event in seen] == list(range(1, len(seen) + 1))
    assert [(event.kind, event.id, event.state) for event in seen] == [
        ("host", "h1", "up"),
        ("job", "a", "queued"),
        ("job", "a", "placed"),
    ]


def test_snapshot_restores_to_the_same_bytes() -> None:
    book = Book()
    for number in itertools.count():
        book.submit(f"j{number}", depends_on=[f"j{number - 1}"] if number else [])
        if number == 5:
            break
    book.run("j0", "succeeded")
    book.do(SetSetting("k", [1, 2], "me", at=AT), "s", 4)
    restored = Ledger.restore(book.ledger.snapshot())
    assert restored.snapshot() == book.ledger.snapshot()
    assert restored.digest() == book.ledger.digest()
    assert restored.counts == book.ledger.counts
    assert restored.repeated("s", 4) == book.ledger.repeated("s", 4)
