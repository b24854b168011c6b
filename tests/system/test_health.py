"""What a cluster of three real hosts says of itself while they go: one, then two."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from tests.processes import until
from tests.system.cluster_host import ClusterHost, ran_on


def ready(host: ClusterHost) -> tuple[int, dict[str, Any]]:
    """Status and answer of /readyz, as a load balancer asks it."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{host.base_port}/readyz", timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def metric(host: ClusterHost, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{host.base_port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name}{{")).rpartition(" ")[2])


def findings(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in summary["findings"]}


def test_health_is_of_the_cluster_while_its_hosts_go_one_after_the_other(
    make_host: Callable[..., ClusterHost],
) -> None:
    hosts = [make_host("a", 8).found(), make_host("b", 8), make_host("c", 8)]
    token = hosts[0].token("--uses", "2")["token"]
    for host in hosts[1:]:
        host.join(hosts[0], token)
    until(lambda: hosts[2].roles() == {1: "leader", 2: "voter", 3: "voter"}, "three that vote")
    nodes = {node: str(host["node_id"]) for node, host in hosts[0].hosts().items()}

    def status(host: ClusterHost) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(host.cli("status", "--json", check=False).stdout)
        return found

    for host in hosts:
        until(lambda host=host: status(host)["health"] == "healthy", "all is well")  # type: ignore[misc]
        assert (status(host)["hosts_present"], status(host)["gpus_present"]) == (3, 24)

    # One job on each host, as each has eight GPUs.
    jobs = [hosts[0].submit("--gpus", "8", "--max-isolation", "600", "--", "sleep", "600") for _ in hosts]
    until(lambda: all(hosts[0].job(id)["state"] == "running" for id in jobs), "they run")
    of_third = next(id for id in jobs if ran_on(hosts[0].job(id)) == nodes[3])
    of_first = next(id for id in jobs if ran_on(hosts[0].job(id)) == nodes[1])

    hosts[2].kill()
    for host in hosts[:2]:  # the host that leads, and one that does not
        until(lambda host=host: status(host)["hosts_present"] == 2, "it is missed")  # type: ignore[misc]
        found = status(host)
        assert (found["health"], found["ready"], found["can_commit"]) == ("degraded", True, True)
        assert (found["hosts"], found["gpus"], found["gpus_present"]) == (3, 24, 16)
        gone = findings(found).get("hosts_away") or findings(found)["hosts_lost"]
        assert gone["hosts"] == [nodes[3]] and gone["since"] is not None and gone["try"]
        assert host.cli("status").returncode == 0
        assert host.cli("status", "--strict", check=False).returncode == 1
        text = host.cli("status").stdout
        assert "hosts  2 of 3" in text and "16 of 24" in text and "8 away" in text
        assert ready(host)[0] == 200
        # Its work is not shown as what is known of work that runs.
        assert "its host" in host.job(of_third)["unconfirmed"] and host.job(of_first)["unconfirmed"] is None
        listed = {job["job_id"]: job for job in host.cli_json("ps")["jobs"]}
        assert listed[of_third]["unconfirmed"] and not listed[of_first].get("unconfirmed")
        assert "running?" in host.cli("ps").stdout
        devices = host.cli_json("gpus")["gpus"]
        assert {each["presence"] for each in devices if each["host"] == nodes[3]} <= {"away", "lost"}
        assert {each["presence"] for each in devices if each["host"] != nodes[3]} == {"present"}
    doctor = hosts[1].cli("doctor", check=False)
    assert doctor.returncode == 1 and "1 of 3 hosts is" in doctor.stdout

    hosts[1].kill()
    alone = hosts[0]
    until(lambda: status(alone)["health"] == "no_quorum", "it knows that it is alone")
    found = status(alone)
    assert (found["ready"], found["can_commit"], found["hosts_present"]) == (False, False, 1)
    problem = findings(found)["no_quorum"]
    assert (problem["level"], sorted(problem["hosts"])) == ("critical", sorted([nodes[2], nodes[3]]))
    assert "1 of 3 voters" in problem["found"]
    done = alone.cli("status", check=False)
    assert done.returncode == 1 and "no_quorum, not ready" in done.stdout and "last known" in done.stdout
    code, answer = ready(alone)
    assert (code, answer["ready"], answer["health"]) == (503, False, "no_quorum")
    assert metric(alone, "actorgrid_cluster_can_commit") == 0 and metric(alone, "actorgrid_cluster_no_quorum") == 1
    doctor = alone.cli("doctor", check=False)
    assert doctor.returncode == 1 and "no majority" in doctor.stdout
    for command in ("ps", "hosts", "gpus"):
        assert alone.cli_json(command)["last_known"]["age_s"] > 0
        done = alone.cli(command)
        assert done.stderr.startswith("last known ") and "no majority" in done.stderr, done.stderr
    shown = {job["job_id"]: job for job in alone.cli_json("ps")["jobs"]}
    assert shown[of_first].get("unconfirmed") is None, "its own it knows"
    assert all(shown[id]["unconfirmed"] for id in jobs if id != of_first)
    why = alone.cli("why", of_third)
    assert "no majority" in why.stdout

    hosts[1].start()
    hosts[2].start()
    until(lambda: status(alone)["health"] == "healthy", "all are back")
    assert status(alone)["last_known"] is None and ready(alone)[0] == 200
    for id in jobs:
        alone.cli("cancel", id)
