"""A waiting job can be changed; one that has been placed keeps what it was started with."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.ledger.command import read_command, refuse_if_too_new
from actorgrid.actors.ledger.commands import CancelJob, EditJob, GrantAttempt
from actorgrid.actors.ledger.records import resources_of
from actorgrid.actors.ledger.state import Ledger
from actorgrid.errors import BadRequest, HostsTooOld, QueueFull, QuotaExceeded, UnknownJob, WrongState
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
    for later in (EditJob("a", resources=CPUS, edits=0, at=AT), EditJob("a", labels={"team": "x"}, at=AT)):
        with pytest.raises(HostsTooOld):
            refuse_if_too_new(later, {"h1": {"ledger_version": 9}})


# -- what it asks for


CPUS = {"gpus": 0.0, "cpu_milli": 2000}


def test_it_asks_for_something_else_from_then_on_and_a_grant_of_what_it_asked_before_is_refused() -> None:
    book = Book()
    book.submit("a", gpu_count=1)
    answer = book.do(EditJob("a", resources=CPUS, pool="general", edits=0, at=AT))
    assert answer["resources"] == book.ledger.jobs["a"]["resources"] == resources_of(CPUS)
    assert book.ledger.jobs["a"]["edits"] == 1 and book.ledger.jobs["a"]["pool"] == "general"
    restored = Ledger.restore(book.ledger.snapshot())
    assert restored.jobs["a"] == book.ledger.jobs["a"] and restored.digest() == book.ledger.digest()
    with pytest.raises(WrongState, match="asks for something else by now"):  # decided before
        book.do(GrantAttempt("a", 1, "h1", 1, [], 1, at=AT))
    book.do(GrantAttempt("a", 1, "h1", 1, [], 1, edits=1, at=AT))
    held = book.ledger.allocations["a.1"]
    assert (held["cpu_milli"], held["gpu_indexes"]) == (2000, [])
    with pytest.raises(WrongState, match="does not wait"):
        book.do(EditJob("a", resources=CPUS, edits=1, at=AT))


def test_what_was_decided_of_an_older_demand_is_refused() -> None:
    book = Book()
    book.submit("a")
    book.do(EditJob("a", resources=CPUS, edits=0, at=AT))
    before = book.ledger.digest()["job"]
    with pytest.raises(WrongState, match="meanwhile"):
        book.do(EditJob("a", resources={"cpu_milli": 1}, edits=0, at=AT))
    with pytest.raises(WrongState, match="number of its members"):
        book.do(EditJob("a", resources={"cpu_milli": 1, "gang": 2}, edits=1, at=AT))
    assert book.ledger.digest()["job"] == before


def test_no_more_than_its_user_may_hold() -> None:
    book = Book()
    book.limit("ann", cpu_milli=1500)
    book.submit("a")
    with pytest.raises(QuotaExceeded):
        book.do(EditJob("a", resources=CPUS, edits=0, at=AT))
    assert book.do(EditJob("a", resources={"cpu_milli": 1500}, edits=0, at=AT))["resources"]["cpu_milli"] == 1500


@pytest.mark.parametrize("wrong", [{"cpu_milli": -1}, {"gpu_count": 1, "gpu_milli": 0}, {"gang": 1}, [], None])
def test_what_nobody_can_ask_for_is_refused(wrong: Any) -> None:
    plain = {**EditJob("a", resources=CPUS, edits=0, at=AT).to_plain(), "resources": wrong}
    with pytest.raises(BadRequest):
        read_command(plain)


def test_in_an_entry_of_the_version_before_it_is_no_field() -> None:
    plain = {**EditJob("a", resources=CPUS, edits=0, labels={"team": "x"}, at=AT).to_plain(), "v": 9}
    assert read_command(plain) == EditJob("a", at=AT)


# -- labels


def test_labels_are_set_beside_others_and_taken_away() -> None:
    book = Book()
    book.submit("a")
    assert book.do(EditJob("a", labels={"team": "vision", "stage": "one"}, at=AT))["labels"] == {
        "team": "vision",
        "stage": "one",
    }
    labels = book.do(EditJob("a", labels={"stage": "two", "team": None, "nobody": None}, at=AT))["labels"]
    assert labels == book.ledger.jobs["a"]["labels"] == {"stage": "two"}
    with pytest.raises(WrongState, match="too many labels"):
        book.do(EditJob("a", labels={f"k{number}": "x" for number in range(16)}, at=AT))


def test_labels_count_among_the_bytes_that_wait() -> None:
    book = Book()
    book.submit("a")
    waiting = book.ledger.waiting_bytes
    long = {f"k{number}": "x" * 60 for number in range(10)}
    for most in ({"user": waiting, "all": 10**9}, {"user": 10**9, "all": waiting + 10}):
        with pytest.raises(QueueFull):
            book.do(EditJob("a", labels=long, waiting_bytes=most, at=AT))
    book.do(EditJob("a", labels=long, waiting_bytes={"user": 10**9, "all": 10**9}, at=AT))
    assert book.ledger.waiting_bytes == waiting + 10 * 62
    book.do(EditJob("a", labels=dict.fromkeys(long), waiting_bytes={"user": 0, "all": 0}, at=AT))
    assert book.ledger.waiting_bytes == waiting


@pytest.mark.parametrize("wrong", [{"team": 1}, {"": "x"}, {"a b": None}, {"team": "x" * 64}, None])
def test_what_is_no_label_is_refused(wrong: Any) -> None:
    plain = {**EditJob("a", labels={"team": "x"}, at=AT).to_plain(), "labels": wrong}
    with pytest.raises(BadRequest, match="labels"):
        read_command(plain)
