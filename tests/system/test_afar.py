"""Clients on no host: HTTPS with a pinned authority, the loss of the host they speak to, restarts under their work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import actorgrid
from tests.processes import is_alive, until
from tests.system.cluster_host import ClusterHost


@contextmanager
def client_of(made: dict[str, Any], *urls: str) -> Iterator[actorgrid.Client]:
    client = actorgrid.connect(list(urls) or made["url"], made["key"], ca_fingerprint=made["ca_fingerprint"])
    with client:
        yield client


def cli(made: dict[str, Any], *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    where = {"ACTORGRID_URL": made["url"], "ACTORGRID_TOKEN": made["key"]}
    return subprocess.run(
        [sys.executable, "-m", "actorgrid", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **where, "ACTORGRID_CA_FINGERPRINT": made["ca_fingerprint"], **more},
    )


def three(make_host: Callable[..., ClusterHost]) -> list[ClusterHost]:
    hosts = [make_host("a", 1).found(), make_host("b", 2), make_host("c", 2)]
    token = hosts[0].token("--uses", "2")["token"]
    for host in hosts[1:]:
        host.join(hosts[0], token)
    until(lambda: hosts[2].roles() == {1: "leader", 2: "voter", 3: "voter"}, "three that vote")
    return hosts


def test_a_client_of_one_address_survives_the_loss_of_its_host(make_host: Callable[..., ClusterHost]) -> None:
    hosts = three(make_host)
    made = hosts[1].cli_json("key", "create", "--user", "ann")
    assert cli(made, "hosts").stdout.count("healthy") >= 1
    refused = cli(made, "hosts", ACTORGRID_CA_FINGERPRINT=f"sha256:{'0' * 64}")
    assert refused.returncode == 3 and "do not go on" in refused.stderr

    with client_of(made) as client:
        before = client.url
        job = client.submit_job(name="first", command=["sh", "-c", "exit 0"])
        assert client.wait(job["job_id"], 60)["state"] == "succeeded"
        hosts[1].kill()
        job = client.submit_job(name="later", command=["sh", "-c", "exit 0"])
        assert client.url != before
        assert client.wait(job["job_id"], 60)["state"] == "succeeded"
        assert {host["url"] for host in client.hosts()} >= {before, client.url}
    # A command line that is told of several goes by the first that is there.
    urls = ",".join(f"https://127.0.0.1:{host.base_port + 4}" for host in hosts[1:])
    assert cli(made, "ps", "--all", ACTORGRID_URL=urls).returncode == 0
    lost = cli(made, "status")
    assert lost.returncode == 5 and "no agent answers" in lost.stderr


class Submitter(threading.Thread):
    """Has jobs accepted, one after the other, until told to stop."""

    def __init__(self, client: actorgrid.Client) -> None:
        super().__init__()
        self._client = client
        self._stop_it = threading.Event()
        self.accepted: list[str] = []
        self.failure: Exception | None = None

    def run(self) -> None:
        while not self._stop_it.wait(0.2):
            try:
                job = self._client.submit_job(name="small", command=["true"], cpus=0.01)
            except actorgrid.errors.ActorGridError as error:
                self.failure = error
                return
            self.accepted.append(job["job_id"])

    def finish(self) -> list[str]:
        self._stop_it.set()
        self.join(60)
        assert self.failure is None, self.failure
        return self.accepted


def test_all_hosts_restart_one_after_the_other_while_work_goes_on(
    make_host: Callable[..., ClusterHost], tmp_path: Path
) -> None:
    hosts = three(make_host)
    made = hosts[1].cli_json("key", "create")
    held = [
        hosts[0].submit("--gpus", "1", "--", "sh", "-c", f"echo $$ > {tmp_path}/pid{number}; exec sleep 120")
        for number in range(5)
    ]
    until(lambda: [hosts[0].job(id)["state"] for id in held].count("running") == 5, "every GPU is used")
    files = [tmp_path / f"pid{number}" for number in range(5)]
    until(lambda: all(file.exists() and file.read_text().endswith("\n") for file in files), "all have begun")
    pids = [int(file.read_text()) for file in files]
    before = {node: (host["node_id"], host["incarnation"]) for node, host in hosts[0].hosts().items()}
    agents = [host.process.pid for host in hosts if host.process is not None]

    with client_of(made) as client:
        client.cluster()
        submitter = Submitter(client)
        submitter.start()
        restarts = ("upgrade", "--rolling", "--json", "--timeout", "200s")
        lines = hosts[0].cli(*restarts, timeout_s=240).stdout.splitlines()
        accepted = submitter.finish()
        for job_id in accepted:
            assert client.wait(job_id, 60)["state"] == "succeeded"
    told = [json.loads(line) for line in lines]
    assert [each["event"] for each in told] == ["restarting", "back"] * 3 + ["done"]
    assert told[4]["host_id"] == before[1][0], "the host that leads comes last"
    assert len(accepted) >= 5

    after = hosts[0].hosts()
    assert {node: (host["node_id"], host["incarnation"] - 1) for node, host in after.items()} == before
    assert [host["raft_role"] for host in after.values()].count("leader") == 1
    assert after[1]["raft_role"] == "voter", "it handed over"
    assert [is_alive(pid) for pid in [*pids, *agents]] == [True] * 8
    for id in held:
        job = hosts[0].job(id)
        assert (job["state"], len(job["attempts"])) == ("running", 1)
        hosts[0].cli("cancel", id)

    # A host that is drained gets nothing new, over restarts too, until it is undone.
    drained = hosts[0].cli_json("drain", "2", "--wait")
    assert (drained["draining"], drained["running"]) == (True, 0)
    hosts[2].cli("restart", "2")
    assert hosts[0].hosts()[2]["draining"]
    wide = hosts[0].submit("--gpus", "2", "--", "true")
    until(lambda: hosts[0].job(wide)["state"] == "succeeded", "it runs on the third")
    assert hosts[0].job(wide)["attempts"][-1]["host"] == after[3]["node_id"]
    hosts[0].cli("drain", "2", "--undo")
    assert not hosts[2].hosts()[2]["draining"]
