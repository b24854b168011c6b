"""Clients on no host: HTTPS with a pinned authority, and the loss of the host they speak to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import actorgrid
from tests.processes import until
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


def test_a_client_of_one_address_survives_the_loss_of_its_host(make_host: Callable[..., ClusterHost]) -> None:
    hosts = [make_host("a", 1).found(), make_host("b", 2), make_host("c", 2)]
    token = hosts[0].token("--uses", "2")["token"]
    for host in hosts[1:]:
        host.join(hosts[0], token)
    until(lambda: hosts[2].roles() == {1: "leader", 2: "voter", 3: "voter"}, "three that vote")
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
