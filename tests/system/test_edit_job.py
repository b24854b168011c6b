"""A waiting job that is changed goes by what it has now, on a real host; one that runs keeps what it has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from actorgrid.errors import UnknownJob, WrongState
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
