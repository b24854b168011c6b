"""Join tokens in the ledger: a use and the member that comes of it are one entry."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.ledger.commands import (
    CreateJoinToken,
    FoundCluster,
    RedeemJoinToken,
    RemoveMember,
    RevokeJoinToken,
)
from actorgrid.actors.ledger.join_tokens import make_token
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables.join_tokens import JOIN_TOKENS_MAX
from actorgrid.errors import (
    BadRequest,
    JoinTokenExpired,
    JoinTokenRevoked,
    JoinTokenUsed,
    UnknownJoinToken,
    WrongState,
)
from tests.consensus.rig import AT
from tests.ledger.test_state import Book

ADDRESSES = {"raft": "10.0.0.2:7402", "calls": "10.0.0.2:7401"}


def record(number: int = 1, **more: Any) -> dict[str, Any]:
    return make_token("c1", "ab" * 32, number.to_bytes(5, "big"), bytes(16), AT, **more)[1]


@pytest.fixture
def book() -> Book:
    made = Book()
    made.do(FoundCluster("c1", "a", {"raft": "10.0.0.1:7402"}, "aa", at=AT))
    return made


def redeem(token: dict[str, Any], host_id: str = "b", fingerprint: str = "bb", at: float = AT + 1) -> dict[str, Any]:
    return RedeemJoinToken(token["id"], host_id, ADDRESSES, fingerprint, at=at)


def test_a_token_lets_in_one_host_and_says_so_again_to_the_same_one(book: Book) -> None:
    token = record()
    book.do(CreateJoinToken(token, at=AT))
    assert book.do(redeem(token)) == {"host_id": "b", "node": 2, "cluster_id": "c1"}
    assert [kind for kind, _, _ in book.outcome.changes] == ["member", "join_token"]
    assert book.do(redeem(token)) == {"host_id": "b", "node": 2, "cluster_id": "c1"}
    assert book.outcome.changes == ()
    with pytest.raises(JoinTokenUsed):
        book.do(redeem(token, "c", "cc"))
    assert list(book.ledger.members) == ["a", "b"]


def test_a_token_is_refused_by_name_when_it_is_wrong_late_or_taken_back(book: Book) -> None:
    token, other = record(1, ttl_s=60.0, uses=3), record(2)
    book.do(CreateJoinToken(token, at=AT))
    with pytest.raises(UnknownJoinToken):
        book.do(redeem(other))
    with pytest.raises(JoinTokenExpired):
        book.do(redeem(token, at=AT + 61))
    book.do(RevokeJoinToken(token["id"], at=AT))
    with pytest.raises(JoinTokenRevoked):
        book.do(redeem(token))
    assert book.do(RevokeJoinToken(token["id"], at=AT + 9))["revoked_at"] == AT
    with pytest.raises(UnknownJoinToken):
        book.do(RevokeJoinToken("nothing", at=AT))
    assert list(book.ledger.members) == ["a"]


def test_a_token_takes_over_no_host_and_gives_back_one_that_has_its_key(book: Book) -> None:
    first, second, third = record(1), record(2), record(3)
    for token in (first, second, third):
        book.do(CreateJoinToken(token, at=AT))
    book.do(redeem(first))
    with pytest.raises(WrongState, match="another key"):
        book.do(redeem(second, "b", "stolen"))
    assert book.ledger.join_tokens[second["id"]]["used_by"] == []
    assert book.do(redeem(second))["node"] == 2
    book.do(RemoveMember("b", "me", at=AT))
    assert book.do(redeem(third, "b", "new"))["node"] == 3


def test_tokens_are_kept_in_snapshots_and_digests(book: Book) -> None:
    token = record()
    before = book.ledger.digest()["join_token"]
    book.do(CreateJoinToken(token, at=AT))
    book.do(redeem(token))
    restored = Ledger.restore(book.ledger.snapshot())
    assert restored.join_tokens == book.ledger.join_tokens
    assert restored.digest() == book.ledger.digest()
    assert restored.digest()["join_token"] != before


def test_a_record_that_is_no_token_or_no_new_one_is_refused(book: Book) -> None:
    token = record()
    for wrong in ({**token, "used_by": [{"host_id": "x"}]}, {**token, "expires_at": "soon"}, {"id": "x"}):
        with pytest.raises(BadRequest):
            book.do(CreateJoinToken(wrong, at=AT))
    with pytest.raises(WrongState, match="not for this cluster"):
        book.do(CreateJoinToken({**token, "cluster_id": "c2"}, at=AT))
    book.do(CreateJoinToken(token, at=AT))
    with pytest.raises(WrongState, match="of that id already"):
        book.do(CreateJoinToken(token, at=AT))


def test_a_host_that_is_alone_has_no_tokens() -> None:
    with pytest.raises(WrongState, match="--listen"):
        Book().do(CreateJoinToken(record(), at=AT))


def test_at_the_bound_tokens_whose_time_is_over_make_room(book: Book) -> None:
    for number in range(JOIN_TOKENS_MAX):
        book.do(CreateJoinToken(record(number, ttl_s=60.0), at=AT))
    with pytest.raises(WrongState, match="maximum of join tokens"):
        book.do(CreateJoinToken(record(5000), at=AT + 30))
    book.do(CreateJoinToken(record(5000), at=AT + 61))
    assert list(book.ledger.join_tokens) == [record(5000)["id"]]
