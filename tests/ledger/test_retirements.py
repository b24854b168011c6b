"""Openings of the shared state that are gone: said by the host itself, in order, and kept for good."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.ledger.command import read_command, refuse_if_too_new
from actorgrid.actors.ledger.commands import (
    FINALS_MAX,
    AddMember,
    ChangeMember,
    FoundCluster,
    RegisterHost,
    RemoveMember,
    RetireOrigins,
)
from actorgrid.actors.ledger.retirement_records import INCARNATION_GONE
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables import retirements
from actorgrid.errors import BadRequest, HostsTooOld, NotFound, StaleIncarnation, WrongState
from tests.consensus.rig import AT, host_record
from tests.ledger.test_state import Book

RAFT = {"raft": "10.0.0.1:7402", "calls": "10.0.0.1:7401"}
FINALS = [[1, 7, 5], [1, 9, 2], [2, 3, 1]]


@pytest.fixture
def book() -> Book:
    book = Book()
    book.do(FoundCluster("c1", "h1", RAFT, "f1", at=AT))
    book.do(AddMember("h2", RAFT, "f2", at=AT))
    for host_id in ("h1", "h2"):
        book.do(ChangeMember(host_id, at=AT, ledger_version=5))
    book.do(RegisterHost(host_record("h1", 4), at=AT))
    book.do(RegisterHost(host_record("h2"), at=AT))
    return book


def retire(floor: int = 3, level: int = 1, host: str = "h1", by: str = "h1", finals: Any = FINALS) -> RetireOrigins:
    return RetireOrigins(host, floor, finals, level, level - 1, by, at=AT)


def test_each_retirement_has_the_next_level_and_the_last_finals_of_its_host(book: Book) -> None:
    assert "retirement" not in book.ledger.digest(), "voters that do not know the kind leave it out, too"
    assert book.do(retire()) == {"host": "h1", "floor": 3, "level": 1}
    book.do(retire(4, 2, finals=[[3, 1, 1]]))
    assert book.ledger.retirements == {
        "h1": {"host_id": "h1", "floor": 4, "level": 2, "base": 1, "finals": [[3, 1, 1]]}
    }
    restored = Ledger.restore(book.ledger.snapshot())
    assert restored.retirements == book.ledger.retirements == book.ledger.live().retirements
    assert restored.digest() == book.ledger.digest() and "retirement" in restored.digest()


def test_what_was_decided_before_another_retirement_is_refused(book: Book) -> None:
    book.do(retire())
    with pytest.raises(WrongState, match="meanwhile"):
        book.do(retire(4))
    with pytest.raises(WrongState, match="meanwhile"):
        book.do(retire(4, 3))
    with pytest.raises(WrongState, match="retired already"):
        book.do(retire(2, 2, finals=[[1, 7, 5]]))
    # The same floor with other finals: what was told before was lost with all disks that had it.
    assert book.do(retire(3, 2, finals=[[1, 7, 4]]))["level"] == 2


def test_a_floor_is_never_above_the_opening_that_is_alive(book: Book) -> None:
    with pytest.raises(StaleIncarnation, match="incarnation 4"):
        book.do(retire(5))
    assert book.do(retire(4))["floor"] == 4


def test_a_member_speaks_for_itself_and_any_for_one_that_was_removed(book: Book) -> None:
    with pytest.raises(NotFound, match="speaks for itself"):
        book.do(retire(by="h2"))
    with pytest.raises(NotFound, match="no member"):
        book.do(retire(by="h9"))
    assert retire(by="h2").about_host() == "h2", "links hold a host to its own name"
    book.do(RemoveMember("h2", "ann", at=AT))
    assert book.do(retire(INCARNATION_GONE, host="h2"))["floor"] == INCARNATION_GONE


@pytest.mark.parametrize(
    "wrong",
    [
        {"base": 1},
        {"finals": [[1, 7, 5], [1, 7, 6]]},
        {"finals": [[2, 3, 1], [1, 7, 5]]},
        {"finals": [[1, 0, 5]]},
        {"finals": [[1, 7, 0]]},
        {"finals": [[0, 7, 5]]},
        {"finals": [[1, 2**31, 5]]},
        {"finals": [[1, 7]]},
        {"finals": [[1, number + 1, 1] for number in range(FINALS_MAX + 1)]},
        {"finals": [[3, 7, 5]]},
        {"floor": 1},
        {"floor": 2**32},
        {"host": ""},
        {"level": -1},
    ],
)
def test_what_is_malformed_is_refused(book: Book, wrong: dict[str, Any]) -> None:
    outcome = book.ledger.apply(book.ledger.index + 1, {**retire().to_plain(), **wrong})
    assert isinstance(outcome.error, BadRequest)


def test_older_members_are_not_sent_it(book: Book) -> None:
    book.do(ChangeMember("h2", at=AT, ledger_version=4))
    with pytest.raises(HostsTooOld, match="h2"):
        refuse_if_too_new(retire(), book.ledger.members)
    with pytest.raises(BadRequest):
        read_command(retire().to_plain(), book.ledger.members)


def test_the_table_is_bounded(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retirements, "RETIREMENTS_MAX", 1)
    book.do(retire())
    with pytest.raises(WrongState, match="maximum"):
        book.do(retire(host="gone", level=2))
    assert book.do(retire(4, 2, finals=[[3, 1, 1]]))["level"] == 2
