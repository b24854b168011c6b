"""A cluster's trust as its life goes on: keys on every voter, renewal, rotation. Real agents of one machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.processes import until
from tests.system.cluster_host import ClusterHost, ran_on


def holders(host: ClusterHost) -> set[int]:
    """The nodes that have the key of the authority which signs, as this host knows."""
    found: dict[str, Any] = host.cli_json("ca", "show")
    signing = max(each["generation"] for each in found["authorities"] if each["state"] == "signing")
    return {member["node"] for member in found["hosts"] if signing in member["keys"]}


def test_any_voter_lets_hosts_in_and_the_first_one_is_not_needed(make_host: Callable[..., ClusterHost]) -> None:
    a, b, c, d = (make_host(name, 1) for name in "abcd")
    a.found()
    token = a.token("--uses", "3")["token"]
    b.join(a, token)
    c.join(a, token)
    until(lambda: holders(c) == {1, 2, 3}, "every voter has the key")
    a.kill()
    until(lambda: "leader" in [b.roles()[node] for node in (2, 3)], "another leads")
    d.join(b, token)
    until(lambda: 4 in d.hosts(), "the fourth is a member")
    job = d.ended("--gpus", "1", "--", "sh", "-c", "exit 0")
    assert job["state"] == "succeeded" and ran_on(job)
