"""A real agent over a stub driver: GPUs are cut by command and for work, which sees its instance and no other."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.gpu.drivers.stubs import StubDriver
from tests.processes import until
from tests.system.agent import Agent
from tests.system.test_gpu_memory_watch import nvml  # noqa: F401 - a fixture

MakeAgent = Callable[..., Agent]
GPUS = [f"GPU-11111111-0000-0000-0000-{number:012d}" for number in range(2)]


@pytest.fixture
def agent(nvml: StubDriver, make_agent: MakeAgent) -> Agent:  # noqa: F811 - the fixture
    return make_agent("gpus.probe_interval_s=0.5", "gpus.mig=dynamic", gpus="nvidia").start()


def test_a_gpu_is_cut_used_and_put_together_over_a_killed_agent(agent: Agent) -> None:
    # Of a busy machine the first look at its GPUs may come after the agent is ready.
    until(lambda: len(agent.cli_json("gpus", "mig", "list")["gpus"]) == len(GPUS), what="its GPUs", within_s=60)
    made = agent.cli_json("gpus", "mig", "create", GPUS[0], "3g.40gb")["instance"]
    refused = agent.cli("gpus", "mig", "create", "GPU-1111", "3g.40gb", check=False)
    assert refused.returncode == 2
    assert "2 GPUs are called" in refused.stderr

    def list_instances() -> list[tuple[str, bool]]:
        gpus = agent.cli_json("gpus", "mig", "list")["gpus"]
        return [(each["uuid"], each["made_for_work"]) for gpu in gpus for each in gpu["instances"]]

    assert list_instances() == [(made, False)]
    seen = agent.cli("run", "--gpu-profile", "3g.40gb", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES").stdout.strip()
    assert seen == made
    client = agent.client()
    visible = client.options(gpu_profile="1g.10gb").submit(lambda: __import__("os").environ["CUDA_VISIBLE_DEVICES"])
    other = visible.result(timeout=60)
    assert other.startswith("MIG-")
    assert (other, True) in list_instances()
    client.close()

    words = ("run", "--detach", "--gpu-profile", "1g.10gb", "--json", "--", "sleep", "600")
    job_id = json.loads(agent.cli(*words).stdout)["job_id"]
    until(lambda: agent.cli_json("ps")["jobs"][0]["state"] == "running", what="it to run", within_s=60)
    (job,) = agent.cli_json("ps")["jobs"]
    assert job["enforced_by"].items() >= {"gpu_compute": "hardware", "gpu_memory": "hardware"}.items()
    assert "gpu memory: hardware" in agent.cli("why", job_id).stdout
    agent.kill()
    agent.start()
    refused = agent.cli("gpus", "mig", "destroy", other, check=False)
    assert "work is on it" in refused.stderr
    agent.cli("cancel", job_id)
    agent.cli("run", "--gpus", "1", "--", "true")
    agent.cli("gpus", "mig", "destroy", made)
    words = ("run", "--gang", "2", "--gpus", "1", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    seen_by_ranks = sorted(word for word in agent.cli(*words).stdout.split() if word.startswith("GPU"))
    assert seen_by_ranks == GPUS, "both are whole again"
