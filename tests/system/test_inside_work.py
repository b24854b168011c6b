"""Inside of jobs and tasks: the agent of their host is found without settings, with the rights of their submitter."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid.errors import HostUnreachable, NoRoomForNestedTask, NotAllowed, UnknownJob, WrongToken
from tests.processes import until
from tests.system.agent import Agent
from tests.system.cluster_host import ClusterHost

CLI = f"{sys.executable} -m actorgrid"


def job_of(agent: Agent, *options: str, command: str) -> str:
    done = agent.cli("run", "--detach", "--json", *options, "--", "sh", "-c", command)
    return str(json.loads(done.stdout)["job_id"])


def ended(agent: Agent, job_id: str) -> dict[str, Any]:
    job = agent.client().wait(job_id, 60)
    assert job["state"] == "succeeded", agent.cli("logs", job_id).stderr
    return job


def nested(x: int) -> tuple[int, str, list[str]]:
    """A task that submits one of its own, and a job, to whatever cluster it finds."""
    with actorgrid.connect() as client:
        double = client.submit(lambda y: 2 * y, x).result(60)
        durable = client.submit(lambda y: 3 * y, x, durable=True).result(60)
        result = client.run(["sh", "-c", "echo $ACTORGRID_JOB_ID"])
        return double + durable, result.stdout.decode().strip(), [job["user_id"] for job in client.jobs()]


def own_credential() -> tuple[str, str]:
    from actorgrid.client.find import work_credential

    door = work_credential()
    assert door is not None
    return door.url, door.token


def test_a_command_lists_jobs_and_submits_with_no_settings_at_all(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent().start()
    script = f"{CLI} ps --json && {CLI} run --detach --json -- true && stat -c %a $ACTORGRID_CREDENTIAL_FILE"
    job_id = job_of(agent, "--no-env-from-me", command=script)
    ended(agent, job_id)
    listed, submitted, mode = agent.cli("logs", job_id).stdout.splitlines()
    assert [job["job_id"] for job in json.loads(listed)["jobs"]] == [job_id]
    inner = agent.client().wait(json.loads(submitted)["job_id"], 60)
    assert inner["user_id"] == agent.client().job(job_id)["user_id"] and mode == "600"
    # Nothing of it is left on the disk.
    assert not list((agent.data_dir / "attempts").glob("*/credential*"))


def test_tasks_submit_tasks_and_jobs_with_the_rights_of_their_submitter(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent().start()
    client = agent.client()
    value, inner, users = client.submit(nested, 7, cpus=0.1).result(120)
    assert value == 35 and client.job(inner)["state"] == "succeeded"
    assert set(users) == {client.job(inner)["user_id"]}


def test_a_credential_is_good_while_its_task_runs_and_no_longer(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent().start()
    first = agent.client()
    url, token = first.submit(own_credential).result(60)
    with actorgrid.connect(url, token) as inside:
        assert inside.jobs() == []
    first.close()  # and with it the lease

    def refused() -> bool:
        try:
            actorgrid.connect(url, token).close()
        except WrongToken as error:
            return "while it runs" in error.message
        return False

    until(refused, "the credential of a lease that is over opens nothing")
    # The next lease has another, whichever worker serves it.
    with agent.client() as second:
        _, other = second.submit(own_credential).result(60)
        assert other != token
        with actorgrid.connect(url, other) as inside:
            assert inside.hosts()
    forged = token.rpartition(".")[0] + "." + "a" * 52
    with pytest.raises(WrongToken):
        actorgrid.connect(url, forged)


def test_work_of_one_user_sees_and_ends_nothing_of_another_and_changes_no_cluster(
    make_agent: Callable[..., Agent], tmp_path: Path
) -> None:
    agent = make_agent().start()
    client = agent.client()
    keys = {user: client.http.post("/api/keys", {"user_id": user})["key"] for user in ("ann", "bob")}
    ann, bob = (actorgrid.connect(client.url, keys[user]) for user in ("ann", "bob"))
    with ann, bob:
        of_bob = bob.submit_job(name="long", command=["sleep", "600"], user_id="bob", cpus=0.1)["job_id"]
        secret = bob.submit(lambda: "bob's", durable=True)
        assert secret.result(60) == "bob's"
        out = tmp_path / "credential"
        # As the client does: the file may be there before the agent knows where its door is.
        told = 'until grep -q \'"url": *"http\' $ACTORGRID_CREDENTIAL_FILE; do sleep 0.05; done'
        script = f"{told}; cp $ACTORGRID_CREDENTIAL_FILE {out}.new && mv {out}.new {out} && sleep 600"
        of_ann = ann.submit_job(name="spy", command=["sh", "-c", script], user_id="ann", cpus=0.1)["job_id"]
        until(out.exists, "it runs")
        door = json.loads(out.read_text())
        with actorgrid.connect(door["url"], door["token"]) as spy:
            assert [job["job_id"] for job in spy.jobs()] == [of_ann]
            hidden: list[Callable[[], Any]] = [
                lambda: spy.job(of_bob),
                lambda: spy.cancel(of_bob),
                lambda: spy.why(of_bob),
                lambda: list(spy.logs(of_bob)),
                lambda: spy.http.post("/api/jobs/results", {"job_ids": [secret.job_id]}),  # type: ignore[attr-defined]
                lambda: spy.submit_job(name="after", command=["true"], depends_on=[of_bob]),
            ]
            for ask in hidden:
                with pytest.raises(UnknownJob):
                    ask()
            asked: list[Callable[[], Any]] = [
                lambda: spy.set_config("work.kill_grace_s", 1),
                lambda: spy.http.post("/api/keys", {"user_id": "ann"}),
                lambda: spy.http.get("/api/tokens"),
                lambda: spy.inspect(),
                lambda: spy.set_quota("ann", gpus=100),
            ]
            for ask in asked:
                with pytest.raises(NotAllowed):
                    ask()
            claimed = spy.submit_job(name="claimed", command=["true"], user_id="bob")["job_id"]
            assert spy.wait(claimed, 60)["user_id"] == "ann"
            # What it follows is its user's alone.
            seen = spy.submit(lambda: 5, durable=True)
            assert seen.result(60) == 5
        assert client.job(of_bob)["state"] == "running"
        for job_id in (of_bob, of_ann):
            client.cancel(job_id)
            client.wait(job_id, 60)

        def refused() -> bool:
            try:
                actorgrid.connect(door["url"], door["token"]).close()
            except WrongToken:
                return True
            return False

        until(refused, "the credential of a job that has ended opens nothing")  # once the gateway has heard of the end


def test_work_finds_an_agent_that_came_back_on_another_port(make_agent: Callable[..., Agent], tmp_path: Path) -> None:
    agent = make_agent().start()
    go, out = tmp_path / "go", tmp_path / "out"
    script = f"until [ -e {go} ]; do sleep 0.05; done; {CLI} ps --json > {out}"
    job_id = job_of(agent, "--max-isolation", "60", command=script)
    client = agent.client()
    until(lambda: client.job(job_id)["state"] == "running", "it runs")
    before = agent.ready["url"]
    agent.kill()
    agent.start()
    assert agent.ready["url"] != before, "the system chose another"
    go.touch()
    ended(agent, job_id)
    assert json.loads(out.read_text())["jobs"][0]["job_id"] == job_id


def waits_for_room(cpus: float, durable: bool) -> str:
    """Submits what has no room while it waits itself."""
    with actorgrid.connect(nested_wait_s=1.0) as client:
        try:
            return str(client.submit(lambda: "it ran", cpus=cpus, durable=durable).result())
        except NoRoomForNestedTask as error:
            return f"{type(error).__name__}: {error.hint}"


def waits_for_gpus(gpus: float) -> str:
    with actorgrid.connect(nested_wait_s=1.0) as client:
        try:
            return str(client.submit(lambda: "it ran", gpus=gpus).result())
        except NoRoomForNestedTask as error:
            return f"{type(error).__name__}: {error.hint}"


def test_work_that_waits_for_room_it_holds_itself_is_told_so(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent().start()
    client = agent.client()
    whole = sum(host["cpu_milli"] for host in client.hosts()) / 1000
    told = client.submit(waits_for_room, whole, True, cpus=whole).result(120)
    assert told.startswith("NoRoomForNestedTask") and "cpus=0.1" in told
    gpus = len(client.gpus())
    told = client.submit(waits_for_gpus, gpus, gpus=gpus, cpus=0.1).result(120)
    assert told.startswith("NoRoomForNestedTask") and "GPUs" in told
    assert client.submit(waits_for_room, whole / 2, False, cpus=whole / 2).result(120) == "it ran"
    for job in client.jobs(["queued", "running"]):
        client.cancel(job["job_id"])


def test_outside_of_work_a_left_over_variable_says_that_the_work_is_over(tmp_path: Path) -> None:
    from actorgrid.client.find import locate

    gone = {**os.environ, "ACTORGRID_CREDENTIAL_FILE": str(tmp_path / "credential.json")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", gone)
        with pytest.raises(HostUnreachable, match="is over"):
            locate()


def test_on_every_host_work_finds_the_agent_of_its_own(make_host: Callable[..., ClusterHost], tmp_path: Path) -> None:
    hosts = [make_host("a", 0).found(), make_host("b", 1)]
    hosts[1].join(hosts[0], hosts[0].token("--uses", "1")["token"])
    until(lambda: len(hosts[0].roles()) == 2, "two hosts")
    job = hosts[0].ended("--gpus", "1", "--", "sh", "-c", f"{CLI} status --json")
    assert job["state"] == "succeeded"
    said = json.loads(hosts[0].cli("logs", job["job_id"]).stdout)
    assert said["url"] == f"http://127.0.0.1:{hosts[1].base_port}"
    # A secret that one door took is for the work on another host, sealed on its way, and on no disk.
    value = "correct horse battery"
    (tmp_path / "value").write_text(value)
    hosts[0].cli("secret", "set", "hf", "--file", str(tmp_path / "value"))
    asks = ("--gpus", "1", "--secret", "hf:TOKEN", "--", "sh", "-c")
    script = (
        'ls -l $ACTORGRID_SECRETS; echo $ACTORGRID_SECRETS; (printf %s "$TOKEN"; cat $ACTORGRID_SECRETS/hf) | wc -c'
    )
    job = hosts[0].ended(*asks, script)
    listed, folder, size = hosts[0].cli("logs", job["job_id"]).stdout.splitlines()[-3:]
    assert job["state"] == "succeeded" and listed.startswith("-r--------") and int(size) == 2 * len(value)
    assert not os.path.exists(folder)
    for shown in (("why", job["job_id"]), ("show", job["job_id"], "--json"), ("secret", "list", "--json")):
        assert value not in hosts[0].cli(*shown, check=False).stdout
    kept = [path for host in hosts for path in host.data_dir.rglob("*") if path.is_file()]
    assert len(kept) > 20 and not [path for path in kept if value.encode() in path.read_bytes()]
    told = [json.loads(host.cli("audit", "list", "--json").stdout)["records"] for host in hosts]
    assert [each["object"] for records in told for each in records if each["verb"] == "RELEASE"] == ["/secrets/hf"]


def test_the_key_and_credentials_are_for_nobody_else(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent().start()
    assert stat.S_IMODE((agent.data_dir / "work.key").stat().st_mode) == 0o600
