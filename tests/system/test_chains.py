"""Agent, zygote and all shims are killed at once, under load: what keeps forking and leaving is gone with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from actorgrid.actors.work.containment import KINDS, choose
from tests.processes import until
from tests.system.agent import Agent
from tests.work import chains

CHAINS = 20
WALKED_HOP_S = 0.2  # see tests/work/test_containment.py


@pytest.fixture
def name() -> Iterator[str]:
    made = f"chain-{uuid.uuid4().hex}"
    yield made
    while left := chains.found(made):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def load(request: pytest.FixtureRequest) -> Iterator[None]:
    command = [sys.executable, "-S", "-c", "while True: pass"]
    busy = [subprocess.Popen(command) for _ in range(request.param)]
    yield
    for process in busy:
        process.kill()
        process.wait()


@pytest.mark.parametrize("load", [2, pytest.param(60, marks=pytest.mark.soak)], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_chains_are_gone_when_all_that_is_ours_is_killed(kind: str, load: None, name: str, tmp_path: Path) -> None:
    if kind != "none" and not (found := choose(kind)).holds:
        pytest.skip(f"this machine offers no {kind}: {found.why}")
    hop_s = WALKED_HOP_S if kind == "none" else chains.HOP_S
    agent = Agent(tmp_path / "data", f"work.containment={kind}").start()
    try:
        with agent.client() as client:
            command = chains.command(name, CHAINS, tmp_path / "flag", hop_s)
            client.submit_job(command=command, max_isolation_s=600)
            until((tmp_path / "flag").exists, "the chains")
            assert client.hosts()[0]["containment"] == kind
        for pid in shims(agent.data_dir):
            os.kill(pid, signal.SIGKILL)
        agent.kill()
        until(lambda: chains.gone(name), "the end of the chains")
    finally:
        agent.close()


def shims(data_dir: Path) -> list[int]:
    """By the lock that each holds in its folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"actorgrid: shim "):
                continue
            opened = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            if any(path.startswith(f"{data_dir}/") for path in opened):
                found.append(int(pid))
    return found
