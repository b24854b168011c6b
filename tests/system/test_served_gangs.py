"""Replicas that are gangs over two real hosts: they answer together, go together, and are exchanged as one."""

from __future__ import annotations

import os
import signal
import sys
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actorgrid.client.client import Client
from actorgrid.client.services import ServiceHandle
from tests.processes import is_alive, until
from tests.system.cluster_host import ClusterHost
from tests.system.test_services import chat, models_url, ready

SERVER = str(Path(__file__).parents[1] / "serving" / "gang_server.py")
GANG: dict[str, Any] = {"gang": 2, "spread": True, "gpus": 1, "cpus": 0.1, "drain_s": 10.0}


def command(*more: str) -> list[str]:
    return [sys.executable, SERVER, "{port}", "{rank}", "{world_size}", "{master_addr}:{master_port}", *more]


def words_of(answer: dict[str, Any]) -> list[list[str]]:
    """Of each member that answered: what it says, its rank, its pid."""
    return [word.split("/") for word in answer["choices"][0]["message"]["content"].split()]


def gang_of(client: Client, service: ServiceHandle) -> dict[str, Any]:
    """The job of the only replica."""
    (replica,) = ready(service)
    return client.job(replica["job_id"])


@pytest.mark.timeout(400)
def test_two_hosts_serve_one_model_and_a_lost_rank_takes_its_replica_along(
    make_host: Callable[[str, int], ClusterHost],
) -> None:
    first = make_host("a", 2).found()
    second = make_host("b", 2).join(first, first.token()["token"])
    until(lambda: len(first.cli_json("gpus")["gpus"]) == 4, "all devices are known")
    client = first.client()
    key = client.http.post("/api/keys", {"user_id": "ann"})["key"]
    service = client.serve("large", command("--say", "one"), **GANG)
    service.wait_ready(90)
    urls = [models_url(each.client()) for each in (first, second)]
    members = gang_of(client, service)["attempts"][-1]["members"]
    assert len({each["host"] for each in members}) == 2

    def asked(url: str) -> list[list[str]]:
        return words_of(chat(url, "large", 60.0, key=key))

    def answers(url: str) -> bool:
        try:
            return bool(asked(url))
        except urllib.error.HTTPError as error:
            with error:
                assert error.code == 503, error.read()
            return False  # that gateway has not heard of it yet

    for url in urls:
        until(lambda url=url: answers(url), "any host answers for it", 30)  # type: ignore[misc]
        assert [word[:2] for word in asked(url)] == [["one", "0"], ["one", "1"]]
    before = gang_of(client, service)["job_id"]
    pids = [int(word[2]) for word in asked(urls[0])]
    os.kill(pids[1], signal.SIGKILL)  # of the rank that nobody asks whether it answers
    until(lambda: ready(service) and ready(service)[0]["job_id"] != before, "another gang has come for it", 90)
    assert not any(is_alive(pid) for pid in pids), "no member of it is left"
    ended = service.look()["ended"][-1]
    assert ended["job_id"] == before and not ended["asked"] and "rank 1" in ended["reason"]
    assert all(answers(url) for url in urls)

    # There is room for one more gang: an exchange has it answer first, and no request is lost.
    client.serve("large", command("--say", "two"), replace=True, **GANG)
    said: set[str] = set()

    def rolled() -> bool:
        said.update(word[0] for word in asked(urls[1]))
        seen = service.look()
        assert seen["ready"] >= 1
        return seen["rollout"] is None and len(seen["replicas"]) == 1

    until(rolled, "it is exchanged under load", 120)
    assert said >= {"two"}
    service.scale(2)
    until(lambda: service.look()["ready"] == 2, "two gangs answer", 90)
    assert sum(row["allocated_milli"] for row in client.gpus()) == 4_000
    service.remove()
