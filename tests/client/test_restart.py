from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import actorgrid
from tests.client.stand_in import wait_until

ROOT = Path(__file__).resolve().parents[2]


# Work outlives the agent for this long. How long a start takes on a busy machine is not what is asked here.
PATIENT = ("--set", "work.max_isolation_s=120")


class Agent:
    """An agent that can be killed and started again on the same port."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        command = ["up", "--json", "--port", str(self.port), "--data-dir", str(self.data_dir), "--gpus", "4xH100-80GB"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "actorgrid", *command, *PATIENT],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        self.port = int(ready["url"].rpartition(":")[2])

    def end(self, number: int) -> None:
        if self.process is not None:
            assert self.process.stdout is not None
            self.process.send_signal(number)
            self.process.stdout.close()
            self.process.wait(60)
            self.process = None


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path / "host")
    agent.up()
    yield agent
    agent.end(signal.SIGTERM)


@pytest.mark.system
def test_tasks_and_jobs_outlive_a_killed_agent(agent: Agent, tmp_path: Path) -> None:
    def wait_for(gate: str, mark: str) -> str:
        with open(mark, "a") as file:
            file.write("ran\n")
        until = time.monotonic() + 60
        while not os.path.exists(gate) and time.monotonic() < until:
            time.sleep(0.01)
        return "done"

    gate, marks = tmp_path / "gate", [tmp_path / "task", tmp_path / "job"]
    with actorgrid.connect(data_dir=agent.data_dir) as client:
        task = client.submit(wait_for, str(gate), str(marks[0]))
        job = client.submit(wait_for, str(gate), str(marks[1]), durable=True)
        wait_until(lambda: all(mark.exists() for mark in marks), 30)
        agent.end(signal.SIGKILL)
        late = client.submit(abs, -5)
        agent.up()
        gate.touch()
        assert task.result(60) == "done"
        assert job.result(60) == "done"
        assert late.result(60) == 5
        assert [mark.read_text() for mark in marks] == ["ran\n", "ran\n"]
