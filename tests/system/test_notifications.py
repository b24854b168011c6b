"""Notifications of a real host's jobs: what they say arrives, also when agent and receiver were down meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from actorgrid.errors import TargetNotAllowed, UnknownTarget
from tests.notifications.test_sending import Receiver, serving
from tests.processes import until
from tests.system.agent import Agent


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    with serving(server):
        yield server


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[Agent]:
    data_dir = tmp_path_factory.mktemp("notify") / "host"
    data_dir.mkdir(mode=0o700)
    agent = Agent(data_dir, "alerts.interval_s=0.2", 'alerts.targets=["pager"]')
    name_targets(data_dir, receiver.url + "/204")
    agent.start()
    yield agent
    agent.close()


def name_targets(data_dir: Path, url: str) -> None:
    path = data_dir / "notifications.yaml"
    pager = url.rpartition("/")[0] + "/204"
    path.write_text(f"targets: {{ops: {{webhook: '{url}'}}, pager: {{webhook: '{pager}'}}}}\n")
    path.chmod(0o600)


def fired(receiver: Receiver) -> list[str]:
    found = [json.loads(body) for path, _, body in list(receiver.heard) if path == "/204"]
    return [each["data"]["alert"].removeprefix("Actorgrid") for each in found if each["type"] == "alert.firing"]


def told(receiver: Receiver, job_id: str) -> list[str]:
    found = [json.loads(body) for path, _, body in list(receiver.heard) if path == "/204"]
    return [each["type"] for each in found if each["data"].get("job_id") == job_id]


def test_a_run_tells_its_target_and_wrong_targets_are_refused_at_the_door(agent: Agent, receiver: Receiver) -> None:
    job_id = agent.cli(
        "run", "--detach", "--notify", "ops", "--notify-on", "started,ended", "--", "false"
    ).stdout.strip()
    until(lambda: len(told(receiver, job_id)) == 2, "both were told")
    assert told(receiver, job_id) == ["job.started", "job.failed"]
    client = agent.client()
    with pytest.raises(UnknownTarget):
        client.run(["true"], notify="nobody")
    with pytest.raises(TargetNotAllowed):
        client.run(["true"], notify=f"webhook:{receiver.url}/204")
    job = client.submit(len, "abc", durable=True, notify="ops")
    until(lambda: told(receiver, job.job_id) == ["job.succeeded"], "it was told")
    assert "ops: sent" in agent.cli("notifications", "test", "ops").stdout


def test_what_happened_while_nobody_could_be_told_arrives_after_a_crash_once(agent: Agent, receiver: Receiver) -> None:
    name_targets(agent.data_dir, receiver.url + "/503")
    job_id = agent.cli("run", "--detach", "--notify", "ops", "--", "true").stdout.strip()

    def tried() -> bool:
        shown = agent.cli_json("notifications")["notifications"]
        return any("answers 503" in each["failure"] and each["job_id"] == job_id for each in shown)

    until(tried, "it was tried")
    agent.kill()
    name_targets(agent.data_dir, receiver.url + "/204")
    agent.start()
    until(lambda: agent.cli_json("notifications")["waiting"] == 0, "it was sent")
    assert told(receiver, job_id) == ["job.succeeded"]
    ids = {headers["webhook-id"] for _, headers, body in receiver.heard if job_id in body.decode()}
    assert len(ids) == 1, "under the id it had before"


def test_what_is_given_up_is_shown_and_cleared(agent: Agent, receiver: Receiver) -> None:
    name_targets(agent.data_dir, receiver.url + "/410")
    job_id = agent.cli("run", "--detach", "--notify", "ops", "--", "true").stdout.strip()
    until(lambda: agent.cli_json("notifications")["failed"] == 1, "it was given up")
    assert "given up after 1 tries" in agent.cli("why", job_id).stdout
    until(lambda: fired(receiver) == ["NotificationsFail"], "who is told of alerts was told of that")
    assert agent.cli("alerts", "ack", "NotificationsFail").stdout.endswith(
        "nobody is told of ActorgridNotificationsFail for 24 h 0 min\n"
    )

    def silenced() -> bool:  # the host reads silences at its next look
        shown = agent.cli_json("alerts")["alerts"]
        return [(each["state"], bool(each["silenced_until"])) for each in shown] == [("firing", True)]

    until(silenced, "it fires, silenced")
    agent.cli("alerts", "unsilence", agent.cli_json("alerts")["silences"][0]["silence_id"])
    until(lambda: agent.cli("alerts", "list", check=False).returncode == 1, "it fires, and is not silenced any more")
    listed = agent.client().job(job_id)["notifications"]
    assert [each["state"] for each in listed] == ["failed"]
    assert agent.cli("notifications", "clear", job_id).stdout == "1 forgotten\n"
    assert agent.client().job(job_id)["notifications"] == []
