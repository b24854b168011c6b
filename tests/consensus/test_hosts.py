"""Hosts in the ledger: which of them take anything new."""

from __future__ import annotations

import pytest

from actorgrid.actors.consensus.commands import drain_host, grant_attempt, register_host, submit_jobs
from actorgrid.actors.consensus.ledger import Ledger
from actorgrid.errors import NotFound, WrongState
from tests.consensus.rig import AT, host_record, job_record
from tests.consensus.test_ledger import Book


def with_a_job() -> Book:
    book = Book()
    book.do(register_host(host_record(), AT))
    book.do(submit_jobs([job_record("j1")], AT))
    return book


def grant(book: Book) -> None:
    book.do(grant_attempt("j1", 1, "h1", book.ledger.hosts["h1"]["incarnation"], [0], book.ledger.term, AT))


def test_a_draining_host_gets_nothing_new_until_it_is_said_otherwise() -> None:
    book = with_a_job()
    assert book.do(drain_host("h1", True, "ann", AT)) == {"host": "h1", "draining": True}
    with pytest.raises(WrongState, match="takes nothing new"):
        grant(book)
    book.do(drain_host("h1", True, "ann", AT))
    assert book.outcome.changes == ()
    book.do(drain_host("h1", False, "ann", AT))
    grant(book)


def test_a_host_that_starts_again_and_a_snapshot_go_on_draining() -> None:
    book = with_a_job()
    book.do(drain_host("h1", True, "ann", AT))
    book.do(register_host(host_record(incarnation=2), AT))
    book.ledger = Ledger.restore(book.ledger.snapshot())
    with pytest.raises(WrongState, match="takes nothing new"):
        grant(book)


def test_what_runs_on_a_draining_host_goes_on() -> None:
    book = with_a_job()
    grant(book)
    book.do(drain_host("h1", True, "ann", AT))
    assert list(book.ledger.allocations) == ["j1.1"]


def test_nobody_drains_a_host_that_is_not_there() -> None:
    with pytest.raises(NotFound, match="not registered"):
        with_a_job().do(drain_host("h2", True, "ann", AT))
