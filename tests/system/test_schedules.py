"""Schedules on real hosts: due in time, by hand, and once whatever happens to who leads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from actorgrid.client.client import Client
from actorgrid.errors import InvalidSchedule, UnknownSchedule, WrongState
from tests.processes import until
from tests.system.agent import Agent
from tests.system.cluster_host import ClusterHost


@pytest.fixture
def client(shared_agent: Agent) -> Client:
    return shared_agent.client()


def test_a_function_runs_whenever_it_is_due_and_its_runs_are_jobs(client: Client, tmp_path: Path) -> None:
    told = tmp_path / "told"

    def tell(word: str, path: str = str(told)) -> None:
        with open(path, "a") as file:
            file.write(word)

    schedule = client.schedule(tell, "x", name="tell", every=1, cpus=0.1)
    until(lambda: len(schedule.runs()) >= 3 and schedule.runs()[1]["state"] == "succeeded", "it has run twice")
    schedule.pause()
    seen = schedule.look()
    assert seen["paused"] and seen["next_due"] == []
    until(lambda: schedule.look()["live"] is None, "the last run is over")
    runs = [run for run in schedule.runs() if run["outcome"] == "started"]
    assert told.read_text() == "x" * seen["started_total"]
    assert [run["due_at"] for run in runs] == sorted({run["due_at"] for run in runs})
    assert client.job(runs[0]["job_id"])["name"] == "tell"
    by_hand = schedule.run_now()
    assert by_hand is not None and client.wait(by_hand, 30)["state"] == "succeeded"
    schedule.remove()
    with pytest.raises(UnknownSchedule):
        schedule.look()


def test_the_command_line_writes_shows_runs_and_removes(shared_agent: Agent) -> None:
    cli = shared_agent.cli
    added = cli("schedule", "add", "nightly", "--cron", "0 3 * * *", "--tz", "Europe/Berlin", "--", "echo", "night")
    assert "nightly: due " in added.stdout
    again = cli("schedule", "add", "nightly", "--cron", "0 4 * * *", "--", "echo", "x", check=False)
    assert again.returncode == 1 and "--replace" in again.stderr
    wrong = cli("schedule", "add", "other", "--cron", "0 3 * *", "--", "true", check=False)
    assert wrong.returncode == 2 and "five fields" in wrong.stderr
    assert "0 3 * * * Europe/Berlin" in cli("schedule", "list").stdout
    job_id = cli("schedule", "run-now", "nightly").stdout.strip()
    assert cli("logs", "-f", job_id).stdout == "night\n"
    assert shared_agent.client().job(job_id)["name"] == "nightly"
    assert "nightly  succeeded" in cli("ps", "--all", "--label", "schedule=nightly").stdout
    misspelt = cli("schedule", "pause", "nigthly", check=False)
    assert misspelt.returncode == 4 and "did you mean nightly?" in misspelt.stderr
    shown = cli("schedule", "show", "nightly").stdout
    assert "run_once" in shown and job_id in shown and "echo night" in shown
    assert json.loads(cli("schedule", "history", "nightly", "--json").stdout)["runs"][0]["job_id"] == job_id
    assert "paused" in cli("schedule", "pause", "nightly").stdout
    assert "due" in cli("schedule", "resume", "nightly").stdout
    assert "removed" in cli("schedule", "rm", "nightly").stdout
    gone = cli("schedule", "show", "nightly", check=False)
    assert gone.returncode == 4 and "schedule list" in gone.stderr


def test_what_runs_too_long_is_replaced_and_single_times_come_once(client: Client) -> None:
    with pytest.raises(InvalidSchedule, match="never due"):
        client.schedule(["true"], execute_at=datetime.now() - timedelta(hours=1))
    tomorrow = datetime.now() + timedelta(days=1)
    long = client.schedule(["sleep", "600"], name="long", execute_at=tomorrow, overlap="replace")
    first = long.run_now()
    assert first is not None
    until(lambda: client.job(first)["state"] == "running", "it runs")
    assert long.run_now() is None, "it stands in line until the first is over"
    until(lambda: long.look()["live"] not in (None, first), "the next has begun")
    assert client.job(first)["state"] == "cancelled"
    skipping = client.schedule(["sleep", "600"], name="skipping", every=3600)
    live = skipping.run_now()
    with pytest.raises(WrongState, match="not over"):
        skipping.run_now()
    for schedule in (long, skipping):
        client.cancel(str(schedule.look()["live"]))
        schedule.remove()
    assert live is not None


def test_whoever_leads_is_killed_and_each_due_time_runs_once(
    make_host: Callable[[str, int], ClusterHost], tmp_path: Path
) -> None:
    first = make_host("a", 1).found()
    hosts = [first, *(make_host(name, 1).join(first, first.token()["token"]) for name in ("b", "c"))]
    client = hosts[1].client()
    until(lambda: all(host["raft_role"] != "learner" for host in client.hosts()), "all vote")
    told = tmp_path / "told"
    line = f"echo $ACTORGRID_JOB_ID >> {told}"
    schedule = client.schedule(
        ["sh", "-c", line], name="each", every=1, overlap="queue", missed="run_all", missed_max=50, cpus=0.1
    )
    until(lambda: schedule.look()["started_total"] >= 2, "it runs")
    leader = next(host for host in client.hosts() if host["raft_role"] == "leader")
    by_id = {json.loads((host.data_dir / "host.json").read_text())["host_id"]: host for host in hosts}
    killed = by_id[leader["node_id"]]
    killed.kill()
    if killed is hosts[1]:
        schedule = hosts[0].client().find_schedule("each")
    so_far = schedule.look()["started_total"]
    until(lambda: schedule.look()["started_total"] >= so_far + 4, "it goes on", 60)
    schedule.pause()
    until(lambda: schedule.look()["live"] is None, "the last run is over", 60)
    seen = schedule.look()
    ran = Counter(told.read_text().split())
    asked = hosts[0].client() if killed is hosts[1] else client
    # What was lost with its host is tried again, as any job is.
    assert all(times <= len(asked.job(job_id)["attempts"]) for job_id, times in ran.items())
    assert len(ran) == seen["started_total"]
    due = [run["due_at"] for run in seen["runs"] if run["outcome"] == "started"]
    assert due == sorted(set(due)) and len(due) == due[-1] - due[0] + 1, "each second, and each once"
