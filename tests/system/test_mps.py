"""A real agent over stub drivers: shares of a GPU are put under MPS, and are counted alone when its daemon dies."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import stub_library
from tests.gpu.drivers.build import NVML
from tests.gpu.drivers.mps_stub import MpsStub
from tests.gpu.drivers.stubs import StubDriver
from tests.processes import until
from tests.system.agent import Agent

MakeAgent = Callable[..., Agent]


@pytest.fixture
def mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MpsStub]:
    nvml, stub = StubDriver(NVML, stub_library(NVML), tmp_path / "nvml.state"), MpsStub(tmp_path)
    nvml.set(driver="600.01", cuda=13010, nvml="13.600.01")
    for name, value in {**nvml.variables, **stub.variables}.items():
        monkeypatch.setenv(name, value)
    nvml.add_gpu(0)
    yield stub
    stub.close()


def test_work_and_workers_with_a_share_are_under_mps_and_say_so(
    mps: MpsStub, make_agent: MakeAgent, tmp_path: Path
) -> None:
    agent = make_agent("gpus.probe_interval_s=0.5", "gpus.probe_timeout_s=60", "gpus.mps=true", gpus="nvidia").start()
    client = agent.client()

    def job(job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = client.http.get(f"/api/jobs/{job_id}")
        return found

    said = tmp_path / "said"
    script = f"env | grep ^CUDA_MPS > {said}.new; mv {said}.new {said}; exec sleep 600"
    words = ("run", "--detach", "--gpus", "0.5", "--gpu-memory", "10GiB", "--json", "--", "sh", "-c", script)
    job_id = json.loads(agent.cli(*words).stdout)["job_id"]
    until(said.exists, what="the command to run", within_s=60)
    variables = dict(line.split("=", 1) for line in said.read_text().splitlines())
    (daemon,) = mps.daemons()
    assert variables == {
        "CUDA_MPS_PIPE_DIRECTORY": daemon["CUDA_MPS_PIPE_DIRECTORY"],
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=10240M",
    }
    until(
        lambda: job(job_id)["enforced_by"].items() >= {"gpu_compute": "driver", "gpu_memory": "driver"}.items(),
        what="the word that the driver holds it to its share",
        within_s=60,
    )

    def percentage() -> str:
        import os

        return os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "")

    assert client.options(gpus=0.25).submit(percentage).result(timeout=60) == "25"
    os.kill(daemon["pid"], signal.SIGKILL)
    until(
        lambda: job(job_id)["enforced_by"].items() >= {"gpu_compute": "none", "gpu_memory": "cooperative"}.items(),
        what="the word that nobody does",
        within_s=60,
    )
    status = agent.cli_json("inspect", "gpu_coordinator")["inspect"]["status"]["mps"]
    assert status["without"][0].startswith(job_id)
    agent.cli("cancel", job_id)
