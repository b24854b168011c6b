"""Heat and power of real agents over a stub driver: work leaves a device in time, and a cluster keeps its budget."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import stub_library
from tests.gpu.drivers.build import NVML
from tests.gpu.drivers.stubs import StubDriver
from tests.gpu.test_heat import limit_of
from tests.processes import until
from tests.system.agent import Agent
from tests.system.cluster_host import ClusterHost

MakeAgent = Callable[..., Agent]
MakeStub = Callable[[str], StubDriver]


@pytest.fixture
def make_stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeStub:
    """Stub drivers with two GPUs of their own; agents that are started afterwards find the last one."""

    def make(name: str) -> StubDriver:
        stub = StubDriver(NVML, stub_library(NVML), tmp_path / f"{name}.state")
        stub.set(driver="600.01", cuda=13010, nvml="13.600.01")
        for variable, value in stub.variables.items():
            monkeypatch.setenv(variable, value)
        stub.add_machine(2)
        stub.put({f"{number}.uuid": f"GPU-{name}-{number}" for number in range(2)})
        return stub

    return make


def test_work_leaves_a_device_that_is_about_to_switch_itself_off(make_stub: MakeStub, make_agent: MakeAgent) -> None:
    nvml = make_stub("a")
    agent = make_agent("gpus.probe_interval_s=0.5", "gpus.heat_control=stop", gpus="nvidia").start()
    words = ("run", "--detach", "--gpus", "1", "--retries", "0", "--json", "--", "sleep", "600")
    job_id = json.loads(agent.cli(*words).stdout)["job_id"]

    def job() -> dict[str, Any]:
        found: dict[str, Any] = agent.client().http.get(f"/api/jobs/{job_id}")
        return found

    until(lambda: job()["state"] == "running", what="the job to run", within_s=60)
    (hot,) = job()["attempts"][0]["gpu_uuids"]
    nvml.put({f"{hot[-1]}.temp": 91})
    until(lambda: len(job()["attempts"]) == 2 and job()["state"] == "running", what="another device", within_s=60)
    first, second = job()["attempts"]
    assert (first["state"], first["error"]["code"]) == ("lost", "WorkerLost")
    assert "was at 91 °C and about to switch itself off" in first["error"]["message"]
    assert second["gpu_uuids"] != [hot]
    assert limit_of(nvml, int(hot[-1])) == 200
    status = agent.cli_json("inspect", "gpu_coordinator")["inspect"]["status"]
    assert status["heat"]["devices"][hot]["stage"] == "emergency"
    agent.cli("cancel", job_id)
    agent.kill_main()
    until(lambda: limit_of(nvml, int(hot[-1])) == 700, what="its power, though its agent was killed", within_s=60)


def test_two_hosts_keep_one_budget_and_power_goes_where_it_is_drawn(
    make_stub: MakeStub, make_host: Callable[..., ClusterHost]
) -> None:
    stubs, hosts = [], []
    for name in ("a", "b"):
        stubs.append(make_stub(name))
        host = make_host(name, 1)
        host.gpus = "nvidia"
        host.settings = ["gpus.probe_interval_s=0.5", "gpus.power_budget_watts=1800"]
        hosts.append(host.join(hosts[0], hosts[0].token()["token"]) if hosts else host.found())
    busy, idle = stubs
    busy.put({f"{number}.power_mw": 690_000 for number in range(2)})

    def limits() -> list[float]:
        return [limit_of(stub, number) for stub in stubs for number in range(2)]

    until(lambda: limits() == [700, 700, 200, 200], what="the busy host to have what it wants", within_s=60)
    # More than any share of it: one that drew less than its new limit would give it back by the next look.
    idle.put({f"{number}.power_mw": 690_000 for number in range(2)})
    until(lambda: limits() == [450, 450, 450, 450], what="an even share when both are busy", within_s=60)
    assert sum(limits()) <= 1800


def test_work_leaves_a_simulated_device_that_its_script_heats(make_agent: MakeAgent, tmp_path: Path) -> None:
    script = tmp_path / "play.yaml"
    script.write_text("steps: [{at_s: 0, load_percent: 50}]")
    settings = ("gpus.probe_interval_s=0.5", "gpus.heat_control=stop", f"gpus.simulated_script={script}")
    agent = make_agent(*settings, gpus="simulated:2xH100-80GB").start()
    client = agent.client()
    job_id = client.submit_job(command=["sleep", "600"], gpus=1, cpus=0.1, retries=0)["job_id"]
    until(lambda: client.job(job_id)["state"] == "running", what="the job to run", within_s=60)
    (hot,) = client.job(job_id)["attempts"][0]["gpu_indexes"]
    script.write_text(
        f"steps: [{{at_s: 0, gpus: [{hot}], celsius: 50}}, {{at_s: 1, gpus: [{hot}], celsius: 99, ramp: true}}]"
    )
    until(
        lambda: len(client.job(job_id)["attempts"]) == 2 and client.job(job_id)["state"] == "running",
        what="the other device",
        within_s=60,
    )
    first, second = client.job(job_id)["attempts"]
    assert "about to switch itself off" in first["error"]["message"]
    assert second["gpu_indexes"] == [1 - hot]
    client.cancel(job_id)
