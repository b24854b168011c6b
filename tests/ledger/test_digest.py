"""The Merkle digest: equal states agree however they came about, any difference shows, and the cost is what changed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.ledger import digest as digest_module
from actorgrid.actors.ledger.commands import CompareDigest, SetSetting
from actorgrid.actors.ledger.digest import MARK_EVERY, MARKS_KEPT, StateDigest, differing
from actorgrid.actors.ledger.snapshot import FORMAT, pack
from actorgrid.actors.ledger.state import Ledger
from actorgrid.errors import LedgerDiverged
from tests.consensus.rig import AT
from tests.ledger.test_state import Book

RECORDS = st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=3), max_size=30)


@settings(max_examples=100, deadline=None)
@given(RECORDS, RECORDS, st.booleans())
def test_only_the_state_counts_not_the_way_to_it(before: dict[str, Any], after: dict[str, Any], look: bool) -> None:
    homes: dict[str, dict[str, Any]] = {"job": dict(before), "host": {}}
    walked = StateDigest(homes)
    if look:
        walked.by_kind([])
    for id in before:
        del homes["job"][id]
        walked.changed("job", id)
    for id, record in after.items():
        homes["job"][id] = record
        walked.changed("job", id)
        walked.work(1)
    assert walked.by_kind([]) == StateDigest({"job": dict(sorted(after.items())), "host": {}}).by_kind([])
    assert (walked.by_kind([]) == StateDigest({"job": before, "host": {}}).by_kind([])) == (before == after)


def test_what_differs_is_named_by_its_kind() -> None:
    mine = StateDigest({"job": {"a": 1}, "host": {"h": 1}}).by_kind(0)
    theirs = StateDigest({"job": {"a": 2}, "host": {"h": 1}}).by_kind(1)
    assert differing(mine, theirs) == ["job", "rest"]
    assert mine["root"] != theirs["root"]


def test_a_digest_hashes_only_what_changed_since_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Any] = []

    def counted(value: Any) -> bytes:
        hashed.append(value)
        return pack(value)

    monkeypatch.setattr(digest_module, "pack", counted)
    records = {str(number): number for number in range(10_000)}
    state = StateDigest({"job": records})
    state.by_kind([])
    assert len(hashed) == 10_001
    hashed.clear()
    records["7"] = 8
    state.changed("job", "7")
    state.by_kind([])
    assert hashed == [["7", 8], []]


def filled() -> Book:
    book = Book()
    number = 0
    while book.ledger.index < MARK_EVERY * (MARKS_KEPT + 2):
        number += 1
        book.do(SetSetting(f"k{number % 50}", number, "me", at=AT), f"s{number % 7}", number)
    return book


def test_a_voter_with_the_leaders_state_goes_on() -> None:
    leader, voter = filled(), filled()
    assert len(leader.ledger.digest_marks.marks) == MARKS_KEPT
    for index, digest in leader.ledger.digest_marks.marks.items():
        assert voter.do(CompareDigest(index, digest, FORMAT, at=AT)) == {}


def test_a_voter_whose_state_is_another_stops_and_says_in_what() -> None:
    leader, voter = filled(), filled()
    voter.ledger.settings["k1"] = "a bit flipped in memory"
    voter.ledger._digest.changed("setting", "k1")
    for _ in range(MARK_EVERY):
        for book in (leader, voter):
            book.do(SetSetting("k2", 0, "me", at=AT))
    index = voter.ledger.index
    with pytest.raises(LedgerDiverged) as stopped:
        voter.do(CompareDigest(index, leader.ledger.digest_marks.marks[index], FORMAT, at=AT))
    assert stopped.value.found == "another in: setting"


def test_what_cannot_be_compared_says_nothing() -> None:
    leader = filled()
    index, digest = list(leader.ledger.digest_marks.marks.items())[-1]
    restored = Ledger.restore(leader.ledger.snapshot())
    assert restored.digest() == leader.ledger.digest()
    later = {**digest, "root": "of another format"}
    for ledger, command in (
        (restored, CompareDigest(index, {"root": "other"}, FORMAT, at=AT)),
        (leader.ledger, CompareDigest(index, later, FORMAT + 1, at=AT)),
    ):
        assert ledger.apply(ledger.index + 1, command).result == {}


def test_a_large_state_is_hashed_in_passing(monkeypatch: pytest.MonkeyPatch) -> None:
    book = filled()
    monkeypatch.setattr(digest_module, "HASH_AT", 10)
    restored = Ledger.restore(book.ledger.snapshot())
    behind = restored._digest.behind
    assert behind > 10
    restored.apply(restored.index + 1, SetSetting("k1", 1, "me", at=AT))
    assert restored._digest.behind == behind - digest_module.HASHED_AN_ENTRY
