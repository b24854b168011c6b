"""An attempt had succeeded and its host was lost before it said so: that counts while the job is not over."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.ledger.commands import (
    ConfirmHost,
    EndAttempt,
    GrantAttempt,
    LoseHost,
    PreemptAttempt,
    RegisterHost,
    StartAttempt,
    SubmitJobs,
    TakeSuccess,
)
from actorgrid.actors.ledger.state import Ledger
from actorgrid.errors import BadRequest, StaleToken, WrongState
from actorgrid.job_outcome import decided_by, deciding_attempt
from tests.consensus.rig import AT, host_record, job_record
from tests.ledger.test_gangs import Book as GangBook
from tests.ledger.test_state import Book

FACTS = {"exit_code": 0, "result_bytes": 7, "cpu_s": 1.5}


class Lossy(Book):
    """Host h1 has attempt 1 of job ``a``, and is lost; h2 is there for the next."""

    def __init__(self, **job: Any) -> None:
        super().__init__()
        self.do(RegisterHost(host_record("h2"), at=AT))
        self.do(SubmitJobs([job_record("a", **job)], at=AT))
        self.first = self.grant("a")
        self.do(StartAttempt("a.1", self.first, at=AT))
        self.lose("h1", "a.1", self.first)
        assert self.job("a")["state"] == "queued"

    def lose(self, host: str, attempt_id: str, token: list[int]) -> None:
        seen = self.ledger.hosts[host].get("seen_index", 0)
        self.do(LoseHost(host, 1, seen, AT, [(attempt_id, token)], 1, at=AT))

    def again(self) -> list[int]:
        token: list[int] = self.do(GrantAttempt("a", 2, "h2", 1, [0], 1, at=AT))["token"]
        self.do(StartAttempt("a.2", token, at=AT))
        return token

    def late(self, token: list[int] | None = None) -> dict[str, Any]:
        return self.do(TakeSuccess("a.1", token or self.first, at=AT + 9, **FACTS))


def test_reported_as_ever_it_is_no_news_and_the_job_waits_on() -> None:
    book = Lossy()
    assert book.do(EndAttempt("a.1", book.first, "succeeded", at=AT + 5)) == {"already": True, "job_state": "queued"}


def test_a_job_that_waits_for_its_next_attempt_has_succeeded() -> None:
    book = Lossy()
    book.do(SubmitJobs([job_record("after", depends_on=["a"])], at=AT))
    assert book.late() == {"taken": 1, "job_state": "succeeded"}
    job = book.job("a")
    assert (job["state"], job["taken"], job["error"], decided_by(job)) == ("succeeded", 1, None, 1)
    attempt = deciding_attempt(job)
    assert (attempt["state"], attempt["error"], attempt["result_bytes"]) == ("succeeded", None, 7)
    assert book.grant("after", host="h2"), "what depends on it may run"
    assert Ledger.restore(book.ledger.snapshot()).digest() == book.ledger.digest()


def test_what_runs_instead_is_told_to_end_and_keeps_its_devices_until_it_has() -> None:
    book = Lossy()
    second = book.again()
    assert book.late() == {"taken": 1, "job_state": "running"}
    assert book.job("a")["attempts"][-1]["superseded"] == {"by": 1, "at": AT + 9}
    assert "a.2" in book.ledger.allocations
    assert book.do(StartAttempt("a.2", second, at=AT))["superseded"] == {"by": 1, "at": AT + 9}
    assert book.do(PreemptAttempt("a.2", second, 1.0, "b", 1, at=AT)) == {"already": True}
    assert book.do(EndAttempt("a.2", second, "cancelled", at=AT + 10, charge=False))["job_state"] == "succeeded"
    assert book.ledger.allocations == {}
    assert [each["state"] for each in book.job("a")["attempts"]] == ["succeeded", "cancelled"]


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "timed_out"])
def test_however_what_ran_instead_ends_the_first_that_was_heard_of_counts(outcome: str) -> None:
    book = Lossy()
    second = book.again()
    book.late()
    assert book.do(EndAttempt("a.2", second, outcome, at=AT + 10))["job_state"] == "succeeded"
    assert decided_by(book.job("a")) == 1


def test_what_runs_instead_may_be_lost_as_well() -> None:
    book = Lossy()
    second = book.again()
    book.late()
    book.lose("h2", "a.2", second)
    assert (book.job("a")["state"], decided_by(book.job("a"))) == ("succeeded", 1)


def test_a_job_that_another_attempt_has_ended_stays_as_it_is_and_the_answer_says_which() -> None:
    book = Lossy()
    book.do(EndAttempt("a.2", book.again(), "succeeded", at=AT + 8, result_bytes=3))
    assert book.late() == {"taken": 2, "job_state": "succeeded"}
    job = book.job("a")
    assert (deciding_attempt(job)["result_bytes"], job["attempts"][0]["state"]) == (3, "lost")
    assert job["attempts"][0]["late_success_at"] == AT + 9
    assert Ledger.restore(book.ledger.snapshot()).digest() == book.ledger.digest()


def test_told_twice_it_changes_nothing_more() -> None:
    book = Lossy()
    book.again()
    book.late()
    before = book.job("a")
    assert book.late() == {"taken": 1, "job_state": "running"}
    assert book.job("a") == before


def test_under_another_token_it_is_refused() -> None:
    book = Lossy()
    with pytest.raises(StaleToken):
        book.late([1, book.first[1] + 1])


def test_an_attempt_that_is_not_over_is_not_ended_so() -> None:
    book = Lossy()
    second = book.again()
    with pytest.raises(WrongState, match="is not over"):
        book.do(TakeSuccess("a.2", second, at=AT, **FACTS))


def test_an_attempt_that_ended_in_another_way_has_not_succeeded_late() -> None:
    book = Book()
    book.submit("a", retries_left=3)
    token = book.grant("a")
    book.do(StartAttempt("a.1", token, at=AT))
    book.do(EndAttempt("a.1", token, "failed", at=AT))
    assert book.do(TakeSuccess("a.1", token, at=AT, **FACTS)) == {"taken": None, "job_state": "queued"}
    assert book.job("a")["attempts"][0]["state"] == "failed"


def test_of_a_job_known_by_name_alone_nothing_is_said() -> None:
    book = Book()
    book.ledger._jobs.remembered["a"] = "succeeded"
    assert book.do(TakeSuccess("a.1", [1, 2], at=AT)) == {"taken": None, "job_state": "succeeded"}


@pytest.mark.parametrize("facts", [{"exit_code": "0"}, {"result_bytes": -1}, {"cpu_s": []}])
def test_malformed_facts_are_refused(facts: dict[str, Any]) -> None:
    book = Lossy()
    with pytest.raises(BadRequest):
        book.do(TakeSuccess("a.1", book.first, at=AT, **facts))


# -- gangs


def gang() -> tuple[GangBook, list[int]]:
    """Ranks 1 and 2 of three have succeeded, and rank 0 is lost with its host."""
    book = GangBook()
    token = book.granted("a")
    for rank in range(3):
        book.do(StartAttempt(f"a.1-{rank}", token, at=AT))
    book.end("a.1-1", token, "succeeded")
    book.end("a.1-2", token, "succeeded")
    seen = book.ledger.hosts["h1"].get("seen_index", 0)
    book.do(LoseHost("h1", 1, seen, AT, [("a.1-0", token)], 1, at=AT))
    assert book.job("a")["state"] == "queued"
    return book, token


def test_a_gang_has_succeeded_once_the_last_of_its_members_is_known_to_have() -> None:
    book, token = gang()
    assert book.do(TakeSuccess("a.1-0", token, at=AT + 9, **FACTS)) == {"taken": 1, "job_state": "succeeded"}
    attempt = deciding_attempt(book.job("a"))
    assert (attempt["state"], attempt["result_bytes"]) == ("succeeded", 7)
    assert [member["state"] for member in attempt["members"]] == ["succeeded"] * 3


def test_a_gang_of_which_another_member_did_not_succeed_waits_on() -> None:
    book = GangBook()
    token = book.granted("a")
    for rank in range(3):
        book.do(StartAttempt(f"a.1-{rank}", token, at=AT))
    seen = book.ledger.hosts["h1"].get("seen_index", 0)
    book.do(LoseHost("h1", 1, seen, AT, [("a.1-0", token)], 1, at=AT))
    for rank in (1, 2):
        book.end(f"a.1-{rank}", token, "cancelled", charge=False)
    assert book.job("a")["state"] == "queued"
    assert book.do(TakeSuccess("a.1-0", token, at=AT + 9, **FACTS)) == {"taken": None, "job_state": "queued"}
    assert book.last("a")["members"][0]["state"] == "succeeded"


def test_the_host_that_is_back_confirms_itself_as_ever() -> None:
    book = Lossy()
    book.late()
    lost_at = book.ledger.hosts["h1"]["lost_at"]
    book.do(ConfirmHost("h1", 1, lost_at, at=AT))
    assert book.ledger.hosts["h1"]["state"] == "up"
