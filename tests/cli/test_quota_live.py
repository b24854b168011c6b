"""Quotas on a real host with simulated GPUs: two users, their jobs and a client's session."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

import actorgrid
from actorgrid.client.async_client import AsyncClient
from actorgrid.errors import NotFound, QuotaExceeded

from .conftest import until

pytestmark = [pytest.mark.timeout(120), pytest.mark.system]
ME = getpass.getuser()


@pytest.fixture(scope="module")
def local() -> Iterator[actorgrid.LocalCluster]:
    with actorgrid.LocalCluster(gpus=4) as local:
        yield local


@pytest.fixture
def client(local: actorgrid.LocalCluster) -> Iterator[actorgrid.Client]:
    """A client; afterwards nothing runs and nobody has a quota."""
    with local.client() as client:
        yield client
        for row in client.quotas():
            if row["limits"] is not None and not row["default"]:
                client.remove_quota(row["user"])
        for job in client.jobs():
            if job["state"] in ("queued", "placed", "running"):
                client.cancel(job["job_id"])
        until(lambda: not any(job["state"] in ("queued", "placed", "running") for job in client.jobs()))


def call(local: actorgrid.LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ACTORGRID_")}
    return subprocess.run(
        [sys.executable, "-m", "actorgrid", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**kept, "ACTORGRID_DATA_DIR": str(local.data_dir)},
    )


def start(client: actorgrid.Client, user: str, *, gpus: float = 1.0) -> str:
    job = client.submit_job(command=["sleep", "60"], gpus=gpus, cpus=0.01, user_id=user)
    return str(job["job_id"])


def state(client: actorgrid.Client, job_id: str) -> str:
    return str(client.job(job_id)["state"])


def test_two_users_one_at_the_limit(local: actorgrid.LocalCluster, client: actorgrid.Client) -> None:
    done = call(local, "quota", "set", "ann", "--gpus", "1", "--waiting", "2")
    assert done.returncode == 0, done.stderr
    first, second = start(client, "ann"), start(client, "ann")
    until(lambda: state(client, first) == "running")
    other = start(client, "bob", gpus=2)
    until(lambda: state(client, other) == "running")
    assert state(client, second) == "queued"
    said = call(local, "why", second).stdout
    assert "the quota of user ann has no room for it: it needs 1 GPU, with 1 of 1 GPU in use" in said
    assert first[:8] in said and f"actorgrid cancel {first} would make room in the quota" in said
    table = call(local, "quota").stdout
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [["ann", "own"], ["bob", "none"]]
    client.cancel(first)
    until(lambda: state(client, second) == "running")
    with pytest.raises(QuotaExceeded):
        start(client, "ann", gpus=2)
    refused = call(local, "quota", "remove", "anm", "--json")
    assert refused.returncode == 4 and "did you mean ann?" in json.loads(refused.stdout)["error"]["hint"]


def test_a_session_is_held_to_the_quota_and_goes_on_as_it_is_raised(client: actorgrid.Client) -> None:
    client.set_quota(ME, gpus=0.5, cpus=8)
    assert list(client.map(lambda x: x + 1, range(20), gpus=0.25, cpus=0.01)) == list(range(1, 21))
    with pytest.raises(QuotaExceeded):
        client.submit(len, "abc", gpus=1, cpus=0.01).result(30)
    client.set_quota(ME, gpus=1)
    assert client.submit(len, "abc", gpus=1, cpus=0.01).result(30) == 3


def test_the_verbs_of_both_clients_agree(client: actorgrid.Client) -> None:
    async def talk() -> None:
        other = AsyncClient(client)
        answer = await other.set_quota("*", gpu_memory="1GiB", jobs_waiting=5)
        assert answer["limits"]["gpu_memory_bytes"] == 2**30
        # What is used may change in between: leases of sessions that ended are given back by and by.
        both = (await other.quotas(), client.quotas())
        assert [row["limits"] for row in both[0] if row["user"] == "*"] == [answer["limits"]]
        assert [row["limits"] for row in both[1] if row["user"] == "*"] == [answer["limits"]]
        assert (await other.remove_quota("*"))["previous"]["jobs_waiting"] == 5
        with pytest.raises(NotFound):
            await other.remove_quota("*")

    asyncio.run(talk())
