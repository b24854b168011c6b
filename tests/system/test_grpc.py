"""The gRPC door as a process under an agent: it comes, comes again, ends with the agent; and the documents' program."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.processes import until
from tests.system.agent import Agent

pytestmark = pytest.mark.system
grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'actorgrid[grpc]'")
pytest.importorskip("grpc_health", reason="grpcio-health-checking is not installed")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    found = Agent(tmp_path_factory.mktemp("grpc") / "host", "grpc.listen=127.0.0.1:0").start()
    yield found
    found.close()


def doors(agent: Agent) -> list[psutil.Process]:
    """The processes of gRPC doors of that agent."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "actorgrid.actors.gateway.grpc_door.main" in words and str(agent.ready["url"]) in words[-1]:
            found.append(process)
    return found


def address(agent: Agent) -> str:
    """Where the door serves, once it does."""

    def found() -> str:
        told = json.dumps(agent.cli_json("inspect", "gateway"))
        text = re.search(r'"grpc": "(127\.0\.0\.1:\d+)"', told)
        return text[1] if text else ""

    return str(until(found, "the gRPC door"))


def test_the_examples_of_the_documents_run(agent: Agent, tmp_path: Path) -> None:
    page = (ROOT / "docs/grpc.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "example.py").write_text(program, encoding="utf-8")
    environment = {**os.environ, "ACTORGRID_DATA_DIR": str(agent.data_dir), "GRPC_ADDRESS": address(agent)}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "example.py"], capture_output=True, text=True, timeout=90, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["by gRPC", "succeeded", "NOT_FOUND"]


def test_a_door_that_dies_is_started_again_and_ends_with_its_agent(agent: Agent) -> None:
    first = address(agent)
    (before,) = doors(agent)
    os.kill(before.pid, signal.SIGKILL)
    until(lambda: [each.pid for each in doors(agent)] not in ([], [before.pid]), "another process")
    until(lambda: address(agent) != first, "its address")
    (now,) = doors(agent)
    agent.stop()
    assert not now.is_running() or now.status() == psutil.STATUS_ZOMBIE
