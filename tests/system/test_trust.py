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


def rotation(host: ClusterHost) -> Any:
    """Where a rotation of the authority stands."""
    return host.cli_json("ca", "show")["rotation"]


def test_a_cluster_outlives_its_first_host_its_authority_and_all_hosts_but_one(
    make_host: Callable[..., ClusterHost],
) -> None:
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

    # The authority is rotated by one that is not the first; it waits for the host that is away, until that is removed.
    b.cli("ca", "rotate", "--detach")
    gone = b.hosts()[1]["node_id"]
    until(lambda: rotation(c) == {"next": "switch", "waits_for": [gone]}, "the others are ready")
    b.cli("leave", "--host", "1", "--force")
    until(lambda: rotation(c)["next"] == "", "the old authority is retired")
    shown = d.cli_json("ca", "show")
    assert [each["generation"] for each in shown["authorities"]] == [2]
    assert {member["generation"] for member in shown["hosts"]} == {2}
    assert c.ended("--gpus", "1", "--", "true")["state"] == "succeeded"
    # Links made anew believe the new one; a host that starts again does so with what it has on its disk.
    c.stop()
    c.start()
    until(lambda: c.roles() == d.roles() and "leader" in d.roles().values(), "it is back among the others")

    # Two of the three are destroyed; the third goes on alone, with its work and the authority's key.
    until(lambda: holders(d) == {2, 3, 4}, "every voter has the new key")
    held = [d.submit("--gpus", "1", "--", "sleep", "60") for _ in range(3)]
    until(lambda: [d.job(id)["state"] for id in held] == ["running"] * 3, "each runs one")
    for host in (b, c, d):
        host.kill()
    assert d.cli("ledger", "recover", "--json", check=False).returncode == 2
    done = d.cli_json("ledger", "recover", "--lone-survivor")
    assert set(done["removed"].values()) == {2, 3} and done["has_authority_key"]
    d.start()
    until(lambda: d.roles() == {4: "leader"}, "it goes on alone")
    until(lambda: sorted(d.job(id)["state"] for id in held) == ["queued", "queued", "running"], "one has room")
    assert d.token()["token"]
    assert b.refused_up()["code"] == "HostRemoved"
    for id in held:
        d.cli("cancel", id)


def test_hosts_leave_and_what_ran_there_runs_elsewhere(make_host: Callable[..., ClusterHost]) -> None:
    a, b, c = (make_host(name, 1) for name in "abc")
    a.found()
    token = a.token("--uses", "2")["token"]
    b.join(a, token)
    c.join(a, token)
    until(lambda: a.roles() == {1: "leader", 2: "voter", 3: "voter"}, "three that vote")
    # The leader leaves by itself: its work first, then its vote, then its name.
    held = [a.submit("--gpus", "1", "--", "sleep", "60") for _ in range(3)]
    until(lambda: [a.job(id)["state"] for id in held] == ["running"] * 3, "all three run")
    waiting = a.cli_json("leave", "--cancel")
    assert waiting["state"] == "stays"
    left = a.cli_json("leave", "--now")
    assert left["state"] == "left"
    assert a.wait_for_end() == 0
    until(lambda: b.roles().keys() == {2, 3}, "two are left")
    until(lambda: sorted(b.roles().values()) == ["leader", "learner"], "one of two votes")
    refused = a.refused_up()
    assert refused["code"] == "HostRemoved" and "left cluster" in refused["found"]
    for id in held:
        b.cli("cancel", id)
    assert b.ended("--", "true")["state"] == "succeeded"

    # A host that is gone is removed by another; when it comes back it is refused, and says why.
    held = [b.submit("--gpus", "1", "--", "sleep", "60") for _ in range(2)]
    until(lambda: [b.job(id)["state"] for id in held] == ["running"] * 2, "both run")
    lost, stays = (c, b) if b.roles()[2] == "leader" else (b, c)
    number = "3" if lost is c else "2"
    lost.kill()
    until(lambda: stays.hosts()[int(number)]["health"] in ("unreachable", "failed"), "it is missed")
    refused = stays.cli("leave", "--host", number, "--json", check=False)
    assert refused.returncode != 0 and "--force" in refused.stdout
    gone = stays.cli_json("leave", "--host", number, "--force")
    assert gone["state"] == "left" and gone["lost"]
    assert stays.roles().keys() == {int(number) ^ 1}
    error = lost.refused_up()
    assert error["code"] == "HostRemoved" and "was removed" in error["found"], error
    assert lost.refused_up()["code"] == "HostRemoved"
    # The last one that votes cannot leave.
    refused = stays.cli("leave", "--json", check=False)
    assert "last that may vote" in refused.stdout
