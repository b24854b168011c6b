"""What is short, as people see it; and what a setting was before, when many change it at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import actorgrid

from .conftest import Starting, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


def test_status_and_why_name_the_resource_that_is_short(starting: Starting) -> None:
    host = starting()
    cpus = host.json("hosts", "--json")["hosts"][0]["cpu_milli"] / 1000
    held = host.json("run", "--detach", "--json", "--cpus", f"{cpus}", "--", "sleep", "600")["job_id"]
    until(lambda: host.json("ps", "--json")["jobs"][0]["state"] == "running")
    waiting = host.json("run", "--detach", "--json", "--gpus", "0.5", "--cpus", "1", "--", "true")["job_id"]
    summary = until(lambda: (found := host.json("status", "--json"))["binding"] and found)
    assert (summary["binding"]["resource"], summary["binding"]["waiting"]) == ("cpu_milli", 1)
    shown = host.call("status").stdout
    assert "short  CPU: " in shown and "1 job waits for it; 2 of 2 GPUs free meanwhile" in shown
    why = host.json("why", waiting, "--json")
    assert why["binding"]["resource"] == "cpu_milli"
    assert "short is CPU: " in host.call("why", waiting).stdout
    host.call("cancel", held)
    until(lambda: host.json("status", "--json")["binding"] is None)


def test_what_a_setting_was_is_what_the_ledger_had_before_the_change(starting: Starting) -> None:
    host = starting()
    with actorgrid.connect(data_dir=host.data_dir) as client, ThreadPoolExecutor(8) as pool:
        values = [float(number) for number in range(10, 50)]
        answers = list(pool.map(lambda value: client.set_config("work.kill_grace_s", value), values))
    before = [answer["previous"] for answer in answers]
    # Each value but the last one committed was replaced once, by the change that says so.
    assert len(set(before)) == len(values) and 5.0 in before and set(before) - {5.0} < set(values)
