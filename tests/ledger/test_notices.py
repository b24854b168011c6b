"""Notices in the ledger: made by the entry that moves the job, gone when they were sent, bounded."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.ledger.command import read_command, refuse_if_too_new
from actorgrid.actors.ledger.commands import (
    NOTICES_SINCE,
    CancelJob,
    ChangeMember,
    ClearNotices,
    EndAttempt,
    FoundCluster,
    RetryJob,
    SettleNotices,
    StartAttempt,
    SubmitGraph,
    SubmitJobs,
)
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables import notices
from actorgrid.errors import BadRequest, HostsTooOld
from tests.consensus.rig import AT, job_record
from tests.hostile.examples import graph
from tests.ledger.test_state import Book


def events(book: Book) -> list[tuple[str, str]]:
    return [(record["event"], record["target"]) for record in book.ledger.notices.values()]


def settled(book: Book, failure: str = "", tries: int = 1) -> dict[str, Any]:
    told = [{"notice_id": id, "failure": failure, "tries": tries} for id in book.ledger.notices]
    return book.do(SettleNotices(told, at=AT + 9))


def test_the_entry_that_ends_a_job_makes_a_notice_for_each_target() -> None:
    book = Book()
    book.submit("a", notify=["ops", "mail:ann@example.org"], name="train", user_id="ann")
    book.run("a", "failed", error={"code": "TaskFailed", "message": "no\x00good" * 200}, exit_code=3)
    assert events(book) == [("failed", "ops"), ("failed", "mail:ann@example.org")]
    first, second = book.ledger.notices.values()
    assert first["notice_id"] == f"a.{book.ledger.index}.0" != second["notice_id"]
    assert (first["attempt"], first["host"], first["exit_code"], first["at"]) == (1, "h1", 3, AT + 5)
    assert len(first["reason"]) == notices.REASON_CHARS_MAX
    assert [event.state for event in book.outcome.events if event.kind == "notice"] == ["waiting", "waiting"]


def test_only_what_was_asked_for_is_told() -> None:
    book = Book()
    book.submit("a", notify=["ops"], notify_on=["started", "requeued"], retries_left=1)
    book.submit("b")
    book.run("a", "failed", error={"code": "TaskFailed", "message": "first"})
    book.run("b", "failed")
    assert events(book) == [("started", "ops"), ("requeued", "ops")]
    assert [each["reason"] for each in book.ledger.notices.values()] == ["", "first"]
    book.run("a", "succeeded", number=2)
    assert [event for event, _ in events(book)] == ["started", "requeued", "started"]


def test_an_end_that_comes_twice_is_told_under_two_ids() -> None:
    book = Book()
    book.submit("a", notify=["ops"])
    book.do(CancelJob("a", "me", at=AT))
    book.do(RetryJob("a", "me", at=AT))
    book.do(CancelJob("a", "me", at=AT))
    assert events(book) == [("cancelled", "ops")] * 2


def test_a_graph_tells_of_itself_and_its_steps_do_not() -> None:
    book = Book()
    book.do(SubmitGraph({**graph("g"), "notify": ["ops"]}, at=AT))
    book.do(CancelJob("g", "me", at=AT))
    from actorgrid.actors.ledger.commands import EndGraph

    book.do(EndGraph("g", 1, "cancelled", None, at=AT))
    assert events(book) == [("cancelled", "ops")]
    assert SubmitGraph({**graph("g"), "notify": ["ops"]}).format_version == NOTICES_SINCE
    assert SubmitGraph(graph("g")).format_version < NOTICES_SINCE


def test_what_was_sent_is_gone_and_what_was_given_up_is_kept_until_it_is_cleared() -> None:
    book = Book()
    book.submit("a", notify=["ops", "other"])
    book.do(CancelJob("a", "me", at=AT))
    first, second = book.ledger.notices
    told = [{"notice_id": first, "failure": "", "tries": 1}, {"notice_id": second, "failure": "no answer", "tries": 7}]
    assert book.do(SettleNotices(told, at=AT + 9)) == {"sent": 1, "failed": 1}
    (kept,) = book.ledger.notices.values()
    assert (kept["failed_at"], kept["failure"], kept["tries"]) == (AT + 9, "no answer", 7)
    assert book.do(SettleNotices(told, at=AT + 9)) == {"sent": 0, "failed": 0}, "it is settled once"
    assert book.do(ClearNotices("b", "me", at=AT)) == {"cleared": 0}
    assert book.do(ClearNotices("a", "me", at=AT)) == {"cleared": 1}
    assert not book.ledger.notices


def test_what_waits_is_not_cleared() -> None:
    book = Book()
    book.submit("a", notify=["ops"])
    book.do(CancelJob("a", "me", at=AT))
    assert book.do(ClearNotices("", "me", at=AT)) == {"cleared": 0}
    assert len(book.ledger.notices) == 1


def test_bounds_hold_for_those_that_wait_and_for_those_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "WAITING_MAX", 3)
    monkeypatch.setattr(notices, "FAILED_MAX", 2)
    book = Book()
    for number in range(6):
        book.submit(f"j{number}", notify=["ops"])
        book.do(CancelJob(f"j{number}", "me", at=AT + number))
    waiting = [each["job_id"] for each in book.ledger.notices.values() if each["failed_at"] is None]
    failed = [each["job_id"] for each in book.ledger.notices.values() if each["failed_at"] is not None]
    assert (waiting, failed) == (["j0", "j1", "j2"], ["j4", "j5"])
    assert settled(book, "no answer")["failed"] == 3
    assert [each["job_id"] for each in book.ledger.notices.values()] == ["j1", "j2"]


def test_a_snapshot_keeps_them_and_a_restored_ledger_goes_on_alike() -> None:
    book = Book()
    book.submit("a", notify=["ops", "other"])
    book.do(CancelJob("a", "me", at=AT))
    told = [{"notice_id": next(iter(book.ledger.notices)), "failure": "no", "tries": 1}]
    book.do(SettleNotices(told, at=AT))
    again = Ledger.restore(book.ledger.snapshot())
    assert again.notices == book.ledger.notices
    assert again.digest() == book.ledger.digest() and again.snapshot() == book.ledger.snapshot()
    clear = ClearNotices("", "me", at=AT)
    again.apply(again.index + 1, clear)
    book.do(clear)
    assert again.digest() == book.ledger.digest()
    assert "notice" in book.ledger.digest() and "notice" not in Book().ledger.digest()


def test_hosts_of_the_version_before_are_not_proposed_it() -> None:
    book = Book()
    book.do(FoundCluster("c1", "h1", {"raft": "1.2.3.4:1"}, "f1"))
    book.do(ChangeMember("h1", ledger_version=NOTICES_SINCE - 1))
    for command in (
        SubmitJobs([job_record("a", notify=["ops"])]),
        SubmitGraph({**graph("g"), "notify": ["ops"]}),
        SettleNotices([]),
    ):
        with pytest.raises(HostsTooOld):
            refuse_if_too_new(command, book.ledger.members)


@pytest.mark.parametrize("notify", [7, [7], [], ["x"] * 5, ["x" * 2_001], "ops"])
def test_what_a_host_of_before_took_in_unread_makes_no_notice(notify: Any) -> None:
    book = Book()
    old = {**SubmitJobs([job_record("a")], at=AT).to_plain(), "jobs": [job_record("a", notify=notify)], "v": 1}
    outcome = book.ledger.apply(book.ledger.index + 1, old)
    assert outcome.error is None
    book.do(CancelJob("a", "me", at=AT))
    assert not book.ledger.notices
    with pytest.raises(BadRequest):
        read_command({**old, "v": NOTICES_SINCE}, {})


def test_an_attempt_that_ends_before_it_was_told_as_started_tells_its_end_alone() -> None:
    book = Book()
    book.submit("a", notify=["ops"], notify_on=["started", "succeeded"])
    token = book.grant("a")
    book.do(EndAttempt("a.1", token, "succeeded", started_at=AT, at=AT + 1))
    assert events(book) == [("succeeded", "ops")]
    book.submit("b", notify=["ops"], notify_on=["started"])
    token = book.grant("b")
    book.do(StartAttempt("b.1", token, at=AT))
    assert events(book)[1:] == [("started", "ops")]
