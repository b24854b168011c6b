"""Whose a key of the shared state is."""

from __future__ import annotations

import pytest

from actorgrid.access import EVERYTHING, Scope
from actorgrid.actors.replication.namespaces import (
    check_read,
    check_write,
    cluster_key,
    kept_key,
    may_see,
    namespace_of,
    plain_key,
    shared_with,
)
from actorgrid.errors import BadRequest, NotAllowed

ANN = Scope(user="ann")


@pytest.mark.parametrize(
    ("key", "namespace"),
    [
        ("hits", "default"),
        ("runs/7/best", "default"),
        ("@ann/hits", "ann"),
        ("@ann@corp/a/b", "ann@corp"),
        ("@/x", "default"),
        ("_cluster/health/h1", "_cluster"),
        ("_cluster", "default"),
        ("_clusters/x", "default"),
    ],
)
def test_a_key_is_of_the_namespace_that_it_begins_with(key: str, namespace: str) -> None:
    assert namespace_of(key) == namespace


def test_a_user_sees_its_own_the_shared_and_what_the_cluster_says() -> None:
    shared = shared_with(ANN, ("default", "shared"), lists_hosts=True)
    keys = ["hits", "@ann/a", "@bob/a", "@shared/a", cluster_key("load", "h1")]
    assert [key for key in keys if may_see(key, ANN, shared)] == ["hits", "@ann/a", "@shared/a", "_cluster/load/h1"]
    assert [key for key in keys if may_see(key, ANN, ())] == ["@ann/a"]
    assert all(may_see(key, EVERYTHING, shared) for key in keys), "an administrator sees all"
    check_read("@ann/a", ANN, ())
    with pytest.raises(NotAllowed, match="'bob' is not ann's") as caught:
        check_read("@bob/a", ANN, shared)
    assert "@ann/" in caught.value.hint


def test_what_hosts_say_of_themselves_is_for_those_who_list_hosts() -> None:
    for scope in (ANN, EVERYTHING, Scope(tenant="lab")):
        shared = shared_with(scope, ("default", "_cluster"), lists_hosts=False)
        assert not may_see("_cluster/load/h1", scope, shared)
        with pytest.raises(NotAllowed, match="list hosts"):
            check_read("_cluster/load/h1", scope, shared)


def test_what_is_shared_is_shared_within_a_tenant() -> None:
    keys = ["hits", "@ann/a", "@ann@lab/a", "@bob@lab/a", "@@lab/a", "@@biz/a", "@shared/a", "@lab/a"]
    own, tenant = Scope(user="ann@lab"), Scope(tenant="lab")
    shared = shared_with(own, ("default", "shared"), lists_hosts=False)
    assert shared == shared_with(tenant, ("default", "shared"), lists_hosts=False) == ("@lab",)
    assert [key for key in keys if may_see(key, own, shared)] == ["@ann@lab/a", "@@lab/a"]
    assert [key for key in keys if may_see(key, tenant, shared)] == ["@ann@lab/a", "@bob@lab/a", "@@lab/a"]
    with pytest.raises(NotAllowed, match="tenant lab"):
        check_read("hits", tenant, shared)


@pytest.mark.parametrize("scope", [Scope(user="ann@lab"), Scope(tenant="lab")])
def test_a_plain_key_is_of_what_its_tenant_shares(scope: Scope) -> None:
    assert kept_key("runs/7", scope) == "@@lab/runs/7"
    assert plain_key("@@lab/runs/7", scope) == "runs/7"
    for key in ("", "@ann@lab/a", "@@biz/a", "_cluster/load/h1", "@@lab/@x/y", "@@lab/_cluster/x"):
        assert kept_key(key, scope) == plain_key(key, scope) == key
    for other in (ANN, EVERYTHING, Scope(tenant="default")):
        assert kept_key("runs/7", other) == "runs/7"


def test_nobody_writes_the_clusters_own_keys_from_outside() -> None:
    check_write("_clusters/x")
    with pytest.raises(NotAllowed):
        check_write("_cluster/load/h1")


@pytest.mark.parametrize("key", ["@ann", "@ann/", "@/x", "@" + "n" * 129 + "/x"])
def test_half_a_namespace_is_refused(key: str) -> None:
    with pytest.raises(BadRequest, match="namespace"):
        check_write(key)
