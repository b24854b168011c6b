"""Heads of audit logs in the ledger: taken only with the proof that a log goes on from the one that is held."""

from __future__ import annotations

from hashlib import sha256

import pytest

from actorgrid.actors.ledger import commands
from actorgrid.actors.ledger.audit_head_records import ENDED_MAX
from actorgrid.actors.ledger.command import VERSION, refuse_if_too_new
from actorgrid.actors.ledger.commands import ReportAuditHead
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.security.audit_tree import MerkleTree
from actorgrid.errors import BadRequest, HostsTooOld, NotFound, WrongState
from tests.consensus.rig import AT
from tests.hostile.examples import RAFT
from tests.ledger.test_state import Book


@pytest.fixture
def book() -> Book:
    book = Book()
    book.do(commands.FoundCluster("c", "h1", RAFT, "f1", at=AT))
    book.do(commands.ChangeMember("h1", at=AT, ledger_version=VERSION))
    return book


def tree_of(count: int, changed: int = -1) -> MerkleTree:
    """A tree of so many records, one of which is another than in other trees."""
    tree = MerkleTree([], lambda _: [])
    for number in range(count):
        tree.add(sha256(b"%d%s" % (number, b"!" * (number == changed))).digest())
    return tree


def head_of(tree: MerkleTree, held: int = 0, key: str = "key", anew: bool = False) -> ReportAuditHead:
    proof = [part.hex() for part in tree.consistency(held, tree.size)] if held else []
    return ReportAuditHead("h1", tree.size, tree.root().hex(), f"note {tree.size}", key, proof, anew, at=AT)


def test_a_log_that_only_grew_is_taken_head_by_head_and_goes_into_snapshots(book: Book) -> None:
    before = book.ledger.digest()
    sizes = [0, 1, 2, 3, 7, 8, 20, 300]
    for held, size in zip([0, *sizes], sizes, strict=False):
        assert book.do(head_of(tree_of(size), held)) == {"host_id": "h1", "log": 1, "size": size}
    assert book.ledger.digest() != before
    assert Ledger.restore(book.ledger.snapshot()).audit_heads == book.ledger.audit_heads
    assert Ledger.restore(book.ledger.snapshot()).digest() == book.ledger.digest()


def test_a_log_that_was_changed_cut_or_replaced_is_not_taken(book: Book) -> None:
    book.do(head_of(tree_of(20)))
    held = dict(book.ledger.audit_heads)
    for what, forged in (
        ("changed", head_of(tree_of(30, changed=4), 20)),
        ("changed, with the proof of another", head_of(tree_of(30), 20, key="key")),
        ("cut", head_of(tree_of(19))),
        ("without a proof", head_of(tree_of(30))),
        ("as long, and another", head_of(tree_of(20, changed=19))),
        ("under another key", head_of(tree_of(30), 20, key="other")),
    ):
        if what.startswith("changed,"):
            forged = ReportAuditHead("h1", 30, tree_of(30, changed=4).root().hex(), "n", "key", forged.proof, at=AT)
        with pytest.raises(WrongState):
            book.do(forged)
        assert book.ledger.audit_heads == held, what
    assert book.do(head_of(tree_of(30), 20))["size"] == 30


def test_one_that_begins_anew_is_told_and_leaves_the_head_of_before(book: Book) -> None:
    book.do(head_of(tree_of(20)))
    assert book.do(head_of(tree_of(3), anew=True))["log"] == 2
    assert [each["size"] for each in book.ledger.audit_heads["h1"]["ended"]] == [20]
    assert [event.state for event in book.outcome.events] == ["began anew"], "people hear of it"
    for _ in range(3 * ENDED_MAX):
        book.do(head_of(tree_of(3), anew=True))
    ended = book.ledger.audit_heads["h1"]["ended"]
    assert len(ended) == ENDED_MAX
    assert ended[0]["size"] == 20, "whoever begins anew again and again does not push out the first"


def test_it_is_of_members_well_formed_and_of_version_10(book: Book) -> None:
    with pytest.raises(NotFound):
        book.do(ReportAuditHead("h9", 0, "ab" * 32, "n", "k", at=AT))
    for wrong in (
        {"root": "AB" * 32},
        {"root": "ab"},
        {"proof": ["zz" * 32]},
        {"proof": ["ab" * 32] * 65},
        {"note": "n" * 5000},
    ):
        with pytest.raises(BadRequest):
            book.do(
                ReportAuditHead(
                    **{"host_id": "h1", "size": 1, "root": "ab" * 32, "note": "n", "key": "k", "at": AT, **wrong}
                )
            )  # type: ignore[arg-type]
    with pytest.raises(HostsTooOld):
        refuse_if_too_new(head_of(tree_of(1)), {"h1": {"ledger_version": 9, "host_id": "h1"}})  # type: ignore[dict-item]


def test_a_host_that_is_removed_is_forgotten(book: Book) -> None:
    book.do(commands.AddMember("h2", RAFT, "f2", at=AT, ledger_version=VERSION))
    book.do(ReportAuditHead("h2", 0, "ab" * 32, "n", "k", at=AT))
    book.do(commands.RemoveMember("h2", "me", at=AT, force=True))
    assert "h2" not in book.ledger.audit_heads
