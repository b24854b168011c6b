"""inspect against a real host: the tree of its processes, a suspension, a trace, a death."""

from __future__ import annotations

import os
import signal
from typing import Any

from .conftest import Host, until

SERVERS = {
    "consensus",
    "distributed_state",
    "gpu_coordinator",
    "worker_manager",
    "cluster_manager",
    "load_balancer",
    "fault_detector",
    "gateway",
}


def nodes(host: Host) -> dict[str, dict[str, Any]]:
    found, waiting = {}, [host.json("inspect", "--json")["tree"]]
    while waiting:
        node = waiting.pop()
        found[node["name"]] = node
        waiting += node["children"]
    return found


def test_the_tree_holds_the_hosts_processes_as_the_kernel_knows_them(host: Host) -> None:
    found = nodes(host)
    assert SERVERS | {"host"} <= set(found)
    for name in SERVERS:
        node = found[name]
        assert node["inspect"]["pid"] == node["pid"] and os.path.exists(f"/proc/{node['pid']}")
        assert node["inspect"]["address"] == node["address"]
        assert node["started_at"] >= found["host"]["started_at"]
    assert host.call("inspect").stdout.splitlines()[1].startswith("host ")


def test_a_suspended_server_answers_nobody_until_it_is_resumed(host: Host) -> None:
    said = host.call("inspect", "load_balancer", "--suspend", "60")
    assert said.returncode == 0 and "suspended until" in said.stdout
    assert nodes(host)["load_balancer"]["inspect"]["state"] == "suspended"
    assert host.call("inspect", "load_balancer", "--resume").returncode == 0
    assert host.json("inspect", "load_balancer", "--json")["inspect"]["state"] == "running"


def test_every_server_takes_over_the_code_that_is_installed_and_goes_on(host: Host) -> None:
    before = nodes(host)
    for name in sorted(SERVERS - {"gateway"}):
        done = host.call("inspect", name, "--change-code")
        assert done.returncode == 0 and "has the code of actorgrid.actors." in done.stdout, (name, done.stderr)
    assert host.call("run", "--", "echo", "still here").stdout == "still here\n"
    after = nodes(host)
    for name in SERVERS:
        assert (after[name]["pid"], after[name]["state"]) == (before[name]["pid"], "up"), name
    assert host.call("inspect", "gateway", "--change-code").returncode == 2


def test_who_must_not_stand_still_is_refused(host: Host) -> None:
    for name in ("gateway", "host"):
        done = host.call("inspect", name, "--suspend")
        assert done.returncode == 2 and "not suspended from here" in done.stderr
    done = host.call("inspect", "gatewya")
    assert done.returncode == 4 and "did you mean gateway?" in done.stderr


def test_a_trace_shows_what_went_by(host: Host) -> None:
    assert host.call("inspect", "cluster_manager", "--trace", "200").returncode == 0
    assert host.call("hosts").returncode == 0
    assert "ListHosts" in host.call("inspect", "cluster_manager", "--trace").stdout
    assert host.call("inspect", "cluster_manager", "--trace", "0").returncode == 0


def test_a_killed_server_comes_back_and_its_end_is_told(host: Host) -> None:
    before = nodes(host)["gpu_coordinator"]
    os.kill(before["pid"], signal.SIGKILL)

    def back() -> Any:
        node = nodes(host)["gpu_coordinator"]
        return node if node["state"] == "up" and node["pid"] != before["pid"] and node["inspect"] else None

    after = until(back)
    assert after["restarts"] == before["restarts"] + 1 and after["address"] != before["address"]
    assert after["last_exit"]["kind"] == "killed"
    assert "killed by SIGKILL" in host.call("inspect").stdout
