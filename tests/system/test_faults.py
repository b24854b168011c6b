"""Real agents in trouble: what is found, what is done about it, once, and what is left alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.processes import until
from tests.system.agent import Agent
from tests.system.cluster_host import ClusterHost

FAULTS = {"interval_s": 1, "repeat_s": 2, "disk_probe_s": 1, "recovered_s": 600}
LONG_S = 120.0


def settings(hook: list[str] | None = None, **more: Any) -> list[str]:
    found = [f"faults.{name}={value}" for name, value in {**FAULTS, **more}.items()]
    # The watchdog would end a stopped server before the FaultDetector says anything of it.
    found.append("monitoring.hang_margin_s=300")
    return [*found, "faults.node_restart=command", f"faults.command={json.dumps(hook)}"] if hook else found


def trio(make_host: Callable[..., ClusterHost], *flags: str) -> list[ClusterHost]:
    """Three hosts that vote, of which the first leads."""
    hosts = [make_host(name, 1) for name in "abc"]
    for host in hosts:
        host.settings += flags
    hosts[0].found()
    token = hosts[0].token("--uses", "2")["token"]
    for host in hosts[1:]:
        host.join(hosts[0], token)
    until(lambda: hosts[0].roles() == {1: "leader", 2: "voter", 3: "voter"}, "three that vote", LONG_S)
    return hosts


def host_id(host: Agent) -> str:
    return str(json.loads((host.data_dir / "host.json").read_text())["host_id"])


def why(asked: Agent, about: Agent) -> dict[str, Any]:
    found: dict[str, Any] = asked.cli_json("why", "host", host_id(about))
    return found


def done(asked: Agent, about: Agent) -> list[tuple[str, str]]:
    """What was done about a host, oldest first, and how it ended."""
    return [(each["action"], each["outcome"]) for each in why(asked, about)["actions"]][::-1]


def stop_server(host: Agent, name: str) -> int:
    pid = until(lambda: host.pid_of(name), f"the process of {name}")
    os.kill(pid, signal.SIGSTOP)
    return int(pid)


def test_a_server_that_stands_still_is_restarted_and_again_moves_the_work_unless_it_is_under_maintenance(
    make_host: Callable[..., ClusterHost],
) -> None:
    first, second, third = trio(
        make_host, *settings(work_redistribution_at=2, node_restart_at=50, cluster_rebalance_at=60)
    )
    # One whose owner works on it: nothing is done, and what fails meanwhile does not count.
    first.cli("maintenance", "start", host_id(third), "--for", "1h", "--reason", "new fans")
    held = stop_server(third, "load_balancer")
    was = stop_server(second, "load_balancer")
    until(lambda: ("process_restart", "done") in done(first, second), "it is restarted", LONG_S)
    until(lambda: (pid := second.pid_of("load_balancer")) and pid != was, "it runs again", LONG_S)
    answer = until(
        lambda: found if (found := why(second, third))["checks"][0]["status"] == "failed" else None, "it fails", LONG_S
    )
    assert answer["condition"] == "maintenance" and answer["actions"] == []
    assert answer["maintenance"]["reason"] == "new fans" and "maintenance until" in answer["next"]["held_back"]
    assert "new fans" in first.cli("maintenance", "list").stdout
    # The second time is flapping: its work goes elsewhere, and it is not taken for recovered at once.
    until(lambda: why(first, second)["checks"][0]["status"] != "failed", "it is well", LONG_S)
    stop_server(second, "load_balancer")
    until(lambda: ("work_redistribution", "done") in done(first, second), "it gets nothing new", LONG_S)
    assert why(first, second)["draining"] is True
    shown = first.cli("why", "host", host_id(second)).stdout
    assert "process_restart" in shown and "what to try" in shown
    rows = first.cli_json("faults", "--actions")["faults"]
    assert {row["what"] for row in rows} >= {"process_restart", "work_redistribution"}
    # Nothing was done about the one that is worked on, and when that is over it is dealt with as any other.
    assert done(first, third) == []
    # One that was stopped within a handler has been ended by its own host's watchdog.
    with suppress(ProcessLookupError):
        os.kill(held, signal.SIGCONT)
    assert first.cli_json("maintenance", "end", host_id(third))["was"] is True
    assert first.cli_json("maintenance", "list") == {"maintenance": []}


def test_a_machine_is_restarted_by_the_hook_once_though_its_leader_dies_meanwhile(
    make_host: Callable[..., ClusterHost], tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    hook = ["sh", "-c", 'echo "$0 {host_id}" >> "$1"; exec sleep 60', "restart", str(ran)]
    first, second, third = trio(
        make_host, *settings(hook, node_restart_at=3, work_redistribution_at=3, cluster_rebalance_at=1000)
    )
    third.kill()
    until(ran.exists, "the hook runs", LONG_S)
    assert why(first, third)["actions"][0]["outcome"] == "", "it is under way"
    first.kill()
    first.start()
    ended = until(
        lambda: [each for each in done(second, third) if each[1]] if _answers(second, third) else None,
        "the next leader gives it up",
        LONG_S,
    )
    assert ended == [("node_restart", "unknown")]
    later = until(lambda: found if (found := why(second, third))["failures"] > 8 else None, "it goes on", LONG_S)
    assert [each["action"] for each in later["actions"]] == ["node_restart"]
    assert ran.read_text().split() == ["restart", host_id(third)]
    assert later["condition"] in ("away", "lost") and later["next"]["action"] == "cluster_rebalance"


def _answers(asked: Agent, about: Agent) -> bool:
    with suppress(AssertionError):
        why(asked, about)
        return True
    return False


def test_a_disk_that_gets_slower_is_predicted_before_it_is_slow(
    make_agent: Callable[..., Agent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library, slower = tmp_path / "slow_disk.so", tmp_path / "slower"
    source = Path(__file__).with_name("slow_disk.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"], check=True)
    slower.write_text("5000")
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("SLOW_DISK", str(slower))
    agent = make_agent("faults.interval_s=0.5", "faults.disk_probe_s=0.2", gpus="none").start()
    row = until(
        lambda: next((row for row in agent.cli_json("faults")["faults"] if row["kind"] == "prediction"), None),
        "it is predicted",
        LONG_S,
    )
    assert row["what"] == "disk_latency_trend" and row["reason"].startswith("predicted: its writes get slower")
    checks = {each["name"]: each for each in agent.cli_json("why", "host", host_id(agent))["checks"]}
    assert checks["disk_latency_trend"]["evidence"]["ms_per_minute"] > 50
    assert not any(row["kind"] == "action" for row in agent.cli_json("faults")["faults"]), "nothing has failed"
