"""Restart storms: a child that dies again and again takes its supervisor along at the intensity, never the machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from actorgrid.errors import RestartIntensityExceeded
from actorgrid.supervisors.child import SupervisorFlags
from actorgrid.supervisors.tree import Tree, TreeFailed
from tests.otp.limits_servers import HERE, branch, notes, to_its_end, until, worker
from tests.processes import is_alive
from tests.system.agent import Agent

ROOT = Path(__file__).resolve().parents[2]


def failure_of(tree: Tree) -> RestartIntensityExceeded:
    failures = [event.error for event in to_its_end(tree) if isinstance(event, TreeFailed)]
    assert len(failures) == 1, failures
    assert isinstance(failures[0], RestartIntensityExceeded)
    return failures[0]


def descendants() -> list[int]:
    return [child.pid for child in psutil.Process().children(recursive=True)]


def test_a_child_that_dies_again_and_again_ends_its_tree_in_order_at_the_intensity(tmp_path: Path) -> None:
    children = worker("first"), worker("dies", "DiesAtOnce"), worker("last")
    with Tree() as tree:
        tree.up(HERE + "Branch", str(tmp_path), SupervisorFlags(intensity=3, period_s=600.0), children)
        error = failure_of(tree)
    seen = notes(tmp_path)
    assert Counter(seen)["dies start"] == 1 + 3
    assert seen[-2:] == ["last stop", "first stop"]
    assert Counter(line.split()[0] for line in seen if line.endswith("start"))["first"] == 1
    assert "dies ended again after 3 restarts in 600 s" in error.message
    assert "exit status 3" in error.found
    assert error.hint
    assert error.details == {"supervisor": "root", "child": "dies"}


def test_a_branch_that_gives_up_is_built_again_until_its_supervisor_gives_up_too(tmp_path: Path) -> None:
    storm = branch(
        "storm",
        SupervisorFlags(intensity=2, period_s=600.0),
        worker("lower"),
        worker("dies", "DiesAtOnce"),
        worker("upper"),
    )
    flags = SupervisorFlags(intensity=1, period_s=600.0)
    with Tree() as tree:
        tree.up(HERE + "Branch", str(tmp_path), flags, (worker("elder"), storm, worker("younger")))
        error = failure_of(tree)
    seen = notes(tmp_path)
    started = Counter(line.removesuffix(" start") for line in seen if line.endswith(" start"))
    assert started == {"elder": 1, "younger": 1, "lower": 2, "upper": 2, "dies": 2 * 3}
    stops = [line.removesuffix(" stop") for line in seen if line.endswith(" stop")]
    assert stops == ["upper", "lower", "upper", "lower", "younger", "elder"]
    assert "storm ended again after 1 restarts in 600 s" in error.message
    assert "dies ended again after 2 restarts in 600 s" in error.found, "what the storm began with is to be read"
    assert error.hint
    assert error.details == {"supervisor": "root", "child": "storm"}


def test_no_process_is_left_of_a_tree_that_gave_up(tmp_path: Path) -> None:
    with Tree() as tree:
        pids = [tree.admin_pid]
        flags = SupervisorFlags(intensity=2, period_s=600.0)
        pids.append(tree.up(HERE + "Branch", str(tmp_path), flags, (worker("calm"), worker("dies", "DiesAtOnce"))))
        failure_of(tree)
        # What the kernel closed last, it may still be clearing away.
        until(lambda: not any(map(is_alive, descendants())), "the end of all processes")
    assert not any(map(is_alive, pids))


def test_a_host_whose_child_dies_again_and_again_stops_the_others_and_says_why(tmp_path: Path) -> None:
    specs: list[dict[str, Any]] = [
        {"id": "first", "kind": HERE + "Worker"},
        {"id": "dies", "kind": HERE + "DiesAtOnce"},
        {"id": "last", "kind": HERE + "Worker"},
    ]
    (tmp_path / "die").touch()
    host = subprocess.run(
        [sys.executable, "-m", "tests.host.host_process", str(tmp_path), json.dumps(specs)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert host.returncode == RestartIntensityExceeded.exit_code == 1
    error = json.loads(host.stdout.splitlines()[-1])["error"]
    assert error["code"] == "RestartIntensityExceeded"
    assert error["message"] == "dies ended again after 10 restarts in 30 s"
    assert "exit status 3" in error["found"] and error["hint"]
    seen = notes(tmp_path)
    assert Counter(seen)["dies start"] == 11
    assert seen[-2:] == ["last stop", "first stop"]


@pytest.mark.system
def test_actorgrid_up_says_on_stderr_which_server_did_not_stay_up(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "data")
    command = [argument for argument in agent.command() if argument != "--json"]
    killed: dict[int, float] = {}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        agent.process = process  # type: ignore[assignment]
        try:
            until((agent.data_dir / "agent.json").exists, "the host is up")
            while process.poll() is None and len(killed) < 30 and not is_storm(list(killed.values())):
                pid = until(lambda: process.poll() is not None or new(agent, killed), "a load balancer, or the end")
                if pid is not True:
                    os.kill(pid, signal.SIGKILL)
                    killed[pid] = time.monotonic()
            stormy = is_storm(list(killed.values()))
            if process.poll() is None and not stormy:
                pytest.skip(f"too busy a machine for a storm: {len(killed)} restarts, never 11 of them in 30 s")
            said = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert process.returncode == RestartIntensityExceeded.exit_code == 1
    assert stormy, "it ended before there was reason to"
    assert "load_balancer ended again after 10 restarts in 30 s" in said
    assert "killed by SIGKILL" in said
    assert "Traceback" not in said


def is_storm(ends_s: list[float]) -> bool:
    """Whether the last of them is one too many in 30 s: only then is the host to end."""
    return len(ends_s) > 10 and ends_s[-1] - ends_s[-11] < 30.0


def new(agent: Agent, killed: dict[int, float]) -> int | None:
    try:
        pid = agent.pid_of("load_balancer")
    except psutil.NoSuchProcess:
        return None
    return pid if pid is not None and pid not in killed and is_alive(pid) else None
