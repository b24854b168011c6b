"""The table of rights: what each role reaches, and that nobody reaches more than his binding."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorgrid.access import (
    ALL_TENANTS,
    EVERYTHING,
    ROLES,
    TABLE,
    Identity,
    Reach,
    Right,
    Role,
    Scope,
    check_tenant,
    check_user_name,
    in_tenant,
    may_grant,
    tenant_of,
)
from actorgrid.errors import BadRequest


def who(role: Role, tenant: str = "lab", name: str = "ann") -> Identity:
    return Identity(name, in_tenant(name, tenant), role, tenant)


def test_every_right_has_a_row_and_no_two_are_the_same() -> None:
    assert TABLE.keys() == set(Right) and len({right.value for right in Right}) == len(Right)


def test_an_administrator_of_all_tenants_reaches_all_and_one_of_a_tenant_only_that() -> None:
    for right in Right:
        assert who(Role.ADMIN, ALL_TENANTS).scope(right) == EVERYTHING, right
        scope = who(Role.ADMIN).scope(right)
        assert scope is None or scope == Scope(tenant="lab") or TABLE[right][3] is Reach.ANY, right


@pytest.mark.parametrize("role", ROLES)
def test_nobody_of_a_tenant_reaches_another_by_any_right(role: Role) -> None:
    others = ("bob@biz", "bob", "ann", "ann@biz", "lab", "ann@lab@biz", "@biz")
    for right in Right:
        scope = who(role).scope(right)
        assert scope is None or not any(scope.covers(user) for user in others), right


def test_work_reaches_no_more_than_a_user_does() -> None:
    order = [Reach.NONE, Reach.OWN, Reach.TENANT, Reach.ANY]
    for right, row in TABLE.items():
        assert order.index(row[4]) <= order.index(row[1]), right


def test_reads_are_as_strict_as_writes() -> None:
    for read, write in ((Right.READ_SETTINGS, Right.WRITE_SETTINGS), (Right.READ_OUTPUT, Right.STEER_JOBS)):
        for may_read, may_write in zip(TABLE[read][:2], TABLE[write][:2], strict=True):
            assert may_write is not Reach.NONE or may_read is Reach.NONE
    assert TABLE[Right.MANAGE_TRUST] == (Reach.NONE, Reach.NONE, Reach.NONE, Reach.CLUSTER, Reach.NONE)


def test_a_users_name_says_the_tenant() -> None:
    assert [tenant_of(name) for name in ("ann", "ann@lab", "a@b@lab", "@lab")] == ["default", "lab", "lab", "lab"]
    assert [in_tenant("ann", tenant) for tenant in ("lab", "default", "*")] == ["ann@lab", "ann", "ann"]


@pytest.mark.parametrize("name", ["", "a@lab", "a/b", "a b", "\n", "x" * 80])
def test_what_would_say_another_tenant_is_no_name(name: str) -> None:
    with pytest.raises(BadRequest):
        check_user_name(name)


@pytest.mark.parametrize("tenant", ["", "*", "a@b", "-a", "a/b", "x" * 49, "é"])
def test_what_cannot_be_a_tenant_is_refused(tenant: str) -> None:
    with pytest.raises(BadRequest):
        check_tenant(tenant)


def test_the_table_in_the_documentation_is_the_one_that_counts() -> None:
    text = (Path(__file__).parents[2] / "docs" / "access.md").read_text(encoding="utf-8")
    for right, row in TABLE.items():
        assert f"| {' | '.join((*right.value, *(reach.value for reach in row)))} |\n" in text, right


def test_nobody_gives_more_than_he_has() -> None:
    assert may_grant(who(Role.ADMIN, ALL_TENANTS), ALL_TENANTS) and may_grant(who(Role.ADMIN), "lab")
    assert not may_grant(who(Role.ADMIN), ALL_TENANTS) and not may_grant(who(Role.ADMIN), "biz")
    assert not any(may_grant(who(role), "lab") for role in ROLES if role is not Role.ADMIN)
