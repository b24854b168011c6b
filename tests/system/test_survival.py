"""Deaths of the control plane, with real processes and real SIGKILLs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from actorgrid.configs.paths import HostPaths
from tests.processes import is_alive, until
from tests.system.agent import SERVERS, Agent, write_when_told

MakeAgent = Callable[..., Agent]


def started(folder: Path, name: str) -> int:
    path = folder / f"{name}.started"
    return int(until(lambda: path.exists() and path.read_text().strip(), f"{name} started"))


@pytest.mark.parametrize("server", SERVERS)
def test_a_killed_server_comes_back_and_running_work_does_not_notice(
    server: str, shared_agent: Agent, tmp_path: Path
) -> None:
    client = shared_agent.client()
    job = client.submit_job(command=["sh", "-c", write_when_told(tmp_path, "job")], gpus=0.5, cpus=0.1)
    pid = started(tmp_path, "job")
    assert client.submit(os.getpid, cpus=0.1).result(30) > 0

    before = shared_agent.pid_of(server)
    assert before is not None
    others = {name: shared_agent.pid_of(name) for name in SERVERS if name != server}
    os.kill(before, signal.SIGKILL)
    until(lambda: shared_agent.pid_of(server) not in (None, before), f"{server} is back")
    assert {name: shared_agent.pid_of(name) for name in others} == others

    assert is_alive(pid)
    assert client.submit(os.getpid, cpus=0.1).result(30) > 0
    second = client.run(["echo", "after"], gpus=0.5, cpus=0.1)
    assert (second.exit_code, second.stdout) == (0, b"after\n")
    (tmp_path / "job.go").touch()
    ended = until(lambda: (view := client.job(job_id(job), wait_s=5))["state"] == "succeeded" and view, "the job ended")
    assert [attempt["number"] for attempt in ended["attempts"]] == [1]
    assert (tmp_path / "job.done").read_text().strip() == str(pid)
    assert b"".join(client.logs(job_id(job))) == b"out-job\n"
    client.close()


def job_id(accepted: dict[str, object]) -> str:
    return str(accepted["job_id"])


def test_work_runs_on_without_the_agent_and_the_next_start_adopts_it(make_agent: MakeAgent, tmp_path: Path) -> None:
    # Its patience is not the subject: on a busy machine the next start may take longer than the 10 s of the default.
    agent = make_agent("work.max_isolation_s=120").start()
    client = agent.client()
    job = job_id(client.submit_job(command=["sh", "-c", write_when_told(tmp_path, "job")], gpus=1, cpus=0.1))
    script = tmp_path / "go"

    def wait_for_file(path: str) -> int:
        import os
        import select

        for _ in range(1200):
            if os.path.exists(path):
                return 42
            select.select([], [], [], 0.05)
        return 0

    function = client.submit(wait_for_file, str(script), gpus=0.5, cpus=0.1, durable=True)
    pid = started(tmp_path, "job")
    # Durable work is sent in batches, soon after its future was given.
    until(lambda: function.job_id in {job["job_id"] for job in client.jobs("running")}, "the function runs")
    client.close()
    agent.kill()
    assert is_alive(pid)
    (tmp_path / "job.go").touch()
    until((tmp_path / "job.done").exists, "the command ended while no agent was there")

    agent.start()
    client = agent.client()
    script.touch()
    for name in (job, function.job_id):
        ended = until(lambda name=name: (v := client.job(name, wait_s=5))["state"] == "succeeded" and v, f"{name} ends")
        assert [attempt["number"] for attempt in ended["attempts"]] == [1]
    assert b"".join(client.logs(job)) == b"out-job\n"
    assert client.result(function.job_id) == 42
    assert client.allocations() == []


def test_what_nobody_adopts_is_gone_with_its_whole_tree_when_its_lease_ends(
    make_agent: MakeAgent, tmp_path: Path
) -> None:
    agent = make_agent("work.max_isolation_s=3").start()
    client = agent.client()
    # A grandchild that leaves the session, as daemons do: only the shim can still find it.
    line = f"setsid sh -c '{write_when_told(tmp_path, 'escaped')}' & {write_when_told(tmp_path, 'job')}"
    job = job_id(client.submit_job(command=["sh", "-c", line], gpus=1, cpus=0.1))
    pids = [started(tmp_path, "job"), started(tmp_path, "escaped")]
    client.close()
    agent.kill_main()
    until(lambda: not any(is_alive(pid) for pid in pids), "the tree is gone", within_s=15)
    assert not (tmp_path / "job.done").exists()

    agent.start()
    client = agent.client()
    # The attempt is over, the job is not: it was accepted, so it waits, runs again, and ends.
    (tmp_path / "job.go").touch()
    (tmp_path / "escaped.go").touch()
    ended = until(lambda: (view := client.job(job, wait_s=5))["state"] == "succeeded" and view, "the job ends")
    assert len(ended["attempts"]) == 2
    assert ended["attempts"][0]["state"] == "lost"
    assert client.allocations() == []


def test_no_accepted_job_is_lost_when_the_agent_is_killed_under_load(make_agent: MakeAgent, tmp_path: Path) -> None:
    agent = make_agent().start()
    client = agent.client()
    accepted = [job_id(client.submit_job(command=["true"], gpus=0.25, cpus=0.1)) for _ in range(40)]
    client.close()
    agent.kill()
    agent.start()
    client = agent.client()
    for name in accepted:
        state = until(lambda name=name: (v := client.job(name, wait_s=5)) and v["state"] == "succeeded", f"{name} ends")
        assert state
    assert client.allocations() == []


def test_a_killed_shim_takes_its_work_along_and_frees_the_gpu(make_agent: MakeAgent, tmp_path: Path) -> None:
    agent = make_agent().start()
    client = agent.client()
    line = f"setsid sh -c '{write_when_told(tmp_path, 'escaped')}' & {write_when_told(tmp_path, 'job')}"
    job = job_id(client.submit_job(command=["sh", "-c", line], gpus=1, cpus=0.1))
    pids = [started(tmp_path, "job"), started(tmp_path, "escaped")]
    shim = psutil.Process(pids[0]).parent()
    assert shim is not None
    assert "shim" in shim.cmdline()[0]
    shim.kill()
    ended = until(lambda: (view := client.job(job, wait_s=5))["state"] == "lost" and view, "the job is lost")
    assert ended["error"]["code"] == "WorkerLost"
    until(lambda: not any(is_alive(pid) for pid in pids), "its processes are gone")
    until(lambda: client.allocations() == [], "the GPU is free")


def test_an_orderly_stop_ends_work_and_its_job_runs_at_the_next_start(make_agent: MakeAgent, tmp_path: Path) -> None:
    agent = make_agent("work.kill_grace_s=0.5").start()
    client = agent.client()
    job = job_id(client.submit_job(command=["sh", "-c", write_when_told(tmp_path, "job")], cpus=0.1))
    pid = started(tmp_path, "job")
    tree = [process.pid for process in agent.processes()]
    assert agent.stop() == 0
    assert not is_alive(pid)
    assert not any(is_alive(process) for process in tree)
    (tmp_path / "job.go").touch()
    agent.start()
    client = agent.client()
    ended = until(lambda: (view := client.job(job, wait_s=5))["state"] == "succeeded" and view, "the job ends")
    assert len(ended["attempts"]) == 2


def test_an_orderly_stop_leaves_no_directory_of_sockets(make_agent: MakeAgent) -> None:
    agent = make_agent().start()
    agent.client().submit(os.getpid, cpus=0.1).result(30)
    runtime = HostPaths(agent.data_dir).runtime_dir
    assert runtime.is_dir()
    agent.stop()
    assert not runtime.exists()
