"""Attempts granted behind others: a place is counted once, and passes on with the entry that ends who was in front."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from actorgrid.actors.ledger.commands import EndAttempt, GrantAttempt, SetQuota, StartAttempt
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables.allocations import BEHIND_MAX
from actorgrid.errors import WrongState
from tests.consensus.rig import AT
from tests.ledger.test_state import Book

CPUS = {"gpus": 0.0, "gpu_count": 0, "gpu_milli": 0, "gpu_memory_mib": 0, "cpu_milli": 5_000, "memory_mib": 0}
"""Of the host's 8 CPUs: two at once do not fit."""


def book_with(*job_ids: str, **more: Any) -> Book:
    book = Book()
    for job_id in job_ids:
        book.submit(job_id, kind="function", **{"resources": CPUS, **more})
    return book


def behind(book: Book, job_id: str, front: str, number: int = 1, **more: Any) -> list[int]:
    return book.grant(job_id, number, gpus=(), behind=front, **more)


def end(book: Book, job_id: str, token: list[int], outcome: str = "succeeded", **more: Any) -> None:
    book.do(EndAttempt(f"{job_id}.1", token, outcome, at=AT + 5, **more))


def fronts(ledger: Ledger) -> dict[str, str | None]:
    return {id: record.get("behind") for id, record in ledger.allocations.items()}


def test_who_stands_behind_holds_nothing_until_the_end_of_the_one_in_front() -> None:
    book = book_with("a", "b")
    first, second = book.grant("a", gpus=()), behind(book, "b", "a.1")
    assert first < second
    assert book.ledger.capacity.used_cpu_milli("h1") == 5_000
    assert (book.job("b")["state"], fronts(book.ledger)) == ("placed", {"a.1": None, "b.1": "a.1"})
    end(book, "a", first)
    assert fronts(book.ledger) == {"b.1": None}
    assert book.ledger.capacity.used_cpu_milli("h1") == 5_000
    assert [id for kind, id, _ in book.outcome.changes if kind == "allocation"] == ["a.1", "b.1"]
    end(book, "b", second)
    assert (fronts(book.ledger), book.ledger.capacity.used_cpu_milli("h1")) == ({}, 0)


def test_a_user_at_the_limit_may_have_calls_behind_those_that_run() -> None:
    book = book_with("a", "b", user_id="ann")
    book.do(SetQuota("ann", {"cpu_milli": 5_000}, "test", at=AT))
    first = book.grant("a", gpus=())
    second = behind(book, "b", "a.1")
    end(book, "a", first)
    end(book, "b", second)
    assert book.job("b")["state"] == "succeeded"


def test_those_behind_one_that_ends_before_its_turn_move_up() -> None:
    book = book_with("a", "b", "c")
    first = book.grant("a", gpus=())
    second, third = behind(book, "b", "a.1"), behind(book, "c", "b.1")
    end(book, "b", second, "lost", charge=False)
    assert (book.job("b")["state"], book.job("b")["not_before"]) == ("queued", AT + 5)
    assert fronts(book.ledger) == {"a.1": None, "c.1": "a.1"}
    end(book, "a", first)
    assert fronts(book.ledger) == {"c.1": None}
    end(book, "c", third)
    assert book.ledger.capacity.used_cpu_milli("h1") == 0


def test_an_end_that_is_told_before_that_of_the_one_in_front_passes_nothing_on() -> None:
    book = book_with("a", "b")
    first, second = book.grant("a", gpus=()), behind(book, "b", "a.1")
    end(book, "b", second, started_at=AT + 1)
    assert (fronts(book.ledger), book.ledger.capacity.used_cpu_milli("h1")) == ({"a.1": None}, 5_000)
    end(book, "a", first)
    assert book.ledger.capacity.used_cpu_milli("h1") == 0
    assert [book.job(id)["state"] for id in ("a", "b")] == ["succeeded", "succeeded"]


@pytest.mark.parametrize(
    "differs", [{"user_id": "bob"}, {"resources": {**CPUS, "cpu_milli": 4_000}}, {"resources": {"cpu_milli": 5_000}}]
)
def test_a_place_of_another_kind_or_user_is_refused_and_nothing_changes(differs: dict[str, Any]) -> None:
    book = book_with("a")
    book.submit("b", kind="function", **{"resources": CPUS, **differs})
    book.grant("a", gpus=())
    before = book.ledger.snapshot()
    with pytest.raises(WrongState, match="place"):
        behind(book, "b", "a.1")
    book.ledger.index -= 1
    assert book.ledger.snapshot() == before


def test_nobody_stands_behind_what_is_over_or_has_somebody_behind_it() -> None:
    book = book_with("a", "b", "c")
    first = book.grant("a", gpus=())
    behind(book, "b", "a.1")
    with pytest.raises(WrongState, match="another stands behind"):
        behind(book, "c", "a.1")
    end(book, "a", first)
    with pytest.raises(WrongState, match="nothing can stand behind"):
        behind(book, "c", "a.1")


def test_no_more_stand_behind_one_than_the_bound() -> None:
    names = [f"j{number}" for number in range(BEHIND_MAX + 2)]
    book = book_with(*names)
    book.grant(names[0], gpus=())
    for front, name in pairwise(names[:-1]):
        behind(book, name, f"{front}.1")
    with pytest.raises(WrongState, match="too many"):
        behind(book, names[-1], f"{names[-2]}.1")


def test_a_snapshot_keeps_who_stands_behind_whom() -> None:
    book = book_with("a", "b", "c")
    first = book.grant("a", gpus=())
    behind(book, "b", "a.1")
    behind(book, "c", "b.1")
    book.ledger = Ledger.restore(book.ledger.snapshot())
    assert fronts(book.ledger) == {"a.1": None, "b.1": "a.1", "c.1": "b.1"}
    assert book.ledger.capacity.used_cpu_milli("h1") == 5_000
    end(book, "a", first)
    assert fronts(book.ledger) == {"b.1": None, "c.1": "b.1"}


def test_the_end_of_a_call_tells_its_start_where_nothing_else_did() -> None:
    book = book_with("a", "b")
    first = book.grant("a", gpus=())
    end(book, "a", first, started_at=AT + 2)
    second = book.grant("b", gpus=())
    book.do(StartAttempt("b.1", second, at=AT + 1))
    end(book, "b", second, started_at=AT + 2)
    assert [book.job(id)["attempts"][-1]["started_at"] for id in ("a", "b")] == [AT + 2, AT + 1]


def test_hosts_of_the_version_before_know_no_places_behind() -> None:
    grant = GrantAttempt("b", 1, host="h1", incarnation=1, gpu_indexes=[], term=1, at=AT)
    assert grant.format_version == 1
    assert replace(grant, behind="a.1").format_version == 6
    assert EndAttempt("a.1", [1, 2], "succeeded", at=AT, started_at=AT).format_version == 6
    book = book_with("a", "b")
    book.grant("a", gpus=())
    outcome = book.ledger.apply(book.ledger.index + 1, {**grant.to_plain(), "behind": "a.1"})
    assert outcome.error is not None and outcome.error.code == "Overcommit", "as it was for them"
