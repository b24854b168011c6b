"""Hosts in the ledger: which of them take anything new, and what becomes of one that is lost."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.ledger.commands import (
    AllowAbsence,
    ConfirmHost,
    DrainHost,
    EndAttempt,
    GrantAttempt,
    GrantLease,
    LoseHost,
    RegisterHost,
    StartAttempt,
    SubmitJobs,
)
from actorgrid.actors.ledger.state import Ledger
from actorgrid.errors import NotFound, StaleIncarnation, StaleToken, WrongState
from tests.consensus.rig import AT, host_record, job_record
from tests.ledger.test_state import Book


def with_a_job() -> Book:
    book = Book()
    book.do(RegisterHost(host_record(), at=AT))
    book.do(SubmitJobs([job_record("j1")], at=AT))
    return book


def grant(book: Book) -> None:
    book.do(GrantAttempt("j1", 1, "h1", book.ledger.hosts["h1"]["incarnation"], [0], book.ledger.term, at=AT))


def test_a_draining_host_gets_nothing_new_until_it_is_said_otherwise() -> None:
    book = with_a_job()
    assert book.do(DrainHost("h1", True, "ann", at=AT)) == {"host": "h1", "draining": True}
    with pytest.raises(WrongState, match="takes nothing new"):
        grant(book)
    book.do(DrainHost("h1", True, "ann", at=AT))
    assert book.outcome.changes == ()
    book.do(DrainHost("h1", False, "ann", at=AT))
    grant(book)


def test_a_host_that_starts_again_and_a_snapshot_go_on_draining() -> None:
    book = with_a_job()
    book.do(DrainHost("h1", True, "ann", at=AT))
    book.do(RegisterHost(host_record(incarnation=2), at=AT))
    book.ledger = Ledger.restore(book.ledger.snapshot())
    with pytest.raises(WrongState, match="takes nothing new"):
        grant(book)


def test_what_runs_on_a_draining_host_goes_on() -> None:
    book = with_a_job()
    grant(book)
    book.do(DrainHost("h1", True, "ann", at=AT))
    assert list(book.ledger.allocations) == ["j1.1"]


def test_a_second_agent_of_one_incarnation_is_refused() -> None:
    book = Book()
    book.do(RegisterHost({**host_record(incarnation=2), "boot_id": "b1"}, at=AT))
    book.do(RegisterHost({**host_record(incarnation=2), "boot_id": "b1"}, at=AT))
    with pytest.raises(StaleIncarnation, match="another agent has started") as refused:
        book.do(RegisterHost({**host_record(incarnation=2), "boot_id": "b2"}, at=AT))
    assert "copy of its data directory" in refused.value.hint
    book.do(RegisterHost({**host_record(incarnation=3), "boot_id": "b2"}, at=AT))


def test_nobody_drains_a_host_that_is_not_there() -> None:
    with pytest.raises(NotFound, match="not registered"):
        with_a_job().do(DrainHost("h2", True, "ann", at=AT))


# -- hosts that are lost


def with_work() -> Book:
    """A job that runs and a session with a worker."""
    book = with_a_job()
    grant(book)
    book.do(StartAttempt("j1.1", token(book, "j1.1"), at=AT))
    resources = {"gpus": 0.5, "gpu_count": 1, "gpu_milli": 500, "cpu_milli": 100}
    book.do(GrantLease("l1", "s1", "h1", 1, [1], resources, pool="gpu_compute", env={}, term=book.ledger.term, at=AT))
    return book


def token(book: Book, name: str) -> list[int]:
    found: list[int] = book.ledger.allocations[name]["token"]
    return found


def lose(book: Book, *names: str, **other: Any) -> dict[str, Any]:
    """Have the host lost with these allocations, decided from what the ledger says now, but for *other*."""
    record = book.ledger.hosts["h1"]
    said = {"incarnation": record["incarnation"], "seen_index": record["seen_index"], "term": book.ledger.term, **other}
    held = [(name, token(book, name)) for name in names]
    found: dict[str, Any] = book.do(LoseHost("h1", heard_at=AT - 20, allocations=held, at=AT, **said))
    return found


def test_a_lost_host_gives_its_work_back_and_costs_no_retry() -> None:
    book = with_work()
    assert lose(book, "j1.1", "l1")["ended"] == ["j1.1", "l1"]
    job = book.ledger.jobs["j1"]
    assert (job["state"], job["retries_left"], book.ledger.allocations) == ("queued", 0, {})
    attempt = job["attempts"][0]
    assert (attempt["state"], attempt["error"]["code"]) == ("lost", "HostLost")
    assert "h1 was last heard of at 2023-11-14T22:13:00+00:00" in attempt["error"]["found"]
    assert book.ledger.hosts["h1"]["state"] == "lost"


def test_nothing_is_granted_on_a_lost_host_until_it_has_confirmed_itself() -> None:
    book = with_work()
    lost_at = lose(book, "j1.1")["lost_at"]
    again = GrantAttempt("j1", 2, "h1", 1, [0], book.ledger.term, at=AT)
    with pytest.raises(WrongState, match="h1 is lost"):
        book.do(again)
    book.do(RegisterHost(host_record(), at=AT))
    book.ledger = Ledger.restore(book.ledger.snapshot())
    with pytest.raises(WrongState, match="h1 is lost"):
        book.do(again)
    with pytest.raises(WrongState, match="was lost since it looked"):
        book.do(ConfirmHost("h1", 1, None, at=AT))
    assert book.do(ConfirmHost("h1", 1, lost_at, at=AT)) == {"host": "h1", "returned": True}
    book.do(again)
    assert "lost_at" not in book.ledger.hosts["h1"]


def test_work_of_more_patience_stays_when_its_host_is_lost() -> None:
    book = with_work()
    first = lose(book, "j1.1")
    assert list(book.ledger.allocations) == ["l1"]
    assert lose(book, "l1") == {"ended": ["l1"], "lost_at": first["lost_at"]}


def test_a_host_that_said_it_is_there_is_not_lost_by_what_was_seen_before() -> None:
    book = with_work()
    before = book.ledger.hosts["h1"]["seen_index"]
    book.do(ConfirmHost("h1", 1, None, at=AT))
    with pytest.raises(WrongState, match="was heard of since"):
        lose(book, "j1.1", seen_index=before)
    book.do(RegisterHost(host_record(incarnation=2), at=AT))
    with pytest.raises(StaleIncarnation):
        lose(book, "j1.1", incarnation=1)
    with pytest.raises(StaleIncarnation):
        book.do(ConfirmHost("h1", 1, None, at=AT))
    with pytest.raises(StaleToken, match="another leadership"):
        lose(book, "j1.1", term=book.ledger.term + 1)
    assert book.ledger.hosts["h1"]["state"] == "up"


def test_what_ended_by_itself_meanwhile_stays_as_it_ended() -> None:
    book = with_work()
    of_j1 = token(book, "j1.1")
    book.do(EndAttempt("j1.1", of_j1, "succeeded", at=AT))
    record = book.ledger.hosts["h1"]
    gone = LoseHost("h1", 1, record["seen_index"], AT, [("j1.1", of_j1)], book.ledger.term, at=AT)
    assert book.do(gone)["ended"] == []
    assert book.ledger.jobs["j1"]["state"] == "succeeded"


def test_the_word_of_a_lost_attempt_is_not_taken() -> None:
    book = with_work()
    of_j1 = token(book, "j1.1")
    lost_at = lose(book, "j1.1")["lost_at"]
    book.do(ConfirmHost("h1", 1, lost_at, at=AT))
    book.do(GrantAttempt("j1", 2, "h1", 1, [0], book.ledger.term, at=AT))
    assert book.do(EndAttempt("j1.1", of_j1, "succeeded", at=AT)) == {"already": True, "job_state": "placed"}
    with pytest.raises(WrongState, match="over"):
        book.do(StartAttempt("j1.1", of_j1, at=AT))
    with pytest.raises(StaleToken):
        book.do(EndAttempt("j1.2", of_j1, "succeeded", at=AT))
    assert book.ledger.jobs["j1"]["state"] == "placed"


def test_a_host_that_said_it_would_be_away_cannot_be_lost_by_who_did_not_know() -> None:
    book = with_a_job()
    grant(book)
    before = book.ledger.hosts["h1"]["seen_index"]
    (held,) = book.ledger.allocations.values()
    allocations = [[held["allocation_id"], held["token"]]]
    began = book.do(AllowAbsence("h1", 1, 60.0, at=AT))["began"]
    assert (book.ledger.hosts["h1"]["absence_s"], book.ledger.hosts["h1"]["absence_index"]) == (60.0, began)
    with pytest.raises(WrongState, match="heard of since"):
        book.do(LoseHost("h1", 1, before, AT, allocations, book.ledger.term, at=AT))
    assert book.ledger.jobs["j1"]["state"] == "placed"
    book.do(LoseHost("h1", 1, began, AT, allocations, book.ledger.term, at=AT))  # it did not come back in that time
    with pytest.raises(WrongState, match="it is lost"):
        book.do(AllowAbsence("h1", 1, 60.0, at=AT))


def test_an_absence_goes_on_when_the_host_is_back_and_ends_only_by_its_own_word() -> None:
    book = with_a_job()
    began = book.do(AllowAbsence("h1", 1, 60.0, at=AT))["began"]
    book.do(RegisterHost(host_record(incarnation=2), at=AT))
    assert book.ledger.hosts["h1"]["absence_s"] == 60.0
    with pytest.raises(StaleIncarnation):
        book.do(AllowAbsence("h1", 1, 0.0, at=AT, began=began))
    again = book.do(AllowAbsence("h1", 2, 60.0, at=AT))["began"]
    with pytest.raises(WrongState, match="not allowed"):
        book.do(AllowAbsence("h1", 2, 0.0, at=AT, began=began))  # a late word about the one before
    book.do(AllowAbsence("h1", 2, 0.0, at=AT, began=again))
    assert not {"absence_s", "absence_index"} & book.ledger.hosts["h1"].keys()
