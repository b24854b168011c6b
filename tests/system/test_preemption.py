"""Work that is stopped for other work on a real host, by real signals, and the crashes in between."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid import errors
from tests.processes import is_alive, until
from tests.system.agent import Agent, write_when_told

MakeAgent = Callable[..., Agent]


def saves(folder: Path, wait_for_go: bool = False) -> str:
    """A shell line that works until it is told to stop, says so, perhaps takes its time, and is quick the next time."""
    saved, go, started = folder / "saved", folder / "save.go", folder / "first.started"
    patience = f"until test -e {go}; do sleep 0.02; done" if wait_for_go else "true"
    return (
        f"if test -e {saved}; then echo resumed; exit 0; fi; "
        f"trap 'echo told >> {folder}/told; {patience}; touch {saved}; exit 0' TERM; "
        f"echo $$ > {started}; while :; do sleep 0.02; done"
    )


def submit(client: actorgrid.Client, line: str, **options: Any) -> str:
    return str(client.submit_job(command=["sh", "-c", line], cpus=0.1, **options)["job_id"])


def ended(client: actorgrid.Client, job_id: str) -> dict[str, Any]:
    final = ("succeeded", "failed", "cancelled", "lost")
    found: dict[str, Any] = until(
        lambda: (view := client.job(job_id, wait_s=5))["state"] in final and view, f"{job_id} ends"
    )
    return found


def preempted(client: actorgrid.Client, job_id: str) -> dict[str, Any]:
    """What the ledger says of the preemption of its first attempt."""

    def asked() -> Any:
        attempts = client.job(job_id)["attempts"]
        return attempts and attempts[0]["preemption"]

    found: dict[str, Any] = until(asked, f"{job_id} is asked to end")
    return found


def states(job: dict[str, Any]) -> list[str]:
    return [attempt["state"] for attempt in job["attempts"]]


def test_a_deadline_stops_a_job_that_heeds_and_one_that_does_not_and_both_run_again(
    make_agent: MakeAgent, tmp_path: Path
) -> None:
    agent = make_agent("scheduling.queue=edf", gpus="simulated:2xH100-80GB").start()
    client = agent.client()
    kind = submit(client, saves(tmp_path), gpus=1, grace_s=20)
    stubborn = tmp_path / "stubborn"
    line = f"test -e {stubborn} && exit 0; trap '' TERM; echo $$ > {stubborn}; while :; do sleep 0.02; done"
    deaf = submit(client, line, gpus=1, grace_s=0.3)
    pids = [
        int(until(lambda path=path: path.exists() and path.read_text().strip(), f"{path.name} runs"))
        for path in (tmp_path / "first.started", stubborn)
    ]
    urgent = submit(
        client, write_when_told(tmp_path, "urgent"), gpus=2, max_execution_time_s=60, deadline_s=120, name="urgent"
    )
    until((tmp_path / "urgent.started").exists, "the urgent one runs")
    assert not any(is_alive(pid) for pid in pids)
    for job_id in (kind, deaf):
        view = client.job(job_id)
        assert (view["state"], view["preemptions"], states(view)) == ("queued", 1, ["preempted"])
        assert view["attempts"][0]["preemption"]["for_job"] == urgent
        assert view["attempts"][0]["error"]["message"] == f"attempt {job_id}.1 was preempted for {urgent}"
        notes = agent.cli_json("why", job_id)["notes"]
        assert any(f"attempt 1 was stopped for {urgent}" in note for note in notes)
    assert client.job(kind)["attempts"][0]["exit_code"] == 0, "it left in good order, and that does not mean done"
    assert client.job(deaf)["attempts"][0]["signal"] == signal.SIGKILL
    assert "preempted (1)" in agent.cli("ps").stdout
    (tmp_path / "urgent.go").touch()
    assert ended(client, urgent)["state"] == "succeeded"
    for job_id in (kind, deaf):
        job = ended(client, job_id)
        assert (job["state"], states(job)) == ("succeeded", ["preempted", "succeeded"])
    assert (tmp_path / "told").read_text() == "told\n"
    assert client.allocations() == []


@pytest.mark.parametrize("server", ["gpu_coordinator", "worker_manager", "consensus"])
def test_a_preemption_outlives_a_crash_in_its_middle_and_nobody_is_asked_twice(
    server: str, make_agent: MakeAgent, tmp_path: Path
) -> None:
    agent = make_agent("scheduling.queue=edf", gpus="simulated:1xH100-80GB").start()
    client = agent.client()
    first = submit(client, saves(tmp_path, wait_for_go=True), gpus=1, grace_s=60)
    until((tmp_path / "first.started").exists, "the first runs")
    urgent = submit(client, write_when_told(tmp_path, "urgent"), gpus=1, max_execution_time_s=60, deadline_s=300)
    asked = preempted(client, first)
    until((tmp_path / "told").exists, "the first was told")
    thief = submit(client, "true", gpus=1)
    story = client.why(first)
    assert any(f"so that {urgent} can start" in note for note in story["notes"])
    assert client.why(urgent)["reservation"]["stopping"] == [first]

    before = agent.pid_of(server)
    assert before is not None
    os.kill(before, signal.SIGKILL)
    until(lambda: agent.pid_of(server) not in (None, before), f"{server} is back")
    until(lambda: client.why(urgent)["reservation"], "the place is kept again")
    assert client.why(urgent)["reservation"]["stopping"] == [first]
    assert client.job(first)["attempts"][0]["preemption"] == asked
    (tmp_path / "save.go").touch()
    until((tmp_path / "urgent.started").exists, "the urgent one runs")
    assert [client.job(one)["state"] for one in (first, thief)] == ["queued", "queued"]
    (tmp_path / "urgent.go").touch()
    assert ended(client, urgent)["state"] == "succeeded"
    job = ended(client, first)
    assert (states(job), job["preemptions"]) == (["preempted", "succeeded"], 1)
    assert (tmp_path / "told").read_text() == "told\n"
    assert ended(client, thief)["state"] == "succeeded"


def test_a_preemption_outlives_the_agent(make_agent: MakeAgent, tmp_path: Path) -> None:
    """Nobody is there to hear of the end of the grace's work, and the next start has to find all hosts first."""
    agent = make_agent("scheduling.queue=edf", "work.max_isolation_s=60", gpus="simulated:1xH100-80GB").start()
    client = agent.client()
    first = submit(client, saves(tmp_path, wait_for_go=True), gpus=1, grace_s=60)
    until((tmp_path / "first.started").exists, "the first runs")
    pid = int((tmp_path / "first.started").read_text())
    urgent = submit(client, write_when_told(tmp_path, "urgent"), gpus=1, max_execution_time_s=60, deadline_s=300)
    asked = preempted(client, first)
    until((tmp_path / "told").exists, "the first was told")
    client.close()
    agent.kill()
    (tmp_path / "save.go").touch()
    until(lambda: not is_alive(pid), "the first has saved its work")
    (tmp_path / "urgent.go").touch()
    agent.start()
    client = agent.client()
    assert ended(client, urgent)["state"] == "succeeded"
    job = ended(client, first)
    assert (states(job), job["preemptions"]) == (["preempted", "succeeded"], 1)
    assert job["attempts"][0]["preemption"] == asked
    assert job["attempts"][1]["placed_at"] > client.job(urgent)["attempts"][0]["placed_at"]
    assert (tmp_path / "told").read_text() == "told\n"


def test_las_stops_who_has_had_much_for_who_has_had_nothing(make_agent: MakeAgent, tmp_path: Path) -> None:
    """An hour of one GPU is had within seconds by a job that holds a thousand."""
    agent = make_agent("scheduling.queue=las", gpus="simulated:1024xH100-80GB").start()
    client = agent.client()
    first = submit(client, saves(tmp_path), gpus=1024, grace_s=20)
    until((tmp_path / "first.started").exists, "the first runs")
    second = submit(client, "echo second", gpus=8)
    assert ended(client, second)["state"] == "succeeded"
    job = ended(client, first)
    assert states(job) == ["preempted", "succeeded"]
    assert job["attempts"][0]["preemption"]["for_job"] == second


def test_a_deadline_that_cannot_be_kept_is_refused_with_what_is_possible(make_agent: MakeAgent, tmp_path: Path) -> None:
    agent = make_agent("scheduling.queue=edf", gpus="simulated:1xH100-80GB").start()
    client = agent.client()
    line = write_when_told(tmp_path, "long")
    long = submit(client, line, gpus=1, max_execution_time_s=600, preemptible=False)
    until((tmp_path / "long.started").exists, "the long one runs")
    with pytest.raises(errors.AdmissionRefused) as refused:
        client.run(["true"], gpus=1, deadline=60.0, timeout=30.0)
    assert "running for up to 30 s" in refused.value.asked
    assert refused.value.found.startswith("as things are it would be done in 10 min")
    done = agent.cli("run", "--gpus", "1", "--timeout", "30", "--deadline", "60", "--", "true", check=False)
    assert done.returncode == errors.AdmissionRefused.exit_code
    assert "a later --deadline" in done.stderr
    with pytest.raises(errors.BadRequest, match="session task"):
        client.submit(os.getpid, deadline=60.0)
    assert [job["job_id"] for job in client.jobs()] == [long]

    # What depends on others is looked at when they are done: too late for this one.
    follower = submit(client, "true", gpus=1, depends_on=[long], max_execution_time_s=30, deadline_s=1)
    soft = submit(client, "true", gpus=1, deadline_s=0.001)
    job = until(lambda: (view := client.job(soft)) and view["state"] == "queued" and view, "it waits")
    assert job["deadline"] > job["submitted_at"]
    (tmp_path / "long.go").touch()
    assert ended(client, long)["state"] == "succeeded"
    failed = ended(client, follower)
    assert (failed["state"], failed["error"]["code"], failed["attempts"]) == ("failed", "AdmissionRefused", [])
    assert ended(client, soft)["state"] == "succeeded"
