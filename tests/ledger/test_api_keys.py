"""API keys in the ledger: made, taken back, kept in snapshots, bounded."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.access import Role
from actorgrid.actors.ledger.api_keys import identity_of, key_id_of, make_key, opens, revoke_key
from actorgrid.actors.ledger.command import refuse_if_too_new
from actorgrid.actors.ledger.commands import CreateApiKey, RevokeApiKey
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables.api_keys import API_KEYS_MAX
from actorgrid.errors import BadRequest, HostsTooOld, NotFound, WrongState
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


# -- roles, tenants, names (version 10)


def of_lab(number: int = 1, role: Role = Role.USER, name: str = "", **more: Any) -> dict[str, Any]:
    secret = number.to_bytes(30, "big")
    given = {"role": role, "tenant": "lab", "name": name, **more}
    return make_key(number.to_bytes(5, "big"), secret, "ann@lab", "admin", AT, 1000.0, **given)[1]


def test_a_key_of_before_is_an_administrators_and_a_new_one_has_its_role() -> None:
    old = identity_of({**key()[1], "roles": ["user"]})
    assert old is not None and (old.role, old.tenant, old.is_cluster_admin) == (Role.ADMIN, "*", True)
    new = identity_of(of_lab())
    assert new is not None and (new.user, new.role, new.tenant, new.is_cluster_admin) == (
        "ann@lab",
        Role.USER,
        "lab",
        False,
    )


def test_a_role_is_not_proposed_before_all_hosts_hold_keys_to_theirs() -> None:
    plain, role = CreateApiKey(key()[1], at=AT), CreateApiKey(of_lab(), at=AT)
    assert (plain.format_version, role.format_version, plain.to_plain()["v"]) == (1, 10, 1)
    with pytest.raises(HostsTooOld):
        refuse_if_too_new(role, {"a": {"ledger_version": 10}, "b": {"ledger_version": 9}})
    book = Book()
    forged = {**role.to_plain(), "v": 9, "key": {**role.key, "roles": ["king"]}}
    assert book.ledger.apply(book.ledger.index + 1, forged).error is None, "as hosts of version 9 answer"
    assert identity_of(book.ledger.api_keys[role.key["id"]]) is None, "and no door opens"


@pytest.mark.parametrize(
    "wrong",
    [{"roles": ["king"]}, {"roles": ["user", "admin"]}, {"roles": []}, {"tenant": ""}, {"name": ""}, {"last": "x"}],
)
def test_a_malformed_role_is_no_command(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        Book().do(CreateApiKey({**of_lab(), **wrong}, at=AT))


def test_a_name_has_two_good_keys_while_it_is_rotated_and_then_one() -> None:
    book = Book()
    first, second, third = (of_lab(number, name="ci") for number in (1, 2, 3))
    with pytest.raises(NotFound):
        book.do(CreateApiKey(first, retire_at=AT + 60, at=AT))
    book.do(CreateApiKey(first, retire_at=None, at=AT))
    with pytest.raises(WrongState, match="rotate"):
        book.do(CreateApiKey(second, retire_at=None, at=AT))
    book.do(CreateApiKey({**second, "tenant": "other", "id": "elsewhere"}, at=AT))
    book.do(CreateApiKey(second, retire_at=AT + 60, at=AT))
    keys = book.ledger.api_keys
    assert (keys[first["id"]]["expires_at"], keys[second["id"]]["expires_at"]) == (AT + 60, AT + 1000)
    with pytest.raises(WrongState, match="two"):
        book.do(CreateApiKey(third, retire_at=AT + 90, at=AT + 30))
    book.do(CreateApiKey(third, retire_at=AT + 5000, at=AT + 61))
    assert keys[second["id"]]["expires_at"] == AT + 1000, "nothing lives longer for being rotated"
    assert Ledger.restore(book.ledger.snapshot()).digest() == book.ledger.digest()


LIMITS: dict[str, Any] = {"models": ["m"], "requests_per_minute": 60, "tokens_per_minute": 0, "tokens_per_month": 9}


def test_a_key_for_models_is_kept_with_its_limits_and_known_from_version_10_on() -> None:
    book = Book()
    record: Any = {**key()[1], "roles": ["user"], "tenant": "default", "serving": LIMITS}
    command = CreateApiKey(record, at=AT)
    assert command.to_plain()["v"] == 10
    book.do(command)
    assert book.ledger.api_keys[record["id"]]["serving"] == LIMITS
    copy = Ledger.restore(book.ledger.snapshot())
    assert copy.api_keys[record["id"]]["serving"] == LIMITS
    assert copy.digest() == book.ledger.digest()
    book.do(RevokeApiKey(record["id"], at=AT + 1))
    assert book.ledger.api_keys[record["id"]]["serving"] == LIMITS


@pytest.mark.parametrize(
    "change",
    [
        {"models": "m"},
        {"models": [""]},
        {"models": ["m"] * 257},
        {"tokens_per_month": -1},
        {"more": 1},
        {"models": None},
    ],
)
def test_malformed_limits_are_no_command(change: dict[str, Any]) -> None:
    record: Any = {**key()[1], "roles": ["user"], "tenant": "default", "serving": {**LIMITS, **change}}
    with pytest.raises(BadRequest):
        Book().do(CreateApiKey(record, at=AT))
    without: Any = {name: value for name, value in record.items() if name != "tenant"}
    with pytest.raises(BadRequest):
        Book().do(CreateApiKey({**without, "serving": LIMITS}, at=AT))
