"""What was done about hosts in trouble: begun once, whoever leads, and never under maintenance."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.ledger.commands import (
    AddMember,
    BeginRecovery,
    ChangeMember,
    DrainHost,
    EndRecovery,
    FoundCluster,
    NewTerm,
    RegisterHost,
    RemoveMember,
    SetMaintenance,
)
from actorgrid.actors.ledger.recovery_records import maintained
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables.recoveries import ACTIONS_KEPT
from actorgrid.errors import BadRequest, NotFound, StaleToken, WrongState
from tests.consensus.rig import AT, host_record
from tests.ledger.test_state import Book

RAFT = {"raft": "10.0.0.1:7402", "calls": "10.0.0.1:7401"}


@pytest.fixture
def book() -> Book:
    book = Book()
    book.do(RegisterHost(host_record("h2"), at=AT))
    return book


def begin(number: int = 1, action: str = "process_restart", host: str = "h1", term: int = 1, at: float = AT) -> Any:
    told = "supervisor", "gateway is silent", {"silent_s": 6.5}
    return BeginRecovery(host, number, action, *told, number, term, at=at)


def end(number: int = 1, outcome: str = "done", term: int = 1) -> Any:
    return EndRecovery("h1", number, outcome, "so it was", term, at=AT + 1)


def test_an_action_is_kept_with_its_reason_evidence_and_end(book: Book) -> None:
    assert book.do(begin())["number"] == 1
    record = book.ledger.recoveries["h1"]
    assert (record["open"], record["level"], record["actions"][0]["outcome"]) == (1, 1, "")
    book.do(end())
    (action,) = book.ledger.recoveries["h1"]["actions"]
    assert action["reason"] == "gateway is silent" and action["evidence"] == {"silent_s": 6.5}
    assert (action["outcome"], action["found"], action["ended_at"]) == ("done", "so it was", AT + 1)
    assert book.ledger.recoveries["h1"]["open"] == 0


def test_of_two_leaders_who_decide_the_same_only_one_begins_it(book: Book) -> None:
    book.do(begin())
    with pytest.raises(WrongState, match="meanwhile"):
        book.do(begin())
    book.do(NewTerm(2, at=AT))
    with pytest.raises(StaleToken):
        book.do(end(term=1))
    with pytest.raises(WrongState, match="meanwhile"):
        book.do(begin(2, term=2))
    book.do(end(outcome="unknown", term=2))
    book.do(begin(2, term=2))
    with pytest.raises(WrongState, match="no such action"):
        book.do(end(1, term=2))


def test_under_maintenance_nothing_is_begun_until_it_is_over(book: Book) -> None:
    book.do(SetMaintenance("h1", AT + 60, "new fans", "ann", at=AT))
    assert maintained(book.ledger.recoveries["h1"], AT + 59) is not None
    with pytest.raises(WrongState, match="under maintenance"):
        book.do(begin(at=AT + 59))
    book.do(begin(host="h2"))
    book.do(begin(at=AT + 60))
    with pytest.raises(WrongState, match="within 30 days"):
        book.do(SetMaintenance("h1", AT + 31 * 86_400, at=AT))
    with pytest.raises(NotFound):
        book.do(SetMaintenance("h9", AT + 60, at=AT))


def test_a_window_that_is_ended_is_over_and_keeps_its_beginning_when_prolonged(book: Book) -> None:
    book.do(SetMaintenance("h1", AT + 60, "new fans", "ann", at=AT))
    assert book.do(SetMaintenance("h1", AT + 600, "more fans", "ann", at=AT + 5))["was"] is True
    window = maintained(book.ledger.recoveries["h1"], AT + 300)
    assert window is not None and (window["begun_at"], window["reason"]) == (AT, "more fans")
    book.do(SetMaintenance("h1", None, at=AT + 10))
    assert maintained(book.ledger.recoveries["h1"], AT + 10) is None
    assert book.do(SetMaintenance("h1", None, at=AT + 11)) == {"host": "h1", "until": None, "was": False}


def test_levels_only_rise_until_the_release_which_ends_a_drain_of_ours_alone(book: Book) -> None:
    for number, action in enumerate(("work_redistribution", "process_restart"), 1):
        book.do(begin(number, action))
        book.do(end(number))
        assert book.ledger.recoveries["h1"]["level"] == 2
    assert book.do(begin(3, "release"))["undrain"] is True
    assert (book.ledger.recoveries["h1"]["level"], book.ledger.recoveries["h1"]["drained"]) == (0, False)
    book.do(end(3))
    book.do(DrainHost("h1", True, "ann", at=AT))
    book.do(begin(4, "work_redistribution"))
    book.do(end(4))
    assert book.do(begin(5, "release"))["undrain"] is False, "it was drained by a person before"


def test_what_is_kept_is_bounded_and_survives_a_snapshot(book: Book) -> None:
    before = book.ledger.digest()
    assert "recovery" not in before, "voters that do not know the kind leave it out, too"
    for number in range(1, 2 * ACTIONS_KEPT):
        book.do(begin(number))
        book.do(end(number))
    kept = book.ledger.recoveries["h1"]["actions"]
    assert len(kept) == ACTIONS_KEPT and kept[-1]["number"] == 2 * ACTIONS_KEPT - 1
    restored = Ledger.restore(book.ledger.snapshot())
    assert restored.recoveries == book.ledger.recoveries == book.ledger.live().recoveries
    assert restored.digest() == book.ledger.digest() and "recovery" in restored.digest()


@pytest.mark.parametrize(
    "wrong",
    [{"action": "reboot"}, {"reason": "x" * 1001}, {"evidence": {str(n): n for n in range(33)}}, {"strategy": ""}],
)
def test_what_is_malformed_or_too_long_is_refused(book: Book, wrong: dict[str, Any]) -> None:
    outcome = book.ledger.apply(book.ledger.index + 1, {**begin().to_plain(), **wrong})
    assert isinstance(outcome.error, BadRequest)


def test_a_host_that_is_removed_leaves_nothing(book: Book) -> None:
    book.do(FoundCluster("c1", "h2", RAFT, "f1", at=AT))
    book.do(AddMember("h1", RAFT, "f2", at=AT))
    for host_id in ("h1", "h2"):
        book.do(ChangeMember(host_id, at=AT, ledger_version=4))
    book.do(begin())
    book.do(RemoveMember("h1", "ann", at=AT))
    assert book.ledger.recoveries == {}
