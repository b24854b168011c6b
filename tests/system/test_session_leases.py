"""Session tasks as others see them: listed, explained, read, and ended by whoever may."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid.errors import TaskCancelled, UnknownAllocation, UnknownSession
from tests.processes import is_alive, until
from tests.system.agent import Agent
from tests.system.cluster_host import ClusterHost


def hold(out: str) -> str:
    """Says who it is, and stays."""
    print("it holds", flush=True)
    with open(out, "a") as file:
        file.write(f"{os.getpid()}\n")
    signal.pause()
    return "not cancelled"


def pids(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def test_a_session_task_with_a_gpu_is_listed_explained_read_and_cancelled(
    make_agent: Callable[..., Agent], tmp_path: Path
) -> None:
    agent = make_agent().start()
    client = agent.client()
    out = tmp_path / "held"
    future = client.submit(hold, str(out), gpus=1, cpus=0.1, retries=5)
    until(lambda: pids(out), "it runs")
    (shown,) = [job for gpu in client.gpus() for job in gpu["jobs"]]

    (lease,) = agent.cli_json("ps", "--sessions")["leases"]
    assert (lease["lease_id"], len(lease["gpu_uuids"]), lease["presence"]) == (shown, 1, "present")
    assert client.leases() == [lease] and client.allocations()[0]["owner"]["session_id"] == lease["session_id"]
    assert shown[:8] in agent.cli("ps", "--sessions").stdout
    assert "user" in agent.cli("why", shown).stdout and agent.cli_json("why", shown[:10])["leases"] == [lease]
    until(lambda: "it holds" in agent.cli("logs", shown).stdout, "what it wrote")
    assert "it holds" in agent.cli_json("logs", "--stdout", lease["session_id"])["stdout"]

    done = agent.cli("cancel", "--force", shown)
    assert "cancelled" in done.stdout
    with pytest.raises(TaskCancelled, match="while it ran"):
        future.result(60)
    assert not is_alive(pids(out)[0]) and len(pids(out)) == 1, "it is not tried again"
    assert client.leases() == [] and all(not gpu["jobs"] for gpu in client.gpus())
    assert agent.cli("cancel", shown, check=False).returncode == 4
    # The session goes on, with another worker.
    assert client.submit(pow, 2, 5).result(60) == 32


def test_a_future_is_cancelled_by_force(make_agent: Callable[..., Agent], tmp_path: Path) -> None:
    agent = make_agent().start()
    client = agent.client()
    out = tmp_path / "held"
    future: Any = client.submit(hold, str(out), cpus=0.1)
    until(lambda: pids(out), "it runs")
    assert future.cancel() is False and future.running()
    assert future.cancel(force=True) is True
    with pytest.raises(TaskCancelled):
        future.result(60)
    until(lambda: not is_alive(pids(out)[0]), "its worker is gone")


def test_work_ends_only_what_is_its_users_own(make_agent: Callable[..., Agent], tmp_path: Path) -> None:
    agent = make_agent().start()
    client = agent.client()
    for user in ("ann", "bob"):
        session = client.http.post("/api/sessions", {"user_id": user})["session_id"]
        client.http.post(f"/api/sessions/{session}/leases", {"cpus": 0.1, "wait_s": 10})
    of = {lease["user_id"]: lease["lease_id"] for lease in client.leases()}
    job_of_ann = client.submit_job(
        name="ends",
        user_id="ann",
        cpus=0.1,
        command=["sh", "-c", f"actorgrid cancel {of['ann']}; actorgrid cancel {of['bob']}"],
    )["job_id"]
    job = client.wait(job_of_ann, 60)
    assert job["attempts"][-1]["exit_code"] == 4, "it sees no other user's, so there is no such one"
    assert [lease["user_id"] for lease in client.leases()] == ["bob"]
    # For whoever knows the ids from elsewhere they are not there.
    out = tmp_path / "credential"
    script = f"cp $ACTORGRID_CREDENTIAL_FILE {out}.new && mv {out}.new {out} && sleep 600"
    spying = client.submit_job(name="spy", user_id="ann", cpus=0.1, command=["sh", "-c", script])["job_id"]
    until(out.exists, "it runs")
    door = json.loads(out.read_text())
    (lease,) = client.leases()
    with actorgrid.connect(door["url"], door["token"]) as spy:
        assert spy.leases() == []
        with pytest.raises(UnknownAllocation):
            spy.cancel_lease(of["bob"])
        session = f"/api/sessions/{lease['session_id']}"
        for ask in ("renew", "leases"):
            with pytest.raises(UnknownSession):
                spy.http.post(f"{session}/{ask}", {"cpus": 0.1} if ask == "leases" else {})
        spy.http.delete(session)  # as one that is not there: nothing happens
    assert len(client.leases()) == 1
    client.cancel(spying)


def test_a_lease_on_another_host_is_read_and_ended_from_here(
    make_host: Callable[..., ClusterHost], tmp_path: Path
) -> None:
    hosts = [make_host("a", 0).found(), make_host("b", 1)]
    hosts[1].join(hosts[0], hosts[0].token("--uses", "1")["token"])
    until(lambda: len(hosts[0].roles()) == 2, "two hosts")
    client = hosts[0].client()
    out = tmp_path / "held"
    future = client.submit(hold, str(out), gpus=1, cpus=0.1)
    until(lambda: pids(out), "it runs on the other")
    (lease,) = hosts[1].cli_json("ps", "--sessions")["leases"]
    assert lease["host"] != lease["home"]
    until(lambda: "it holds" in hosts[0].cli("logs", lease["lease_id"]).stdout, "what it wrote there")
    hosts[0].cli("cancel", lease["lease_id"])
    with pytest.raises(TaskCancelled):
        future.result(60)
    assert not is_alive(pids(out)[0])
