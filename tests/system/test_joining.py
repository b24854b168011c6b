"""Hosts that form a cluster by token: real agents of one machine, each on ports of its own."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

from tests.processes import until
from tests.system.cluster_host import ADDRESS, ClusterHost, ran_on


def test_two_hosts_form_a_cluster_and_run_each_others_jobs(make_host: Callable[..., ClusterHost]) -> None:
    first, second = make_host("first", 1).found(), make_host("second", 2)
    token = first.token()
    with socket.create_connection((ADDRESS, first.base_port + 3)) as stranger, suppress(ConnectionError):
        stranger.sendall(b"GET / HTTP/1.0\r\n\r\n" * 100)
        assert stranger.recv(1024) == b""
    second.join(first, token["token"])
    until(lambda: first.roles() == second.roles() == {1: "leader", 2: "learner"}, "both know both")
    hosts = second.hosts()
    # Asked of the one, placed by the other, run where there is room for it.
    job = first.ended("--gpus", "2", "--", "sh", "-c", "exit 0")
    assert (job["state"], ran_on(job)) == ("succeeded", hosts[2]["node_id"])
    held = second.submit("--gpus", "2", "--", "sleep", "60")
    until(lambda: first.job(held)["state"] == "running", "the second host is full")
    job = second.ended("--gpus", "1", "--", "sh", "-c", "exit 3")
    assert (job["state"], ran_on(job)) == ("failed", hosts[1]["node_id"])
    first.cli("cancel", held)
    until(lambda: second.job(held)["state"] == "cancelled", "a job of another host is cancelled")

    # The token is used up; what else is wrong with one is said as plainly.
    third = make_host("third", 1)
    assert third.refused(first.door, token["token"])["code"] == "JoinTokenUsed"
    revoked = first.token()
    second.cli("token", "revoke", revoked["id"])
    assert third.refused(first.door, revoked["token"])["code"] == "JoinTokenRevoked"
    last = revoked["token"][-1]
    assert third.refused(first.door, revoked["token"][:-1] + ("x" if last != "x" else "y"))["code"] == (
        "MalformedJoinToken"
    )
    other = make_host("other", 1).found()
    assert third.refused(first.door, other.token()["token"])["code"] == "WrongCluster"
    elsewhere = third.refused(second.door, first.token()["token"])
    assert elsewhere["code"] == "WrongState" and first.door in elsewhere["hint"]
    assert [token["revoked_at"] is not None for token in second.cli_json("token", "list")["tokens"]].count(True) == 1

    # A later start needs neither token nor address.
    second.stop()
    second.start()
    until(lambda: second.roles() == {1: "leader", 2: "learner"}, "the second host is back")
    assert second.hosts()[2]["incarnation"] == 2


def test_three_hosts_lose_their_leader_and_another_grants(make_host: Callable[..., ClusterHost]) -> None:
    hosts = [make_host("a", 1).found(), make_host("b", 2), make_host("c", 2)]
    token = hosts[0].token("--uses", "2")["token"]
    for host in hosts[1:]:
        host.join(hosts[0], token)
    until(lambda: hosts[2].roles() == {1: "leader", 2: "voter", 3: "voter"}, "three that vote")
    blocked = [hosts[1].submit("--gpus", "2", "--", "sleep", "600") for _ in range(2)]
    until(lambda: [hosts[1].job(id)["state"] for id in blocked] == ["running"] * 2, "no two GPUs are free on one host")
    client = hosts[0].client()
    waiting = client.submit(lambda: "its payload was not lost", durable=True, gpus=2).job_id
    until(lambda: waiting in [job["job_id"] for job in client.jobs()], "it is accepted")
    hosts[0].kill()
    until(lambda: "leader" in [hosts[1].roles()[node] for node in (2, 3)], "another leads")
    for id in blocked:
        hosts[2].cli("cancel", id)
    until(lambda: hosts[2].job(waiting)["state"] == "succeeded", "what the lost host had accepted is run elsewhere")
    assert hosts[1].client().result(waiting) == "its payload was not lost"
    job = hosts[2].ended("--gpus", "2", "--", "sh", "-c", "exit 0")
    assert job["state"] == "succeeded"
    until(
        lambda: "unreachable" in [host.hosts()[1]["health"] for host in hosts[1:]],
        "the leader knows that the first is gone",
    )
    # Five would not fit without the first host's GPU; four run, and the fifth waits.
    held = [hosts[1].submit("--gpus", "1", "--", "sleep", "60") for _ in range(5)]
    until(lambda: [hosts[1].job(id)["state"] for id in held].count("running") == 4, "four run")
    assert [hosts[2].job(id)["state"] for id in held].count("queued") == 1
    hosts[0].start()
    until(lambda: [hosts[0].job(id)["state"] for id in held].count("running") == 5, "the fifth runs on the first")
    for id in held:
        hosts[1].cli("cancel", id)
    until(lambda: {hosts[0].job(id)["state"] for id in held} == {"cancelled"}, "all five are cancelled")
    until(lambda: hosts[0].roles()[1] == "voter", "the first is back, and follows")
    assert hosts[0].job(job["job_id"])["state"] == "succeeded"
