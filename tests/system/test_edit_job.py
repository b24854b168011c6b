"""A waiting job that is changed goes by what it has now, on a real host; one that runs keeps what it has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from actorgrid.errors import BadRequest, TooManyGpus, UnknownJob, WrongState
from tests.processes import until
from tests.system.agent import Agent


def test_a_job_of_more_priority_passes_those_before_it_and_is_held_to_its_new_limit(
    make_agent: Callable[..., Agent], tmp_path: Path
) -> None:
    agent = make_agent(gpus="simulated:1xH100-80GB").start()
    client = agent.client()
    order, go = tmp_path / "order", tmp_path / "go"

    def submit(name: str, line: str) -> str:
        command = ["sh", "-c", f"echo {name} >> {order}; {line}"]
        return str(client.submit_job(command=command, gpus=1, cpus=0.1, task_id=name)["job_id"])

    first = submit("first", f"until test -e {go}; do sleep 0.02; done")
    until(lambda: client.job(first)["state"] == "running", "the first runs")
    submit("second", "true"), submit("third", "while :; do sleep 0.02; done")
    assert client.edit("third", priority=90, max_execution_time_s=0.5) == {
        "job_id": "third",
        "priority": 90,
        "max_execution_time_s": 0.5,
    }
    with pytest.raises(WrongState, match="does not wait"):
        client.edit(first, priority=90)
    with pytest.raises(UnknownJob):
        client.edit("nobody", priority=90)
    go.touch()
    third = client.job("third", wait_s=60)
    assert (third["state"], third["error"]["code"]) == ("failed", "TaskTimedOut")
    assert client.job("second", wait_s=60)["state"] == "succeeded"
    assert order.read_text().split() == ["first", "third", "second"]


def test_a_job_that_asks_for_less_begins_and_is_found_by_its_new_label(
    make_agent: Callable[..., Agent], tmp_path: Path
) -> None:
    agent = make_agent(gpus="simulated:1xH100-80GB").start()
    client = agent.client()
    go, said = tmp_path / "go", tmp_path / "said"
    holds = client.submit_job(command=["sh", "-c", f"until test -e {go}; do sleep 0.02; done"], gpus=0.6, cpus=0.1)
    until(lambda: client.job(holds["job_id"])["state"] == "running", "the first runs")
    line = f"echo $ACTORGRID_CPU_MILLI > {said}"
    client.submit_job(command=["sh", "-c", line], gpus=1, cpus=0.1, task_id="waits", labels={"team": "a"})
    until(lambda: client.job("waits")["state"] == "queued", "the second waits")
    with pytest.raises(TooManyGpus):
        client.edit("waits", gpus=2)
    with pytest.raises(BadRequest):
        client.edit("waits", gpus=1.5)
    edited = client.edit("waits", gpus=0.4, cpus=0.2, labels={"stage": "two", "team": None})
    assert (edited["resources"]["gpu_milli"], edited["labels"]) == (400, {"stage": "two"})
    done = client.job("waits", wait_s=60)
    assert done["state"] == "succeeded" and said.read_text() == "200\n"
    assert [job["job_id"] for job in client.jobs(labels={"stage": "two"})] == ["waits"]
    with pytest.raises(WrongState, match="does not wait"):
        client.edit(holds["job_id"], cpus=0.2)
    go.touch()
    assert client.job(holds["job_id"], wait_s=60)["state"] == "succeeded"
