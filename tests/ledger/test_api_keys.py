"""API keys in the ledger: made, taken back, kept in snapshots, bounded."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.ledger.api_keys import key_id_of, make_key, opens, revoke_key
from actorgrid.actors.ledger.commands import CreateApiKey, RevokeApiKey
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables.api_keys import API_KEYS_MAX
from actorgrid.errors import BadRequest, NotFound, WrongState
from tests.consensus.rig import AT
from tests.ledger.test_state import Book


def key(number: int = 1, **more: Any) -> tuple[str, dict[str, Any]]:
    return make_key(number.to_bytes(5, "big"), number.to_bytes(30, "big"), "ann", "admin", AT, **more)


def test_a_key_opens_in_its_time_and_until_it_is_taken_back() -> None:
    text, record = key(ttl_s=100.0)
    assert key_id_of(text) == record["id"]
    assert [opens(record, text, at) for at in (AT, AT + 99, AT + 101)] == [True, True, False]
    assert not opens(record, key(2)[0], AT) and not opens(None, text, AT)
    assert not opens(revoke_key(record, AT), text, AT)
    assert text.rpartition(".")[2] not in str(record)
    for wrong in ("", "agk1", "agk1.a", "agj1.a.b", "agk1.a.b.c", "agk1.a." + "b" * 200):
        assert key_id_of(wrong) is None
    with pytest.raises(BadRequest):
        key(ttl_s=59.0)


def test_the_ledger_keeps_keys_and_gives_them_on_in_snapshots() -> None:
    book = Book()
    _, record = key()
    before = book.ledger.digest()["api_key"]
    assert book.do(CreateApiKey(record, at=AT)) == {"id": record["id"], "expires_at": record["expires_at"]}
    assert [kind for kind, _, _ in book.outcome.changes] == ["api_key"]
    with pytest.raises(WrongState):
        book.do(CreateApiKey(record, at=AT))
    assert book.do(RevokeApiKey(record["id"], "ann", at=AT + 5))["revoked_at"] == AT + 5
    assert book.do(RevokeApiKey(record["id"], "ann", at=AT + 9))["revoked_at"] == AT + 5
    with pytest.raises(NotFound):
        book.do(RevokeApiKey("nothing", "ann", at=AT))
    restored = Ledger.restore(book.ledger.snapshot())
    assert restored.api_keys == book.ledger.api_keys == book.ledger.live().api_keys
    assert restored.digest() == book.ledger.digest() and restored.digest()["api_key"] != before


def test_a_malformed_key_is_no_command() -> None:
    book = Book()
    for name, wrong in (("sha256", "ab"), ("revoked_at", 1.0), ("user_id", ""), ("id", "a b")):
        with pytest.raises(BadRequest):
            book.do(CreateApiKey({**key()[1], name: wrong}, at=AT))


def test_at_the_bound_those_that_open_nothing_make_room() -> None:
    book = Book()
    for number in range(API_KEYS_MAX):
        book.do(CreateApiKey(key(number, ttl_s=60.0 if number == 7 else 600.0)[1], at=AT))
    with pytest.raises(WrongState, match="maximum"):
        book.do(CreateApiKey(key(5000)[1], at=AT + 30))
    book.do(RevokeApiKey(key(3)[1]["id"], "ann", at=AT + 40))
    book.do(CreateApiKey(key(5000)[1], at=AT + 61))
    gone = {key(number)[1]["id"] for number in (3, 7)}
    assert len(book.ledger.api_keys) == API_KEYS_MAX - 1 and not gone & book.ledger.api_keys.keys()
