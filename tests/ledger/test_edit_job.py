"""A waiting job can be changed; one that has been placed keeps what it was started with."""

from __future__ import annotations

import pytest

from actorgrid.actors.ledger.command import read_command, refuse_if_too_new
from actorgrid.actors.ledger.commands import CancelJob, EditJob
from actorgrid.actors.ledger.state import Ledger
from actorgrid.errors import BadRequest, HostsTooOld, UnknownJob, WrongState
from tests.consensus.rig import AT
from tests.ledger.test_quotas import Book


def test_a_waiting_job_takes_what_is_named_and_keeps_the_rest() -> None:
    book = Book()
    book.submit("a")
    assert book.do(EditJob("a", 90, by="ann", at=AT)) == {"job_id": "a", "priority": 90, "max_execution_time_s": None}
    assert book.do(EditJob("a", max_execution_time_s=60.0, at=AT))["priority"] == 90
    assert book.do(EditJob("a", max_execution_time_s=None, at=AT))["max_execution_time_s"] is None
    restored = Ledger.restore(book.ledger.snapshot())
    assert restored.jobs["a"]["priority"] == 90 and restored.digest() == book.ledger.digest()


def test_what_waits_no_more_is_not_changed() -> None:
    book = Book()
    book.submit("a", "b")
    book.grant("a")
    book.do(CancelJob("b", "ann", at=AT))
    before = book.ledger.digest()["job"]
    for job_id, found in (("a", "placed"), ("b", "cancelled")):
        with pytest.raises(WrongState) as refused:
            book.do(EditJob(job_id, 90, at=AT))
        assert refused.value.found == found
    with pytest.raises(UnknownJob):
        book.do(EditJob("nobody", 90, at=AT))
    assert book.ledger.digest()["job"] == before


@pytest.mark.parametrize(
    "wrong", [{"priority": 101}, {"priority": None}, {"priority": 1.5}, {"max_execution_time_s": "1"}]
)
def test_what_no_job_can_have_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadRequest, match=next(iter(wrong))):
        read_command({**EditJob("a", at=AT).to_plain(), **wrong})


def test_it_is_not_proposed_before_all_hosts_know_it() -> None:
    with pytest.raises(HostsTooOld):
        refuse_if_too_new(EditJob("a", 90, at=AT), {"h1": {"ledger_version": 2}})
