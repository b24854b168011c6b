"""Snapshots: written in pieces, read back whole or refused, and those of earlier versions still understood."""

from __future__ import annotations

import itertools
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.ledger.commands import SetSetting, SubmitJobs
from actorgrid.actors.ledger.snapshot import FORMAT, PIECE_ITEMS, decode, encode
from actorgrid.actors.ledger.state import Ledger
from actorgrid.errors import LedgerRefused, LedgerTooNew
from tests.consensus.rig import AT, job_record
from tests.ledger.test_state import Book

FIRST_FORMAT = Path(__file__).parents[1] / "consensus" / "formats" / "log_1" / "state.db"
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.text(max_size=5), PLAIN, max_size=4), st.dictionaries(st.text("ab", min_size=1), st.lists(PLAIN))
)
def test_what_is_written_is_read(header: dict[str, Any], sections: dict[str, list[Any]]) -> None:
    data = b"".join(encode({**header, "format": FORMAT}, sections))
    assert decode(data) == (
        {**header, "format": FORMAT},
        {name: items for name, items in sections.items() if items},
    )


def test_no_piece_holds_more_than_its_bound() -> None:
    pieces = list(encode({}, {"jobs": range(2 * PIECE_ITEMS + 1), "hosts": [1]}))
    assert len(pieces) == 1 + 3 + 1 + 1


def test_a_snapshot_is_of_the_moment_it_was_asked_for() -> None:
    book = Book()
    book.submit("a")
    before = book.ledger.snapshot()
    pieces = book.ledger.snapshot_pieces()
    first = next(pieces)
    book.run("a", "succeeded")
    book.do(SetSetting("k", 1, "me", at=AT))
    book.submit("b")
    assert b"".join([first, *pieces]) == before


def test_every_cut_and_every_changed_byte_is_refused_or_read_but_never_a_crash() -> None:
    book = Book()
    book.submit("a")
    data = book.ledger.snapshot()
    for end in range(len(data)):
        with pytest.raises(LedgerRefused):
            decode(data[:end])
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x41
        try:
            decode(bytes(damaged))
        except (LedgerRefused, LedgerTooNew):
            continue


def test_a_later_format_is_refused_with_what_to_do() -> None:
    data = b"".join(encode({"format": FORMAT + 1}, {}))
    with pytest.raises(LedgerTooNew, match=f"format {FORMAT + 1}") as refused:
        Ledger.restore(data)
    assert "upgrade this host" in refused.value.hint


@pytest.mark.parametrize("data", [b"", b"{", b"{}", b'{"format":9}', b"\xc1", b"null"])
def test_what_is_no_snapshot_is_refused(data: bytes) -> None:
    with pytest.raises(LedgerRefused):
        Ledger.restore(data)


def snapshots_of_the_first_format() -> list[tuple[int, bytes]]:
    store = sqlite3.connect(f"file:{FIRST_FORMAT}?mode=ro&immutable=1", uri=True)
    try:
        return store.execute("SELECT idx, data FROM snapshots ORDER BY idx").fetchall()
    finally:
        store.close()


def test_the_first_formats_snapshots_are_read_whole() -> None:
    found = snapshots_of_the_first_format()
    assert found
    for index, data in found:
        state = json.loads(data)
        assert state["format"] == 1
        ledger = Ledger.restore(data)
        assert ledger.index == index
        assert dict(ledger.jobs) == state["jobs"]["records"]
        assert dict(ledger.allocations) == state["allocations"]
        assert (ledger.hosts, ledger.settings, ledger.locks) == (state["hosts"], state["settings"], {})
        assert [[name, *last] for name, last in ledger._sessions.answers.items()] == state["sessions"]
        again = Ledger.restore(ledger.snapshot())
        assert again.digest() == ledger.digest()
        assert again.snapshot() == ledger.snapshot()
        again.apply(index + 1, SubmitJobs([job_record("later")], at=AT))
        assert again.jobs["later"]["ordinal"] == sum(state["jobs"]["totals"][:1]) + 1


def test_equal_logs_give_equal_bytes_also_through_a_snapshot() -> None:
    whole, halves = Book(), Book()
    for number in itertools.count():
        for book in (whole, halves):
            book.submit(f"j{number}", env={"B": "1", "A": "2"}, resources={"cpu_milli": 10})
            book.run(f"j{number}", "succeeded")
        if number == 4:
            break
        halves.ledger = Ledger.restore(halves.ledger.snapshot())
    assert whole.ledger.snapshot() == halves.ledger.snapshot()


@pytest.mark.parametrize("earlier", [2, 3])
def test_a_snapshot_of_a_format_between_is_read_with_what_it_did_not_know_empty(earlier: int) -> None:
    book = Book()
    book.submit("a", user_id="ann")
    book.grant("a")
    header, sections = decode(book.ledger.snapshot())
    del header["cluster"]
    sections.pop("members", None)
    if earlier < 3:
        for allocation in sections["allocations"]:
            del allocation["user_id"]
    restored = Ledger.restore(b"".join(encode({**header, "format": earlier}, sections)))
    assert restored.digest() == book.ledger.digest()
    assert restored.allocations["a.1"]["user_id"] == "ann"
    assert (restored.members, restored._members.cluster_id) == ({}, "")
