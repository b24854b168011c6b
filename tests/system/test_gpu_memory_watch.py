"""A real agent over a stub driver: work that overdraws its GPU memory is ended, and its neighbour is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.work.environment import host_tag
from actorgrid.actors.work.linux import MARK_ATTEMPT, MARK_HOST
from actorgrid.errors import WorkerLost
from tests.gpu.conftest import stub_library
from tests.gpu.drivers.build import NVML
from tests.gpu.drivers.stubs import StubDriver
from tests.processes import until
from tests.system.agent import Agent

MakeAgent = Callable[..., Agent]


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubDriver]:
    stub = StubDriver(NVML, stub_library(NVML), tmp_path / "nvml.state")
    stub.set(driver="600.01", cuda=13010, nvml="13.600.01")
    for name, value in stub.variables.items():
        monkeypatch.setenv(name, value)
    stub.add_machine(2)
    yield stub


@pytest.fixture
def agent(nvml: StubDriver, make_agent: MakeAgent) -> Agent:
    return make_agent("gpus.probe_interval_s=0.5", "gpus.probe_timeout_s=60", gpus="nvidia").start()


def command(agent: Agent, memory: str, marker: Path) -> tuple[str, int]:
    """A command with half of a GPU that writes its pid and waits: its job and that pid."""
    script = f"echo $$ > {marker}.new; mv {marker}.new {marker}; exec sleep 600"
    words = ("run", "--detach", "--gpus", "0.5", "--gpu-memory", memory, "--json", "--", "sh", "-c", script)
    job_id = json.loads(agent.cli(*words).stdout)["job_id"]
    until(marker.exists, what="the command to run", within_s=60)
    return job_id, int(marker.read_text())


def test_who_overdraws_is_ended_with_the_numbers_and_the_neighbour_goes_on(
    nvml: StubDriver, agent: Agent, tmp_path: Path
) -> None:
    greedy, greedy_pid = command(agent, "2GiB", tmp_path / "greedy")
    modest, modest_pid = command(agent, "3GiB", tmp_path / "modest")
    client = agent.client()

    def job(job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = client.http.get(f"/api/jobs/{job_id}")
        return found

    nvml.put({f"{number}.processes": f"{greedy_pid}:9000,{modest_pid}:3100" for number in range(2)})
    until(lambda: job(greedy)["state"] == "failed", what="the greedy one to be ended", within_s=60)
    error = job(greedy)["error"]
    assert error["code"] == "MemoryLimitExceeded"
    assert "more memory of GPU" in error["message"]
    assert (error["asked"], error["found"]) == ("2048 MiB", "9000 MiB")
    assert job(modest)["state"] == "running"
    agent.cli("cancel", modest)


def test_a_session_worker_that_overdraws_is_ended_and_its_task_says_why(nvml: StubDriver, agent: Agent) -> None:
    def hold(path: str) -> None:
        import os
        import time
        from pathlib import Path

        Path(path).write_text(str(os.getpid()))
        time.sleep(600)

    client = agent.client()
    marker = agent.data_dir.parent / "worker"
    future = client.options(gpus=0.5, gpu_memory="1GiB", retries=0).submit(hold, str(marker))
    until(lambda: marker.exists() and marker.read_text() != "", what="the task to run", within_s=60)
    nvml.put({f"{number}.processes": f"{int(marker.read_text())}:7000" for number in range(2)})
    with pytest.raises(WorkerLost, match="gpu_memory"):
        future.result(timeout=60)


def test_a_foreign_process_is_told_and_left_alone_and_what_escaped_of_ended_work_is_ended(
    nvml: StubDriver, agent: Agent
) -> None:
    nvml.put({"0.processes": f"{os.getpid()}:5000"})

    def told() -> bool:
        found = agent.cli_json("inspect", "gpu_coordinator")["inspect"]["status"]["gpu_users"]["ungranted"]
        return [(one["pid"], one["memory_mib"]) for one in found] == [(os.getpid(), 5000)]

    until(told, what="the foreign process to be told", within_s=60)
    agent.cli("config", "set", "gpus.ungranted_grace_s", "1")
    agent.cli("config", "set", "gpus.ungranted", "end-own")
    marks = {MARK_HOST: host_tag(agent.data_dir), MARK_ATTEMPT: "j-ended-long-ago.1"}
    with subprocess.Popen(["sleep", "600"], env={**os.environ, **marks}) as left:
        nvml.put({"0.processes": f"{os.getpid()}:5000,{left.pid}:3000"})
        assert left.wait(60) == -signal.SIGTERM, "what escaped of ended work"
    nvml.put({"0.processes": f"{os.getpid()}:5000"})

    def ended() -> bool:
        users = agent.cli_json("inspect", "gpu_coordinator")["inspect"]["status"]["gpu_users"]
        said = {(event["pid"], event["whose"], event["what"]) for event in users["ungranted_events"]}
        return {(left.pid, "ended work", what) for what in ("is told to end", "has ended")} <= said

    until(ended, what="its end to be told", within_s=60)
    assert told(), "and of the stranger it is only told"
