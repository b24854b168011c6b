"""What the ledger allows of preemption, and what it leaves behind."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.ledger.commands import CancelJob, EndAttempt, GrantLease, NewTerm, PreemptAttempt, StartAttempt
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables.preemption import PREEMPTIONS_MAX
from actorgrid.errors import BadRequest, StaleToken, WrongState
from tests.consensus.rig import AT
from tests.ledger.test_state import Book


def ask(book: Book, attempt_id: str, token: list[int], **more: Any) -> bool:
    fields = {"grace_s": 3.0, "for_job": "b", "term": 1, "at": AT + 1, **more}
    return not book.do(PreemptAttempt(attempt_id, token, **fields))["already"]


def running(book: Book, job_id: str = "a", number: int = 1, **more: Any) -> list[int]:
    if number == 1:
        book.submit(job_id, **more)
    token = book.grant(job_id, number)
    book.do(StartAttempt(f"{job_id}.{number}", token, at=AT))
    return token


def test_an_attempt_that_is_asked_says_so_and_is_asked_once() -> None:
    book = Book()
    token = running(book)
    assert ask(book, "a.1", token)
    asked = {"asked_at": AT + 1, "grace_s": 3.0, "for_job": "b"}
    assert book.job("a")["attempts"][-1]["preemption"] == asked
    assert book.outcome.changes == (("job", "a", book.job("a")),)
    assert not ask(book, "a.1", token, for_job="c", grace_s=0.0)
    assert book.job("a")["attempts"][-1]["preemption"] == asked
    assert book.outcome.changes == ()
    assert Ledger.restore(book.ledger.snapshot()).digest() == book.ledger.digest()


def test_a_preempted_job_waits_again_at_once_and_pays_no_retry() -> None:
    book = Book()
    token = running(book, retries_left=1)
    ordinal, index = book.job("a")["ordinal"], book.job("a")["submitted_index"]
    ask(book, "a.1", token)
    command = EndAttempt("a.1", token, "preempted", at=AT + 2, retry_at=AT + 60)
    assert book.do(command) == {"already": False, "job_state": "queued"}
    job = book.job("a")
    assert (job["state"], job["preemptions"], job["retries_left"], job["not_before"]) == ("queued", 1, 1, AT + 2)
    assert (job["ordinal"], job["submitted_index"]) == (ordinal, index)
    assert job["error"] is None
    attempt = job["attempts"][-1]
    assert (attempt["state"], attempt["error"]["message"]) == ("preempted", "attempt a.1 was preempted for b")
    assert book.ledger.allocations == {}
    assert book.do(command)["already"], "told twice"
    assert book.job("a")["preemptions"] == 1
    running(book, number=2)
    assert book.job("a")["attempts"][-1]["preemption"] is None


@pytest.mark.parametrize(
    ("outcome", "state"), [("succeeded", "succeeded"), ("failed", "failed"), ("cancelled", "cancelled")]
)
def test_an_attempt_that_ends_otherwise_meanwhile_ends_so(outcome: str, state: str) -> None:
    book = Book()
    token = running(book)
    ask(book, "a.1", token)
    assert book.do(EndAttempt("a.1", token, outcome, at=AT + 2))["job_state"] == state
    assert book.job("a")["preemptions"] == 0


def test_a_job_cancelled_while_it_is_being_stopped_does_not_run_again() -> None:
    book = Book()
    token = running(book)
    ask(book, "a.1", token)
    book.do(CancelJob("a", "me", at=AT + 1))
    assert book.do(EndAttempt("a.1", token, "preempted", at=AT + 2))["job_state"] == "cancelled"


def test_who_is_not_to_be_asked_is_refused_and_nothing_changes() -> None:
    book = Book()
    token = running(book)
    running(book, "firm", preemptible=False)
    firm = book.job("firm")["attempts"][-1]["token"]
    before = book.ledger.snapshot()
    with pytest.raises(StaleToken, match="another leadership"):
        ask(book, "a.1", token, term=0)
    with pytest.raises(StaleToken, match="not that of attempt"):
        ask(book, "a.1", [1, 1])
    with pytest.raises(WrongState, match="no attempt"):
        ask(book, "a.2", token)
    with pytest.raises(WrongState, match="not preemptible"):
        ask(book, "firm.1", firm)
    for grace_s in (-1.0, 3601.0):
        with pytest.raises(BadRequest):
            ask(book, "a.1", token, grace_s=grace_s)
    book.ledger.index -= 6
    assert book.ledger.snapshot() == before
    book.ledger.index += 6
    book.do(EndAttempt("a.1", token, "succeeded", at=AT))
    with pytest.raises(WrongState, match="is over"):
        ask(book, "a.1", token)


def test_what_was_decided_before_a_change_of_leadership_is_refused() -> None:
    book = Book()
    token = running(book)
    book.do(NewTerm(2, at=AT))
    with pytest.raises(StaleToken):
        ask(book, "a.1", token)
    assert ask(book, "a.1", token, term=2)


def test_a_lease_of_a_session_is_never_preempted() -> None:
    book = Book()
    resources = {"gpu_count": 1, "gpu_milli": 1000}
    token = book.do(GrantLease("lease", "s", "h1", 1, [0], resources, pool="gpu_compute", env={}, term=1, at=AT))[
        "token"
    ]
    with pytest.raises(WrongState, match="no attempt"):
        ask(book, "lease", token)


def test_a_job_that_was_stopped_often_enough_is_let_run() -> None:
    book = Book()
    for number in range(1, PREEMPTIONS_MAX + 1):
        token = running(book, number=number)
        assert ask(book, f"a.{number}", token)
        book.do(EndAttempt(f"a.{number}", token, "preempted", at=AT + 2))
    token = running(book, number=PREEMPTIONS_MAX + 1)
    with pytest.raises(WrongState, match="not stopped for others"):
        ask(book, f"a.{PREEMPTIONS_MAX + 1}", token)
