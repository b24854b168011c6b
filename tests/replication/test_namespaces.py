"""Whose a key of the shared state is."""

from __future__ import annotations

import pytest

from actorgrid.actors.replication.namespaces import (
    check_read,
    check_write,
    cluster_key,
    may_see,
    namespace_of,
)
from actorgrid.errors import BadRequest, NotAllowed


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
    shared = ("default", "shared")
    keys = ["hits", "@ann/a", "@bob/a", "@shared/a", cluster_key("load", "h1")]
    assert [key for key in keys if may_see(key, "ann", shared)] == ["hits", "@ann/a", "@shared/a", "_cluster/load/h1"]
    assert [key for key in keys if may_see(key, "ann", ())] == ["@ann/a", "_cluster/load/h1"]
    assert all(may_see(key, None, ()) for key in keys), "an administrator sees all"
    check_read("@ann/a", "ann", ())
    with pytest.raises(NotAllowed, match="'bob' is not ann's") as caught:
        check_read("@bob/a", "ann", shared)
    assert "@ann/" in caught.value.hint


def test_nobody_writes_the_clusters_own_keys_from_outside() -> None:
    check_write("_clusters/x")
    with pytest.raises(NotAllowed):
        check_write("_cluster/load/h1")


@pytest.mark.parametrize("key", ["@ann", "@ann/", "@/x", "@" + "n" * 129 + "/x"])
def test_half_a_namespace_is_refused(key: str) -> None:
    with pytest.raises(BadRequest, match="namespace"):
        check_write(key)
