"""A job that has ended without success can be begun again: the same job, with one more attempt."""

from __future__ import annotations

import pytest

from actorgrid.actors.ledger.command import refuse_if_too_new
from actorgrid.actors.ledger.commands import (
    CancelJob,
    EditJob,
    EndAttempt,
    RetryJob,
    SetQuota,
    StartAttempt,
    SubmitJobs,
)
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables import jobs as jobs_module
from actorgrid.errors import HostsTooOld, QueueFull, UnknownJob, WrongState
from tests.consensus.rig import AT, job_record
from tests.ledger.test_quotas import Book


def failed(book: Book, job_id: str, number: int = 1) -> None:
    token = book.grant(job_id, number=number)
    book.do(StartAttempt(f"{job_id}.{number}", token, at=AT))
    book.do(EndAttempt(f"{job_id}.{number}", token, "failed", exit_code=3, at=AT))


def test_it_waits_again_with_the_attempts_that_it_had() -> None:
    book = Book()
    book.submit("a")
    failed(book, "a")
    assert book.ledger.jobs["a"]["state"] == "failed"
    assert book.do(RetryJob("a", "ann", at=AT)) == {"job_id": "a", "attempts": 1}
    job = book.ledger.jobs["a"]
    assert (job["state"], job["error"], job["ended_at"], len(job["attempts"])) == ("queued", None, None, 1)
    assert book.ledger.counts["queued"] == 1 and book.ledger.counts["failed"] == 0
    failed(book, "a", 2)
    assert book.do(RetryJob("a", "ann", at=AT))["attempts"] == 2
    job = book.ledger.jobs["a"]
    restored = Ledger.restore(book.ledger.snapshot())
    assert restored.digest() == book.ledger.digest() and restored.jobs["a"] == job
    # What was cancelled before it had one is as if it had just come.
    book.submit("b")
    before = book.ledger.jobs["b"]
    book.do(CancelJob("b", "ann", at=AT))
    book.do(RetryJob("b", at=AT))
    assert book.ledger.jobs["b"] == before


def test_what_cannot_be_begun_again_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book()
    book.submit("waits", "runs", "first")
    book.grant("runs")
    book.do(CancelJob("first", at=AT))
    for job_id, found in (("waits", "queued"), ("runs", "placed")):
        with pytest.raises(WrongState) as refused:
            book.do(RetryJob(job_id, at=AT))
        assert refused.value.found == found
    with pytest.raises(UnknownJob):
        book.do(RetryJob("nobody", at=AT))
    monkeypatch.setattr(jobs_module, "ENDED_MAX", 0)
    book.submit("later")
    book.do(CancelJob("later", at=AT))
    with pytest.raises(WrongState, match="too long ago"):
        book.do(RetryJob("first", at=AT))


def test_a_job_that_waited_for_a_failed_one_follows_it() -> None:
    book = Book()
    book.submit("a")
    book.do(SubmitJobs([job_record("b", depends_on=["a"])], at=AT))
    book.do(CancelJob("a", at=AT))
    assert book.ledger.jobs["b"]["state"] == "failed"
    with pytest.raises(WrongState, match="waits for a"):
        book.do(RetryJob("b", at=AT))
    book.do(RetryJob("a", at=AT))
    book.do(RetryJob("b", at=AT))
    assert book.ledger.jobs["b"]["state"] == "queued"


def test_a_limit_of_waiting_jobs_holds() -> None:
    book = Book()
    book.submit("a", "b")
    book.do(CancelJob("a", at=AT))
    book.do(SetQuota("ann", {"jobs_waiting": 1}, "me", at=AT))
    with pytest.raises(QueueFull):
        book.do(RetryJob("a", at=AT))


def test_a_deadline_can_be_changed_and_one_that_is_over_is_dropped() -> None:
    book = Book()
    book.submit("a")
    assert book.do(EditJob("a", deadline=AT + 5, at=AT))["deadline"] == AT + 5
    book.do(CancelJob("a", at=AT))
    book.do(RetryJob("a", at=AT + 10))
    assert book.ledger.jobs["a"]["deadline"] is None
    assert book.do(EditJob("a", deadline=None, at=AT))["deadline"] is None
    assert "deadline" not in book.do(EditJob("a", 60, at=AT))


def test_neither_is_proposed_before_all_hosts_know_it() -> None:
    for command in (RetryJob("a", at=AT), EditJob("a", deadline=AT, at=AT)):
        with pytest.raises(HostsTooOld):
            refuse_if_too_new(command, {"h1": {"ledger_version": 8}})
    refuse_if_too_new(EditJob("a", 90, at=AT), {"h1": {"ledger_version": 8}})
