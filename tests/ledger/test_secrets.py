"""Secrets in the ledger: sealed, bounded, kept in snapshots; which work may name them."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.ledger.command import refuse_if_too_new
from actorgrid.actors.ledger.commands import RemoveSecret, ResealSecret, SetSecret
from actorgrid.actors.ledger.secret_records import BOXES_MAX, is_for
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables.secrets import OF_A_TENANT_MAX
from actorgrid.errors import BadRequest, HostsTooOld, NotFound, QueueFull, WrongState
from actorgrid.secret_words import OF_A_JOB_MAX, is_wishes, wish_of
from tests.consensus.rig import AT
from tests.ledger.test_state import Book


def secret(name: str = "hf", user: str = "ann@lab", **more: Any) -> Any:
    record = {"name": name, "user_id": user, "shared": False, "boxes": {"authority 1": "ab" * 40}, "set_at": AT}
    return {**record, "set_by": user, **more}


def test_a_secret_is_kept_by_tenant_and_name_and_goes_into_snapshots() -> None:
    book = Book()
    before = book.ledger.digest()
    assert book.do(SetSecret(secret(), at=AT)) == {"name": "hf", "tenant": "lab"}
    assert book.do(SetSecret(secret(user="eve@biz"), at=AT))["tenant"] == "biz"
    assert book.do(SetSecret(secret(set_at=AT + 1), at=AT))["tenant"] == "lab", "set anew"
    assert [kind for kind, _, _ in book.outcome.changes] == ["secret"]
    with pytest.raises(WrongState, match="another user's"):
        book.do(SetSecret(secret(user="bob@lab"), at=AT))
    restored = Ledger.restore(book.ledger.snapshot())
    assert restored.secrets == book.ledger.secrets and restored.digest() == book.ledger.digest()
    for tenant in ("lab", "biz"):
        book.do(RemoveSecret(tenant, "hf", at=AT))
    with pytest.raises(NotFound):
        book.do(RemoveSecret("lab", "hf", at=AT))
    assert book.ledger.digest()["root"] != before["root"] and "secret" not in before


def test_a_value_is_sealed_anew_unless_it_was_set_meanwhile() -> None:
    book = Book()
    book.do(SetSecret(secret(), at=AT))
    other = {"authority 2": "cd" * 40}
    book.do(ResealSecret("lab", "hf", AT - 1, other, at=AT))
    assert "authority 1" in book.ledger.secrets["lab/hf"]["boxes"]
    book.do(ResealSecret("lab", "hf", AT, other, at=AT))
    assert book.ledger.secrets["lab/hf"]["boxes"] == other


def test_a_tenant_has_so_many_and_so_much() -> None:
    book = Book()
    for number in range(OF_A_TENANT_MAX):
        book.do(SetSecret(secret(f"s{number}"), at=AT))
    with pytest.raises(QueueFull, match="tenant lab"):
        book.do(SetSecret(secret("more"), at=AT))
    book.do(SetSecret(secret("s1", set_at=AT + 1), at=AT))
    large = {"authority 1": "ab" * 32_000}
    for number in range(8):
        book.do(SetSecret(secret(f"s{number}", user="eve@biz", boxes=large), at=AT))
    with pytest.raises(QueueFull, match="tenant biz"):
        book.do(SetSecret(secret("more", user="eve@biz", boxes=large), at=AT))


def test_what_is_no_secret_is_no_command() -> None:
    book = Book()
    many = {f"authority {number}": "ab" for number in range(BOXES_MAX + 1)}
    for wrong in ({"name": "../x"}, {"boxes": {}}, {"boxes": many}, {"shared": 1}, {"value": "open"}, {"user_id": ""}):
        with pytest.raises(BadRequest):
            book.do(SetSecret({**secret(), **wrong}, at=AT))
    with pytest.raises(BadRequest):
        book.do(ResealSecret("lab", "hf", AT, {}, at=AT))
    with pytest.raises(HostsTooOld):
        refuse_if_too_new(SetSecret(secret(), at=AT), {"h1": {"ledger_version": 9, "host_id": "h1"}})  # type: ignore[dict-item]


def test_whose_work_may_have_it() -> None:
    own, shared = secret(), secret(shared=True)
    users = ("ann@lab", "bob@lab", "eve@biz", "ann")
    assert [is_for(own, user) for user in users] == [True, False, False, False]
    assert [is_for(shared, user) for user in users] == [True, True, False, False]


def test_a_wish_names_a_secret_once_and_no_variable_of_ours() -> None:
    assert is_wishes(["hf", "db-password:PGPASSWORD"]) and is_wishes([])
    assert wish_of("hf") == ("hf", "") and wish_of("a:B") == ("a", "B")
    wrong: list[Any] = [["hf", "hf:X"], ["a:1B"], ["a:ACTORGRID_TOKEN"], ["../a"], ["a/b"], "hf", [1], ["a:"], [""]]
    assert not any(map(is_wishes, [*wrong, [f"s{number}" for number in range(OF_A_JOB_MAX + 1)]]))
